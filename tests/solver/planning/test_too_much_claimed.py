"""Whatever pods claim of devices: planning takes steps in proportion to what it is asked, those whose claims are too
much work are left out, and nobody else is."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example, given

from solver import Budget, DeviceAlternative, DeviceClaim, DeviceRequest, Devices, Plan, PodSet, Problem, solve
from solver.model.allocation import MOST_STEPS, AllocatableDevices, allocate
from solver.model.budget import RunningBudget
from solver.planning.progress import SearchProgress
from solver.planning.search import SearchResult, optimise
from solver.reduction import device_rows, work
from solver.reduction.reduce import reduce
from solver.reduction.reduced import Reduced
from solver.verify import devices as checked
from solver.verify.check import faults_of
from tests.support.examples import examples
from tests.support.solver.device_strategies import device_problems, usual_problems
from tests.support.solver.hostile import HONEST, HOSTILE, left_out
from tests.support.solver.hostile_claims import (
    BLOCK,
    MADE,
    AskedClaims,
    asked_claims,
    claiming_problem,
    honest_pod,
)
from tests.support.solver.problems import group, node, spec
from tests.support.steps import steps

AT_ONCE = Budget(0.0)
FEW_STEPS, FEW_WAYS, MOST_OF_ALL = 20_000, 2_000, work.MOST_STEPS
PER_STEP, PER_WAY, PER_ALTERNATIVE = 200, 300, 600
"""Calls for each step that is allowed (a plan is made up to four times), for each way in which the checker may have
devices given, and for each alternative that is read."""


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small problems, too, have too much."""
    monkeypatch.setattr(work, "MOST_STEPS", FEW_STEPS)
    monkeypatch.setattr(checked, "_MOST_WAYS", FEW_WAYS)


def most_steps(asked: AskedClaims) -> int:
    return PER_STEP * FEW_STEPS + PER_WAY * FEW_WAYS + PER_ALTERNATIVE * asked.alternatives


@given(asked_claims)
@example(AskedClaims(["overlapping", "blocks"], 60, 12, 12))
@example(AskedClaims(["alternatives", "searched"], 60, 12, 12))
@example(AskedClaims(["selectors", "claims"], 60, 12, 12))
@examples(15)
def test_steps_are_in_proportion_and_honest_pods_are_served(asked: AskedClaims) -> None:
    problem, plans = claiming_problem(asked), list[Plan]()
    assert steps(lambda: plans.append(solve(problem, AT_ONCE))) <= most_steps(asked)
    (plan,) = plans
    assert left_out(plan, HONEST) == 0
    assert {each.spec for each in plan.pod_classes} == {each.spec for each in problem.pod_sets}
    assert list(faults_of(problem, plan)) == []


@pytest.mark.parametrize("kind", sorted(MADE))
def test_twice_the_claims_and_twice_the_nodes_take_little_more_than_twice_the_steps_each(kind: str) -> None:
    """Before anything is left out."""
    once = steps(partial(reduce, claiming_problem(AskedClaims([kind], 40, 3, 10))))
    claims = steps(partial(reduce, claiming_problem(AskedClaims([kind], 80, 3, 10))))
    nodes = steps(partial(reduce, claiming_problem(AskedClaims([kind], 40, 3, 20))))
    assert claims <= 2.3 * once
    assert nodes <= 2.3 * once


def test_a_search_that_finds_nothing_ends_at_once() -> None:
    """Forty devices, of which no two are alike, and a request for more: there are 2^40 ways to take some."""
    devices = [
        Devices(1, frozenset({"any"}), (("numa", f"{number % 4}"), ("number", f"{number}"))) for number in range(40)
    ]
    for constraints in ((), BLOCK):
        claim = DeviceClaim((_asking(20), _asking(20, "other", "none")), constraints)
        assert AllocatableDevices(devices).steps_to_allocate((claim,), MOST_STEPS) == 0
        claim = DeviceClaim((_asking(31),), constraints)
        assert AllocatableDevices(devices[:30]).steps_to_allocate((claim,), MOST_STEPS) <= 2


@pytest.mark.parametrize("constraints", [(), BLOCK], ids=["any devices", "of one block"])
def test_twice_the_devices_take_little_more_than_twice_the_steps(
    constraints: tuple[tuple[frozenset[str], str], ...],
) -> None:
    """Of which no two are alike, and of which a pod asks for all but one."""
    devices = [Devices(1, frozenset({"any"}), (("number", f"{number}"), ("numa", "0"))) for number in range(32)]
    once, twice = (
        steps(partial(allocate, devices[:count], (DeviceClaim((_asking(count - 1),), constraints),)))
        for count in (16, 32)
    )
    assert twice <= 2.3 * once


def _asking(count: int, name: str = "r", selector: str = "any") -> DeviceRequest:
    return DeviceRequest(name, (DeviceAlternative(selector, count),))


