"""Room that stays reserved for pods whose increment was released, and for ProvisioningRequests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cagrpc.api.core.nodes import HOSTNAME
from cagrpc.cluster.markers import booking_label
from cagrpc.cluster.node_info import RequestOwner, Reservation
from cagrpc.cluster.state import ClusterNode, ClusterState
from cagrpc.controllers.assume_cache.placements import DesiredPlacements, PlacedPods
from cagrpc.fleet.model import (
    FleetSnapshot,
    IncrementSpec,
    Placement,
)
from solver import solve
from solver.model import (
    CPU,
    PODS,
    Budget,
    DeviceAlternative,
    DeviceClaim,
    DeviceRequest,
    Devices,
    Node,
    PodSet,
    PodSpec,
    Problem,
    RunningPods,
)
from tests.support.fleet import FleetHarness, ScriptedNodes, group

NODES = 300


# Room that is kept for ProvisioningRequests.

BIG = PodSpec(((CPU, 3000),))
WHOLE_NODE = {CPU: 4000, "memory": 16 * 2**30, PODS: 110}
LABEL = booking_label("u1")
ATTACH = "attachable-volumes-csi-ebs.csi.aws.com"


def _node(name: str, labels: Mapping[str, str] | None = None) -> Node:
    return Node(name, WHOLE_NODE, {**(labels or {}), HOSTNAME: name}, ())


def _booked(state: ClusterState) -> dict[str, tuple[Reservation, ...]]:
    """As the bookings' owner has it: on every node that is seen with the label."""
    return {
        each.node.name: (Reservation(RequestOwner("u1"), BIG),) for each in state.nodes if LABEL in each.node.labels
    }


def _free(snapshot: FleetSnapshot, state: ClusterState) -> dict[str, int]:
    """CPU that is free for anybody, by node."""
    groups = tuple(each.group for each in snapshot.groups.values())
    placed = PlacedPods(state, snapshot, groups, DesiredPlacements(), _booked(state))
    return {node.name: node.free.get(CPU, 0) for node in placed.nodes}


def test_reserved_room_on_a_node_is_not_free_and_others_see_it() -> None:
    state = ClusterState(
        (), tuple(ClusterNode(n, n.name, True, False) for n in (_node("x", {LABEL: "true"}), _node("y"))), ()
    )
    snapshot = FleetSnapshot(1, {}, (), {})
    x, y = PlacedPods(state, snapshot, (), DesiredPlacements(), _booked(state)).nodes
    assert (x.free[CPU], x.free[PODS]) == (1000, 109)
    assert x.running == (RunningPods(BIG, 1),)
    assert y == _node("y")


def test_more_than_there_is_may_be_reserved() -> None:
    state = ClusterState((), (ClusterNode(_node("x"), "x", True, False),), ())
    snapshot = FleetSnapshot(1, {}, (), {})
    (x,) = PlacedPods(state, snapshot, (), DesiredPlacements(), {"x": (Reservation(RequestOwner("u1"), BIG, 2),)}).nodes
    assert x.free[CPU] == 0


class _Life:
    """An increment of one node for a request: the fleet's snapshots from first to last, and what the cluster shows of
    the node, from first to last."""

    def __init__(self) -> None:
        ready = ScriptedNodes()
        harness = FleetHarness([group("g")], options={"nodes": ready})
        fleet = harness.fleet()
        asked = IncrementSpec({"g": 1}, requests=frozenset({"u1"}), placements=(Placement("g", requests=("u1",)),))
        increment_id = fleet.apply(asked).id
        self.snapshots = [fleet.snapshot]
        harness.backend.hide_new = True
        fleet.reconcile()
        self.snapshots.append(fleet.snapshot)
        harness.backend.hidden.clear()
        fleet.reconcile()
        self.snapshots.append(fleet.snapshot)
        harness.backend.boot_all()
        fleet.reconcile()
        self.snapshots.append(fleet.snapshot)
        (self.instance,) = harness.backend.ids()
        ready.ready.add(self.instance)
        fleet.reconcile()
        self.snapshots.append(fleet.snapshot)
        self.ready = fleet.snapshot
        ready.ready.clear()  # its Node is away for a moment
        fleet.reconcile()
        self.snapshots.append(fleet.snapshot)
        fleet.release(increment_id)
        self.done = fleet.snapshot
        self.snapshots.append(fleet.snapshot)
        harness.clock.advance(3600)
        fleet.reconcile()
        self.snapshots.append(fleet.snapshot)
        self.restarted = harness.restart().snapshot
        self.snapshots.append(self.restarted)

    def cluster(self, *, ready: bool, held: bool, labelled: bool) -> ClusterState:
        node = _node("n", {LABEL: "true"} if labelled else {})
        return ClusterState((), (ClusterNode(node, self.instance, ready, held),), ())


