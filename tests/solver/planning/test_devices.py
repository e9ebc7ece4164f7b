"""Plans of pods with claims on devices, against every order in which the scheduler may place them and every device that
it may give them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from solver import (
    Budget,
    DeviceAlternative,
    DeviceClaim,
    DeviceRequest,
    Devices,
    NodeGroup,
    PodSet,
    PodSpec,
    Problem,
    Status,
    solve,
)
from solver.model.allocation import allocate, why_not_allocated
from solver.model.devices import Claims
from solver.planning.device_room import DeviceRoom
from solver.planning.reasons import BESIDE_OTHERS
from solver.verify.check import faults_of
from solver.verify.devices import without_devices
from tests.support.examples import examples
from tests.support.solver.device_allocations import Node, scheduled
from tests.support.solver.device_strategies import device_claims, device_problems, devices, usual_problems
from tests.support.solver.reference import as_micros, best_objective

BUDGET = Budget(deterministic_seconds=10.0)
CLAIMS = st.lists(device_claims(), min_size=1, max_size=2).map(tuple)


@given(devices(5), st.lists(CLAIMS, min_size=1, max_size=2), st.lists(st.integers(0, 1), min_size=1, max_size=3))
@examples(400)
def test_the_checker_knows_whatever_can_happen(
    there: tuple[Devices, ...], kinds: list[Claims], which: list[int]
) -> None:
    pods = [kinds[number % len(kinds)] for number in which]
    assert (without_devices(there, Counter(pods), ()) is None) == Node(there).holds(pods)


@given(devices(5), CLAIMS)
@examples(200)
def test_one_pod_is_served_where_it_can_be(there: tuple[Devices, ...], pod: Claims) -> None:
    node = Node(there)
    ways = node.served(node.free, pod)
    found = allocate(there, pod)
    assert (found is None) == (not ways)
    assert (why_not_allocated(there, pod) is None) == bool(ways)
    if found is not None:
        taken = sum(each.count for each in there) - sum(each.count for each in found.left(there))
        assert taken in {len(mine) for mine, _ in ways}


@given(devices(5), st.lists(CLAIMS, min_size=1, max_size=2), st.lists(st.integers(0, 1), min_size=1, max_size=3))
@examples(200)
def test_nobody_is_counted_out_who_finds_devices_whatever_happens(
    there: tuple[Devices, ...], kinds: list[Claims], which: list[int]
) -> None:
    pods = Counter(number % len(kinds) for number in which)
    if without_devices(there, Counter(kinds[number] for number in pods.elements()), ()) is None:
        room = DeviceRoom([PodSpec(claims=each) for each in kinds])
        for number, count in pods.items():
            others = {other: pods[other] for other in pods if other != number}
            assert room.more(there, number, others, 9) >= count


@given(device_problems())
@examples(300)
def test_no_plan_can_go_wrong(problem: Problem) -> None:
    """`solve` lets no plan out that its checker has not passed; the reference finds none that is better."""
    plan = solve(problem, BUDGET)
    note(str(plan))
    assert list(faults_of(problem, plan)) == []
    assert as_micros(plan, problem) >= best_objective(problem)


@given(device_problems(plain=True))
@examples(300)
def test_the_same_optimum_as_an_exact_assignment_model(problem: Problem) -> None:
    plan = solve(problem, BUDGET)
    note(str(plan))
    assert as_micros(plan, problem) == best_objective(problem)
    # Where the scheduler may give the devices to others first, or may not, nothing is proven of who is left out.
    unsure = any(BESIDE_OTHERS in each.reasons for each in plan.unplaced)
    assert (plan.certificate.status is Status.FEASIBLE) <= unsure


@given(usual_problems(), st.randoms(use_true_random=False))
@examples(60)
def test_whatever_the_scheduler_does_every_planned_pod_finds_its_devices(problem: Problem, rng: random.Random) -> None:
    plan = solve(problem, BUDGET)
    there = {group.id: group.devices for group in problem.node_groups}
    standing = {node.name: node.devices for node in problem.nodes}
    holding = [(there[each.node_group], each.pods) for each in plan.nodes]
    for devices_there, pods in (*holding, *((standing[each.node], each.pods) for each in plan.existing)):
        claims = [plan.pod_classes[index].spec.claims for index, count in pods.items() for _ in range(count)]
        for _ in range(5):
            assert scheduled(rng, devices_there, claims) == len(claims)


@given(device_problems(), st.randoms(use_true_random=False))
@examples(60)
def test_the_order_of_the_input_changes_nothing(problem: Problem, rng: random.Random) -> None:
    other = replace(
        problem,
        pod_sets=tuple(rng.sample(problem.pod_sets, len(problem.pod_sets))),
        node_groups=tuple(rng.sample(problem.node_groups, len(problem.node_groups))),
    )
    assert replace(solve(other, BUDGET), elapsed_seconds=0) == replace(solve(problem, BUDGET), elapsed_seconds=0)


def test_claims_that_no_checker_could_follow_leave_out_their_own_pods_and_no_others() -> None:
    """Fourteen blocks, no two alike: a tenant may write such claims, and must not stop planning for everybody."""
    one_block = ((frozenset[str](), "numa"),)
    devices = tuple(
        Devices(number % 5 + 2, frozenset({"any", *(("big",) if number % 2 else ())}), (("numa", f"{number}"),))
        for number in range(14)
    )
    asks = [
        DeviceClaim((DeviceRequest("gpus", (DeviceAlternative(selector, count),)),), constraints)
        for selector, count, constraints in (("any", 2, one_block), ("big", 3, one_block), ("any", 1, ()))
    ]
    claiming = [PodSet(f"claims-{n}", PodSpec((("cpu", 100),), claims=(each,)), 7) for n, each in enumerate(asks)]
    group = NodeGroup("g", {"cpu": 64_000, "pods": 100}, 1.0, max_size=100, devices=devices)
    problem = Problem((*claiming, PodSet("plain", PodSpec((("cpu", 100),)), 5)), (group,))
    plan = solve(problem, Budget(deterministic_seconds=0.5))
    examples_of = {each.index: each.example for each in plan.pod_classes}
    left_out = {examples_of[each.pod_class]: each.reasons[0] for each in plan.unplaced}
    assert "plain" not in left_out
    assert left_out
    assert all("too many ways to check" in reason for reason in left_out.values())
    assert {each.spec for each in plan.pod_classes} == {each.spec for each in problem.pod_sets}
    assert list(faults_of(problem, plan)) == []


@pytest.mark.parametrize("taken", [0, 1])
def test_a_pod_whose_own_requests_may_leave_it_with_what_is_not_known_is_not_planned(taken: int) -> None:
    """It may share, with admin access, the only device that another request of it could have."""
    shared = DeviceRequest("r", (DeviceAlternative("nic", admin_access=True),))
    own = DeviceRequest("r", (DeviceAlternative("big"),))
    there = (
        Devices(2, frozenset({"nic"}), taken=1),
        Devices(1, frozenset({"nic", "big"}), taken=taken),
        Devices(0, frozenset({"big"}), uncertain=True),
    )
    claims = (DeviceClaim((shared,)), DeviceClaim((own,)))
    group = NodeGroup("g", {"cpu": 64_000, "pods": 100}, 1.0, max_size=10, devices=there)
    problem = Problem((PodSet("p", PodSpec((("cpu", 100),), claims=claims), 1),), (group,))
    plan = solve(problem, BUDGET)
    assert sum(each.count for each in plan.unplaced) == 1
    assert not Node(there).holds([claims])


@pytest.mark.parametrize("admin_last", [True, False])
def test_a_claim_has_admin_access_to_what_a_claim_before_it_has(admin_last: bool) -> None:
    admin = DeviceClaim((DeviceRequest("r", (DeviceAlternative("any", admin_access=True),)),))
    own = DeviceClaim((DeviceRequest("r", (DeviceAlternative("any"),)),))
    claims = (own, admin) if admin_last else (admin, own)
    there = (Devices(1, frozenset({"any"})),)
    group = NodeGroup("g", {"cpu": 64_000, "pods": 100}, 1.0, max_size=10, devices=there)
    plan = solve(Problem((PodSet("p", PodSpec((("cpu", 100),), claims=claims), 1),), (group,)), BUDGET)
    assert (not plan.unplaced) is Node(there).holds([claims]) is admin_last


def test_a_gang_that_the_search_leaves_out_is_tried_on_as_many_new_nodes_as_it_needs() -> None:
    """Sums say nothing of two claims that share devices of which some are unknown; the checker lets them pass."""
    shared = DeviceRequest("r", (DeviceAlternative("any", admin_access=True),))
    both = PodSpec((("cpu", 500),), claims=(DeviceClaim((shared,)), DeviceClaim((shared,))))
    any_device = frozenset({"any"})
    there = (Devices(1, any_device, taken=1), Devices(0, any_device, uncertain=True))
    one_each = NodeGroup("g", {"cpu": 1000, "pods": 1}, 1.0, devices=there)
    plan = solve(Problem((PodSet("gang", both, 3, gang="red"),), (one_each,)), BUDGET)
    assert not plan.unplaced
    assert [each.delta for each in plan.increments] == [3]


def test_who_is_left_out_for_devices_that_others_may_not_be_given_leaves_a_plan_that_is_not_called_optimal() -> None:
    """The scheduler may give the two any of the three, and then nothing is left for the third; or something is."""
    there = (Devices(2, frozenset({"any"})), Devices(1, frozenset({"any", "big"})))
    both = PodSpec(claims=(DeviceClaim((DeviceRequest("r", (DeviceAlternative("any"),)),)),))
    third = PodSpec(claims=(DeviceClaim((DeviceRequest("r", (DeviceAlternative("big"),)),)),))
    group = NodeGroup("g", {"pods": 3}, 1.0, max_size=1, devices=there)
    plan = solve(Problem((PodSet("both", both, 2), PodSet("third", third, 1)), (group,)), BUDGET)
    assert sum(each.count for each in plan.unplaced) == 1
    assert plan.certificate.status is Status.FEASIBLE
    alone = solve(Problem((PodSet("both", both, 4),), (group,)), BUDGET)
    assert alone.certificate.status is Status.OPTIMAL
