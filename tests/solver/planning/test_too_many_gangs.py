"""Whatever gangs and wishes for topology domains there are, and whoever is left out: planning takes steps in proportion
to pods and nodes, and nobody's gangs take the place of all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Never

import pytest

from cagrpc.api.core.topology import in_one_domain, mark
from solver import Budget, Plan, PodSet, PodSpec, Problem, solve
from solver.model import (
    HOSTNAME,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PreferredDomain,
    PreferredPods,
    Requirement,
    RunningPods,
    TopologySpread,
)
from solver.model.budget import RunningBudget
from solver.model.domains import gang_terms, wished_domains
from solver.model.objective import Goal
from solver.planning import domain_supply, reasons, settling
from solver.planning.domain_supply import GangDomains
from solver.planning.first_domains import FirstDomains
from solver.planning.gang_domains import in_gang_domains
from solver.planning.own_way import nominated_together
from solver.planning.progress import SILENT
from solver.planning.solve import _searched
from solver.reduction.reduce import Reduction, reduce
from solver.reduction.reduced import Demand, Reduced
from solver.verify.check import faults_of
from tests.support.solver.hostile import HONEST, HOSTILE
from tests.support.solver.problems import group, node, spec
from tests.support.steps import steps

AT_ONCE = Budget(0.0)
_FEW_STEPS = 60_000
"""What it takes to begin with."""


def gang(number: int, cpu: int, namespace: str = HOSTILE, pods: int = 1) -> PodSet:
    """Of pods that are to be in one rack."""
    name = f"{namespace}/{number}"
    asked, labels = in_one_domain(spec(cpu, namespace=namespace), {}, name, ["rack"])
    return PodSet(name, replace(asked, labels=tuple(labels.items())), pods, gang=name)


def wishing(number: int, cpu: int = 1000, key: str = "rack") -> PodSet:
    """Of a pod that wishes for few racks."""
    term = mark(f"{number}", key)
    labels = tuple((each.key, "") for each in term.selector.match_expressions or ())
    asked = spec(cpu, namespace=HOSTILE, preferred_domains=(PreferredDomain(term, after_cost=False),), labels=labels)
    return PodSet(f"w{number}", asked, 1)


def left_out_beside_a_spread(number: int) -> PodSet:
    app = PodSelector((Requirement("app", Operator.IN, ("a",)),), (HOSTILE,))
    even = spec(1000, namespace=HOSTILE, labels=(("app", "a"),), topology_spread=(TopologySpread("rack", 1, app),))
    return PodSet(f"l{number}", spec(10**6 + number, namespace=HOSTILE) if number else even, 1)


def problem(made: Callable[[int], PodSet], pods: int, *others: PodSet) -> Problem:
    """Return so many pod sets, and as many nodes that differ."""
    nodes = tuple(node(f"n{each}", 8000 + each, labels={"rack": f"r{each % 10}"}) for each in range(pods))
    return Problem((*others, *map(made, range(pods))), (group("g", 16_000, labels={"rack": "r0"}, max_size=10),), nodes)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda n: gang(n, 100 + n), id="gangs"),
        pytest.param(lambda n: gang(n, 10**6 + n), id="gangs that fit nowhere"),
        pytest.param(lambda n: gang(n, 5000 + n, pods=40), id="gangs of which each pod takes a node"),
        pytest.param(lambda n: wishing(n, 100 + n), id="wishes"),
        pytest.param(lambda n: wishing(n, 100 + n, f"k{n}"), id="wishes over keys that no node has"),
        pytest.param(left_out_beside_a_spread, id="pods that are left out where others are spread"),
    ],
)
def test_twice_the_pods_and_nodes_take_little_more_than_twice_the_steps(
    made: Callable[[int], PodSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "_MOST_LOOKS", 1_000)
    monkeypatch.setattr(domain_supply, "_MOST_PAIRS", 1_000)
    once, twice = (steps(partial(solve, problem(made, pods), AT_ONCE)) for pods in (100, 200))
    assert twice <= 2.3 * once + _FEW_STEPS


def test_why_pods_are_left_out_is_found_once_for_the_plan_that_is_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever plans are compared before."""
    found, looked_for = reasons._reasons, list[str]()

    def looking(reduced: Reduced, demand: Demand, places: reasons._Places) -> Iterator[str]:
        looked_for.append(demand.example)
        return found(reduced, demand, places)

    monkeypatch.setattr(reasons, "_reasons", looking)
    plan = solve(problem(lambda n: gang(n, 5000 + n, pods=4), 20), AT_ONCE)
    left_out = [plan.pod_classes[each.pod_class].example for each in plan.unplaced]
    assert left_out
    assert sorted(looked_for) == sorted(left_out)
    assert all(each.reasons for each in plan.unplaced)