def test_at_no_time_does_the_room_of_a_requests_new_node_look_free() -> None:
    """However far the view is behind what the fleet knows, or ahead of it."""
    life = _Life()
    seen = [
        ClusterState((), (), ()),
        life.cluster(ready=False, held=True, labelled=False),
        life.cluster(ready=True, held=True, labelled=False),
        life.cluster(ready=False, held=False, labelled=True),
        life.cluster(ready=True, held=False, labelled=True),
    ]
    for number, snapshot in enumerate(life.snapshots):
        for state in seen:
            found = _free(snapshot, state)
            # What the booking leaves is free once the node is seen let go, and with that the booking.
            assert sum(found.values()) <= (1000 if state is seen[-1] else 0), (number, state.nodes)
    for snapshot in (life.done, life.restarted):
        assert _free(snapshot, seen[-1]) == {"n": 1000}


def test_once_a_booking_is_over_its_room_is_anybodys() -> None:
    life = _Life()
    assert _free(life.done, life.cluster(ready=True, held=False, labelled=False)) == {"n": 4000}


def test_nodes_that_are_coming_for_a_request_are_there_but_full() -> None:
    life = _Life()
    groups = tuple(each.group for each in life.ready.groups.values())
    for snapshot, state in (
        (life.snapshots[0], ClusterState((), (), ())),
        (life.ready, ClusterState((), (), ())),
        (life.ready, life.cluster(ready=True, held=True, labelled=False)),
    ):
        (node,) = PlacedPods(state, snapshot, groups, DesiredPlacements()).nodes
        assert set(node.free.values()) == {0}
        assert not solve(
            Problem((PodSet("p", PodSpec(()), 1),), nodes=(node,)), Budget(deterministic_seconds=1.0)
        ).existing


def test_devices_and_attachments_of_daemon_sets_are_not_free_on_nodes_in_flight() -> None:
    claims = (DeviceClaim((DeviceRequest("gpu", (DeviceAlternative("any", 1),)),)),)
    daemon = PodSpec(((ATTACH, 1), (CPU, 500)), claims=claims)
    gpus = Devices(4, frozenset({"any"}))
    of = replace(group("g"), allocatable={**WHOLE_NODE, ATTACH: 3}, devices=(gpus,))
    life = _Life()

    def free(snapshot: FleetSnapshot, *standing: ClusterNode) -> Node:
        state = ClusterState((), standing, (daemon,))
        snapshot = replace(
            snapshot,
            requested_instances={},
            increments=tuple(
                replace(each, increment=replace(each.increment, requests=frozenset())) for each in snapshot.increments
            ),
        )
        (found,) = PlacedPods(state, snapshot, (of,), DesiredPlacements(), {}).nodes
        return found

    coming = free(life.snapshots[1])
    assert (coming.free[CPU], coming.free[ATTACH], [each.count for each in coming.devices]) == (3500, 2, [3])
    young = replace(_node("n"), free={**WHOLE_NODE, ATTACH: 3}, devices=(gpus,))
    there = free(life.ready, ClusterNode(young, life.instance, True, False))
    assert (there.free[CPU], there.free[ATTACH], [each.count for each in there.devices]) == (3500, 2, [3])
    assert there.devices[0].taken == 1
