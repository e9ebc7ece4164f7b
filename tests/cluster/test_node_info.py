"""Room on nodes: what is assumed can be forgotten, what fits is what the planner and the checker say fits, and what is
requested is the sum of what its owners request."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.cluster.node_info import (
    ClusterCapacity,
    DisplacedOwner,
    NodeInfo,
    Owner,
    PlaceholderOwner,
    PodOwner,
    RequestOwner,
    Reservation,
    merged,
    requested,
)
from solver import solve
from solver.model import ATTACHABLE_VOLUMES, PODS, Budget, HostPort, Node, PodSet, PodSpec, Problem, RunningPods
from solver.model.plan import PlacedOnNode
from solver.verify.check import faults_of
from tests.support.solver.device_examples import GPUS, claim, devices
from tests.support.solver.problems import TAINT, node, spec
from tests.support.solver.strategies import PORTS, ZONES, pod_specs

DISK = f"{ATTACHABLE_VOLUMES}disk.example.com"
VOLUMES = [(DISK, name) for name in "vwx"]
A, B = PodOwner("a"), RequestOwner("a")  # two owners, though their names are one
SPEC = spec(cpu=1000)
OWNERS = st.sampled_from([A, B, PodOwner("b"), PlaceholderOwner("all/small"), DisplacedOwner()])


@st.composite
def specs(draw: st.DrawFn) -> PodSpec:
    """Of any size, with selectors and tolerations, some with host ports, some with volumes that others use, too."""
    found = replace(draw(pod_specs()), host_ports=draw(st.sampled_from([(), (), *((port,) for port in PORTS)])))
    shared = tuple(sorted(draw(st.sets(st.sampled_from(VOLUMES), max_size=2))))
    count = len(shared) + draw(st.integers(0, 1))
    asked = tuple(sorted({**dict(found.requests), DISK: count}.items())) if count else found.requests
    return replace(found, requests=asked, shared_volumes=shared)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    free = {
        "cpu": draw(st.integers(0, 12)) * 500,
        "memory": draw(st.integers(0, 8)),
        "gpu": draw(st.integers(0, 2)),
        PODS: draw(st.integers(0, 5)),
        DISK: draw(st.integers(0, 3)),
    }
    labels = {"zone": draw(st.sampled_from(ZONES)), "size": str(draw(st.integers(3, 6)))}
    taints = (TAINT,) if draw(st.booleans()) else ()
    running = tuple(RunningPods(each) for each in draw(st.lists(specs(), max_size=2)))
    volumes = frozenset(volume for each in running for volume in each.spec.shared_volumes)
    return Node("n", free, labels, taints, running, volumes=volumes)


Assumed = list[tuple[Owner, PodSpec, int]]
ASSUMED: st.SearchStrategy[Assumed] = st.lists(st.tuples(OWNERS, specs(), st.integers(1, 3)), max_size=6)


def _with(of: Node, assumed: Assumed) -> NodeInfo:
    info = NodeInfo(of)
    for owner, each, count in assumed:
        info.assume(owner, each, count)
    return info


@given(nodes(), ASSUMED, OWNERS)
def test_assume_then_forget_is_as_if_nothing_had_been(of: Node, assumed: Assumed, owner: Owner) -> None:
    info = _with(of, assumed)
    info.forget(owner)
    expected = _with(of, [each for each in assumed if each[0] != owner])
    assert {name: amount for name, amount in info.free.items() if amount} == {
        name: amount for name, amount in expected.free.items() if amount
    }
    assert Counter(info.reservations) == Counter(expected.reservations)
    for each in info.owners:
        info.forget(each)
    assert (info.free, info.node(), info.owners) == (of.free, of, ())


@given(nodes(), ASSUMED)
def test_what_is_requested_is_the_sum_by_owners_and_what_is_missing(of: Node, assumed: Assumed) -> None:
    info = _with(of, assumed)
    pods = [each for owner in info.owners for each in info.assumed(owner).items()]
    total = Counter(requested(pods))
    total.subtract(resource for resource, _ in of.volumes & {v for spec, _ in pods for v in spec.shared_volumes})
    for name in {*of.free, *info.free, *total}:
        assert info.free.get(name, 0) == of.free.get(name, 0) - total[name]
    planned = info.node()
    assert all(amount == max(0, info.free[name]) for name, amount in planned.free.items())
    assert sum(each.count for each in planned.running[len(of.running) :]) == sum(count for _, _, count in assumed)


@given(nodes(), ASSUMED, specs())
def test_what_fits_is_what_the_planner_places_and_the_checker_lets_pass(
    of: Node, assumed: Assumed, asked: PodSpec
) -> None:
    info = _with(of, assumed)
    problem = Problem((PodSet("p", asked, 1),), nodes=(info.node(),))
    plan = solve(problem, Budget(deterministic_seconds=0.5))
    assert info.fits(asked) is not bool(plan.unplaced)
    placed = replace(plan, existing=(PlacedOnNode("n", {plan.pod_classes[0].index: 1}),), unplaced=())
    assert info.fits(asked) is not any("class" in fault or "over-full" in fault for fault in faults_of(problem, placed))


@given(nodes(), ASSUMED, specs())
def test_most_is_how_many_have_room_one_after_the_other(of: Node, assumed: Assumed, asked: PodSpec) -> None:
    info = _with(of, assumed)
    most, count = info.most(asked), 0
    while info.has_room(asked):
        info.assume(A, asked)
        count += 1
    assert most == count


def test_a_copy_changes_apart() -> None:
    info = _with(node("n", 4000), [(A, SPEC, 1)])
    other = info.copy()
    other.assume(B, SPEC)
    other.forget(A)
    assert (info.free["cpu"], other.free["cpu"]) == (3000, 3000)
    assert (info.owners, other.owners) == ((A,), (B,))
    assert info.assumed(A) == {SPEC: 1}


def test_more_may_be_assumed_than_there_is_and_nothing_is_left_then() -> None:
    info = _with(node("n", 1500), [(A, SPEC, 1), (B, PodSpec((("cpu", 1000), ("gpu", 1))), 1)])
    assert (info.free["cpu"], info.free["gpu"]) == (-500, -1)
    assert (info.node().free["cpu"], info.node().free["gpu"]) == (0, 0)
    info.forget(B)
    assert info.node().free["cpu"] == 500


def test_an_overcommitted_node_has_nothing_to_give() -> None:
    info = NodeInfo(Node("n", {"cpu": -200, PODS: 3}))
    assert not info.fits(spec(cpu=1))
    assert info.node().free == {"cpu": 0, PODS: 3}


def test_two_pods_of_one_host_port_do_not_share_a_node() -> None:
    serving = spec(cpu=100, host_ports=(HostPort(80),))
    info = NodeInfo(node("n", 4000))
    assert info.most(serving) == 1
    info.assume(A, serving)
    assert not info.has_room(serving)
    assert info.has_room(spec(cpu=100, host_ports=(HostPort(81),)))


def test_a_capacity_has_reservations_on_its_nodes_and_forgets_an_owner_on_all_of_them() -> None:
    one, two = (Reservation(A, SPEC),), (Reservation(B, SPEC, 2),)
    capacity = ClusterCapacity(
        [node("x", 4000), node("y", 4000)], merged({"x": one, "gone": one}, {"x": two, "y": two})
    )
    assert [each.free["cpu"] for each in capacity.nodes] == [1000, 2000]
    assert capacity.reservations == {"x": (*one, *two), "y": two}
    capacity.forget(B)
    assert [each.free["cpu"] for each in capacity.nodes] == [3000, 4000]
    assert capacity.nodes[1] == node("y", 4000)


def test_a_node_is_made_anew_only_where_something_has_changed() -> None:
    standing = [node(f"n{number}", 4000) for number in range(3)]
    capacity = ClusterCapacity(standing)
    capacity["n1"].assume(A, SPEC)
    first, second = capacity.nodes, capacity.nodes
    assert [one is other for one, other in zip(first, standing, strict=True)] == [True, False, True]
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_devices_are_assumed_and_given_back_like_resources() -> None:
    info = NodeInfo(node("n", 4000, devices=GPUS))
    three, all_of_it = spec(10, claims=claim(count=3)), spec(10, claims=claim(all=True))
    assert (info.most(three), info.has_room(all_of_it)) == (2, True)
    info.assume(A, three)
    assert (info.most(three), info.has_room(all_of_it)) == (1, False)
    assert info.node().devices == (devices("gpu", count=5, taken=3),)
    copied = info.copy()
    copied.assume(B, three)
    assert (copied.has_room(three), info.has_room(three)) == (False, True)
    info.forget(A)
    assert (info.most(three), info.node().devices) == (2, GPUS)
    assert not NodeInfo(node("bare", 4000)).has_room(three)


def test_what_is_assumed_is_not_planned_again_with_claims() -> None:
    info = NodeInfo(node("n", 4000, devices=GPUS))
    info.assume(A, spec(10, claims=claim(count=6)))
    plan = solve(
        Problem((PodSet("p", spec(10, claims=claim()), 3),), nodes=(info.node(),)), Budget(deterministic_seconds=0.5)
    )
    assert [each.count for each in plan.unplaced] == [1]