def test_a_domain_with_too_little_room_for_a_gang_is_not_filled_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes of a pod each in every rack, and ten more of three pods each in one."""
    asked = problem(lambda n: gang(n, 5000 + n, pods=33), 20)

    def filled_with(*_: object) -> Never:
        pytest.fail("a gang is put into a domain")

    monkeypatch.setattr(FirstDomains, "_filled_with", filled_with)
    assert FirstDomains(GangDomains(asked, gang_terms(asked), wished_domains(asked))).at == {}


def test_pods_that_only_wish_for_a_domain_are_searched_once_where_that_takes_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[Problem] = []

    def searching(asked: Problem, *rest: Any) -> Plan:
        searched.append(asked)
        return _searched(asked, *rest)

    apart = PodAffinityTerm("rack", PodSelector((Requirement("a", Operator.EXISTS),), (HOSTILE,)))
    pods = [wishing(number) for number in range(4)]  # of which no choice of domains is made
    pods = [replace(each, spec=replace(each.spec, preferred_pods=(PreferredPods(1, apart),))) for each in pods]
    asked = problem(lambda number: pods[number], 4)
    plan = in_gang_domains(asked, RunningBudget(AT_ONCE), searching, SILENT)
    assert (len(searched), plan.unplaced) == (1, ())
    assert any(each.stage.goal is Goal.SPREAD for each in plan.objective)


def test_gangs_have_domains_chosen_for_as_many_pairs_as_there_may_be_and_namespaces_have_equal_shares() -> None:
    asked = problem(lambda n: gang(n, 100 + n, pods=5), 200, *(gang(n, 100, HONEST) for n in range(3)))
    of = GangDomains(asked, gang_terms(asked), wished_domains(asked))
    namespaces = [asked.pod_sets[number].spec.namespace for number in of.pod_sets]
    assert namespaces.count(HONEST) == 3, "though they are the smallest"
    assert namespaces.count(HOSTILE) > 50
    assert len(namespaces) * len(of.supplies) <= domain_supply._MOST_PAIRS


def test_who_is_left_out_is_tried_in_turns_of_namespaces() -> None:
    """An honest pod beside more hostile ones than are tried."""
    looked_at: list[str] = []

    class Looking(settling._Completion):
        def _place_unit(self, members: object) -> bool:
            looked_at.extend(each.spec.namespace for each in members)  # type: ignore[attr-defined]
            return False

    honest = PodSet("z", spec(10**6, namespace=HONEST), 1)
    asked = problem(left_out_beside_a_spread, 20)
    asked = replace(asked, pod_sets=(*asked.pod_sets, honest))
    draft = settling._ChangedPlan(asked, solve(asked, AT_ONCE))
    Looking(draft).run()
    assert looked_at[:2] == [HOSTILE, HONEST]


@pytest.mark.parametrize("key", ["rack", HOSTNAME])
def test_a_pod_that_runs_in_no_domain_is_in_none_for_who_wishes_to_be_with_it(key: str) -> None:
    """The planner and its checker agree on that: otherwise such a pod stops all planning."""
    wish = wishing(1, key=key)
    runs = RunningPods(replace(wish.spec, preferred_domains=()), 1)
    bare = node("bare", 0, labels={}, running=(runs,))
    beside = node("beside", 8000, labels={"rack": "r1", HOSTNAME: "beside"})
    asked = Problem((wish,), (group("g"),), (bare, beside))
    plan = solve(asked, AT_ONCE)
    assert not plan.unplaced
    assert list(faults_of(asked, plan)) == []


def counted_by_all(number: int) -> PodSpec:
    """Of a pod with spreads of its own, each of which counts all such pods and keeps nobody out."""
    values = (("b", f"{number}-{each}") for each in range(20))
    spreads = (TopologySpread(HOSTNAME, 1000, PodSelector((Requirement("a", Operator.IN, v),))) for v in values)
    return spec(10 + number, labels=(("a", "b"),), topology_spread=tuple(spreads))


def test_who_is_nominated_together_is_found_in_steps_for_each_constraint() -> None:
    """However many pods each of them counts."""
    pods = [[(counted_by_all(each), 0) for each in range(count)] for count in (40, 80)]
    once, twice = (steps(partial(nominated_together, each)) for each in pods)
    assert twice <= 2.3 * once


def test_a_plan_takes_steps_for_each_constraint_and_not_for_each_pod_that_one_counts() -> None:
    groups = (group("g", 64_000, max_size=100),)
    sets = [PodSet(f"p{each}", counted_by_all(each), 1) for each in range(80)]
    once, twice = (steps(partial(solve, Problem(tuple(sets[:pods]), groups), AT_ONCE)) for pods in (40, 80))
    assert twice <= 2.3 * once


def test_rows_are_made_once_for_whatever_order_pods_come_in() -> None:
    asked = Problem(tuple(PodSet(f"p{each}", counted_by_all(each), 1) for each in range(40)), (group("g"),))
    once = steps(partial(reduce, asked))
    reduction = Reduction(asked)
    both = steps(lambda: [reduction.reduced(unbound_last=last) for last in (False, True)])
    assert both <= 1.3 * once


def test_what_several_terms_keep_apart_is_one_exclusion() -> None:
    reduced = reduce(Problem(tuple(PodSet(f"p{each}", counted_by_all(each), 1) for each in range(5)), (group("g"),)))
    assert len(reduced.exclusions) == 5
