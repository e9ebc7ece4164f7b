"""The first choice of topology domains: whatever gangs and domains there are, it is one that nodes can hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given

from solver import Budget, PodSpec, Problem, solve
from solver.model import NODES, PODS, Limit, NodeGroup, PodSet
from solver.model.budget import RunningBudget
from solver.model.domains import gang_terms
from solver.planning.domain_supply import GangDomains
from solver.planning.first_domains import FirstDomains
from solver.planning.packed_domains import packed_as_chosen
from solver.planning.write_plan import with_specs
from solver.verify.check import faults_of
from tests.support.examples import examples
from tests.support.solver.gangs import RACK, in_one_domain
from tests.support.solver.problems import group

BUDGET = Budget(deterministic_seconds=1.0)


def gang(number: int, pods: int, cpu: int, priority: int = 0) -> PodSet:
    return in_one_domain(f"g{number}", PodSpec((("cpu", cpu),)), pods, priority=priority)


def racks(count: int, most: int) -> list[NodeGroup]:
    """Return nodes of two sizes in each rack."""
    sizes = ((4000, 0.2), (16_000, 0.7))
    return [
        group(f"{cpu}-r{rack}", cpu, price=price, labels={RACK: f"r{rack}"}, max_size=most)
        for rack in range(count)
        for cpu, price in sizes
    ]


def limits(groups: list[NodeGroup], most: int) -> tuple[Limit, ...]:
    by_rack = {each.labels[RACK]: frozenset(g.id for g in groups if g.labels == each.labels) for each in groups}
    return tuple(Limit(rack, {NODES: most}, node_groups=ids) for rack, ids in by_rack.items())


GANGS = st.lists(st.tuples(st.integers(1, 9), st.integers(500, 9000), st.integers(0, 1)), min_size=1, max_size=8)


@given(GANGS, st.integers(1, 4), st.integers(1, 5))
@examples(100)
def test_gangs_are_whole_in_one_domain_on_nodes_that_hold_them(
    gangs: list[tuple[int, int, int]], count: int, most: int
) -> None:
    groups = racks(count, most)
    sets = tuple(gang(number, *each) for number, each in enumerate(gangs))
    problem = Problem(sets, tuple(groups), limits=limits(groups, most))
    of = GangDomains(problem, gang_terms(problem), {})
    first = FirstDomains(of)
    before = first.value
    first.improve(RunningBudget(Budget(deterministic_seconds=0.1)))
    assert first.value <= before
    served, nodes = Counter[int](), Counter[str]()
    racks_of: dict[int, set[str]] = {}
    for supply, mine in first.nodes:
        assert supply.group is not None
        rack = groups[supply.group].labels[RACK]
        nodes[rack] += len(mine)
        for node in mine:
            asked = sum(dict(sets[number].spec.requests)["cpu"] * pods for number, pods in node.pods.items())
            assert asked <= supply.free["cpu"]
            assert 0 < sum(node.pods.values()) <= supply.free[PODS]
            served.update(node.pods)
            for number, pods in node.pods.items():
                racks_of.setdefault(number, set()).update([rack] if pods else [])
    assert all(count <= most for count in nodes.values())
    assert all(len(mine) <= 1 for mine in racks_of.values())
    assert all(pods in (0, sets[number].count) for number, pods in served.items())


def test_members_that_ask_for_no_domain_are_planned_beside_those_that_do() -> None:
    """The plan is one of whole gangs; of one that has no domain nobody is planned."""
    groups = racks(2, 1)
    members = [gang(number, pods, 4000) for number, pods in enumerate((4, 5, 9))]
    others = [PodSet(f"ns/other{n}", PodSpec((("cpu", 1000),)), 2, gang=each.gang) for n, each in enumerate(members)]
    problem = Problem((*members, *others), (*groups, group("any", 8000)))
    of = GangDomains(problem, gang_terms(problem), {})
    apart = [replace(each, spec=replace(each.spec, pod_affinity=())) for each in members]
    before = solve(replace(problem, pod_sets=(*apart, *others)), BUDGET)
    before = with_specs(before, {one.spec: each.spec for one, each in zip(apart, members, strict=True)})
    plan = packed_as_chosen(of, FirstDomains(of), before, lambda rest: solve(rest, BUDGET))
    assert plan is not None
    assert not [each for each in faults_of(problem, plan) if "objective" not in each]
    assert {plan.pod_classes[each.pod_class].gang for each in plan.unplaced} == {"g2"}


def test_many_gangs_over_many_racks_cost_hardly_more_than_apart() -> None:
    """Each rack holds many of them, and a rack of its own for each would cost several times as much."""
    groups = tuple(group(f"r{n}", 8000, price=0.4, labels={RACK: f"r{n}"}, max_size=16) for n in range(100))
    plan = solve(Problem(tuple(gang(number, 8, 100 + number) for number in range(80)), groups), BUDGET)
    assert not plan.unplaced
    assert plan.certificate.cost_usd_per_hour <= 1.1 * plan.certificate.lower_bound_usd_per_hour