def all_different(number: int, namespace: str = HOSTILE) -> PodSet:
    """Claims of a kind of its own."""
    asked = (_asking(1 + number % 4), _asking(1 + number // 4 % 4, "b", "big"), _asking(1 + number // 16, "c", "c"))
    return PodSet(f"{namespace}{number}", spec(100, namespace=namespace, claims=(DeviceClaim(asked),)), 1)


def cluster(*sets: PodSet, kinds_of_nodes: int = 20) -> Problem:
    devices = tuple(Devices(20, frozenset({each})) for each in ("any", "big", "c"))
    nodes = (
        replace(node(f"n{n}", 8000), devices=(Devices(n + 1, frozenset({"any", "gpu"})), *devices))
        for n in range(kinds_of_nodes)
    )
    new = replace(group("g", 16_000, max_size=1000), devices=(Devices(8, frozenset({"gpu", "any"})), *devices))
    return Problem(sets, (new,), tuple(nodes))


def planned(problem: Problem, budget: Budget = AT_ONCE) -> Plan:
    plan = solve(problem, budget)
    assert list(faults_of(problem, plan)) == []
    return plan


def test_one_namespaces_claims_leave_out_no_pods_of_others() -> None:
    mine = [all_different(number) for number in range(200)]
    others = [PodSet(f"{name}{n}", honest_pod(n, name), 2) for name in ("x", "y") for n in range(4)]
    plan = planned(cluster(*mine, *others))
    assert left_out(plan, "x") == left_out(plan, "y") == 0
    out = left_out(plan, HOSTILE, why=work.TOO_MUCH_CLAIMED)
    assert 100 < out < 200
    assert left_out(plan, HOSTILE) >= out


def test_of_many_namespaces_none_takes_anothers_share() -> None:
    """Of which one has what all others have, and more."""
    others = [all_different(number, f"n{number // 2}") for number in range(20)]
    mine = [all_different(number) for number in range(200)]
    plan = planned(cluster(*mine, *others))
    assert sum(left_out(plan, f"n{number}") for number in range(10)) == 0
    assert left_out(plan, HOSTILE, why=work.TOO_MUCH_CLAIMED) > 0


def test_within_the_share_nobody_is_left_out() -> None:
    """What some namespaces do not need of it is for another."""
    plan = planned(cluster(*(all_different(number) for number in range(30)), PodSet("h", honest_pod(1), 3)))
    assert not plan.unplaced


def test_the_heaviest_claims_are_left_out() -> None:
    light = [PodSet(f"l{n}", honest_pod(n, HOSTILE), 1) for n in range(4)]
    plan = planned(cluster(*light, *(all_different(number) for number in range(200))))
    out = [plan.pod_classes[each.pod_class].example for each in plan.unplaced]
    assert out
    assert not any(each.startswith("l") for each in out)


def test_claims_that_differ_in_names_alone_are_one_kind() -> None:
    sets = [
        PodSet(f"p{n}", spec(100, namespace=HOSTILE, claims=(DeviceClaim((_asking(1, f"r{n}"),)),)), 1)
        for n in range(300)
    ]
    assert not planned(cluster(*sets)).unplaced


def test_a_busy_cluster_with_hundreds_of_kinds_of_nodes_is_planned_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty kinds of claims of ten namespaces, within the steps that there really are."""
    monkeypatch.setattr(work, "MOST_STEPS", MOST_OF_ALL)
    sets = [PodSet(f"p{n}", all_different(n % 30, f"ns{n % 10}").spec, 1) for n in range(60)]
    assert not work.within_share(cluster(*sets, kinds_of_nodes=300))


def test_the_same_pods_are_left_out_whatever_the_budget_is() -> None:
    """Decision 43."""
    problem = cluster(*(all_different(number) for number in range(200)))
    plans = [planned(problem, budget) for budget in (AT_ONCE, Budget(deterministic_seconds=0.1))]
    out = [
        [(each.pod_class, each.count) for each in plan.unplaced if each.reasons == (work.TOO_MUCH_CLAIMED,)]
        for plan in plans
    ]
    assert out[0] == out[1] != []


@given(device_problems() | usual_problems())
@examples(60)
def test_plans_hold_where_sums_are_made_one(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as few:
        few.setattr(device_rows, "_MOST_TRIED", 0)
        few.setattr(device_rows, "_MOST_SUMS", 0)
        planned(problem, Budget(deterministic_seconds=1.0))


@pytest.mark.parametrize("claiming", [False, True])
def test_what_comes_after_the_search_has_its_time_where_pods_have_claims(
    claiming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much as what came before it: here half a second of ten, whatever a clock says of this machine."""
    seconds, until = [0.0], list[float]()

    def searching(reduced: Reduced, budget: RunningBudget, fraction: float, progress: SearchProgress) -> SearchResult:
        until.append(fraction)
        return optimise(reduced, budget, fraction, progress)

    def reducing(asked: Problem) -> Problem:
        seconds[0] += 0.5
        return asked

    monkeypatch.setattr("solver.planning.solve.optimise", searching)
    monkeypatch.setattr("solver.planning.solve.with_enough_nodes", reducing)
    pods = all_different(1) if claiming else PodSet("p", spec(100), 1)
    solve(cluster(pods), Budget(10.0, clock=lambda: seconds[0]))
    assert until == [pytest.approx(0.95 if claiming else 1.0)]
