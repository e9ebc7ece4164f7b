"""With a cluster: instances come with their Nodes, and a whole increment is held until it is released."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from cagrpc import errors
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import ExpectedPod, IncrementNode, IncrementSpec, Origin, Phase, Placement
from cagrpc.fleet.observation import KNOWN_AGAIN_SECONDS, UNKNOWN_GRACE_SECONDS
from tests.support.fleet import FleetHarness, MemoryJournal, ScriptedNodes, group, states, targets

PODS = frozenset({"p1", "p2", "p3"})
PLACEMENTS = (Placement("b", ("p3",)), Placement("a", ("p1",)), Placement("a", ("p2",)))


class ReadyNodesHarness(FleetHarness):
    """Two groups, and a cluster."""

    def __init__(self) -> None:
        self.nodes = ScriptedNodes()
        super().__init__(groups=[group("a", min_size=0), group("b")], options={"nodes": self.nodes})

    def creating(self, origin: Origin = Origin.CAGRPC) -> tuple[Fleet, str]:
        """An increment of two of `a` and one of `b`, or of three of `a` where CA asks, ordered."""
        fleet = self.fleet()
        if origin is Origin.CAGRPC:
            increment = IncrementSpec({"a": 2, "b": 1}, origin, PODS, placements=PLACEMENTS)
        else:
            increment = IncrementSpec({"a": 3}, origin, PODS)
        key = fleet.apply(increment).id
        fleet.reconcile()
        return fleet, key

    def ready(self) -> tuple[Fleet, str]:
        fleet, key = self.creating()
        self.register_all()
        fleet.reconcile()
        assert fleet.increment(key).phase is Phase.READY
        return fleet, key

    def ready_but_for_labels(self) -> tuple[Fleet, str]:
        fleet, key = self.creating()
        self.register_all()
        fleet.reconcile()
        return fleet, key

    def register_all(self) -> None:
        self.backend.boot_all()
        self.nodes.ready.update(self.backend.ids())


@pytest.fixture
def harness() -> ReadyNodesHarness:
    return ReadyNodesHarness()


# Ready.


def test_an_instance_comes_when_it_runs_and_its_node_is_ready(harness: ReadyNodesHarness) -> None:
    fleet, key = harness.creating()
    first, second, third = harness.backend.ids()
    harness.nodes.ready = {first, second, third}
    harness.backend.boot(first)
    harness.backend.boot(second)
    fleet.reconcile()
    assert fleet.increment(key).message == "instances running: 2 of 3; nodes ready: 2"
    harness.backend.boot(third)
    harness.nodes.ready = {first, third, "somebody-else://node"}
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.CREATING
    assert fleet.increment(key).message == "instances running: 3 of 3; nodes ready: 2"
    assert states(fleet.snapshot, "a") == ["running", "running"]
    harness.nodes.ready.add(second)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.READY


def test_a_ready_increment_names_its_nodes_and_the_pods_planned_for_each(harness: ReadyNodesHarness) -> None:
    fleet, key = harness.ready()
    a1, a2, b1 = harness.backend.ids()
    status = fleet.increment(key)
    assert status.held == (
        IncrementNode(f"{key}/a/0", "a", a1, ("p1",)),
        IncrementNode(f"{key}/a/1", "a", a2, ("p2",)),
        IncrementNode(f"{key}/b/0", "b", b1, ("p3",)),
    )
    assert status.message == "waits until 3 nodes can be released"
    assert status in fleet.snapshot.increments
    assert fleet.snapshot.held_instances == {a1, a2, b1}
    assert fleet.snapshot.in_flight_pods == PODS


def test_the_nodes_of_an_increment_have_names_before_they_have_instances(harness: ReadyNodesHarness) -> None:
    fleet = harness.fleet()
    asked = IncrementSpec({"a": 2}, placements=(Placement("a", ("p1",)), Placement("a", (ExpectedPod("Job/ns/j", 0),))))
    key = fleet.apply(asked).id
    first, second = (
        IncrementNode(f"{key}/a/0", "a", "", ("p1",)),
        IncrementNode(f"{key}/a/1", "a", "", (ExpectedPod("Job/ns/j", 0),)),
    )
    assert (fleet.increment(key).nodes, fleet.increment(key).held) == ((first, second), ())
    fleet.reconcile()
    a1, a2 = harness.backend.ids()
    known = (replace(first, instance_id=a1), replace(second, instance_id=a2))
    assert (fleet.increment(key).phase, fleet.increment(key).nodes) == (Phase.CREATING, known)
    fleet.delete_instances("a", [a1])
    assert fleet.increment(key).nodes == known[1:]
    harness.register_all()
    fleet.reconcile()
    assert (fleet.increment(key).phase, fleet.increment(key).held) == (Phase.READY, known[1:])
    fleet.release(key)
    assert fleet.increment(key).nodes == ()


def test_members_without_a_placement_are_held_for_nobody(harness: ReadyNodesHarness) -> None:
    fleet = harness.fleet()
    key = fleet.apply(IncrementSpec({"a": 2}, placements=(Placement("a", ("p1", "p2")),))).id
    fleet.reconcile()
    harness.register_all()
    fleet.reconcile()
    assert [node.pods for node in fleet.increment(key).held] == [("p1", "p2"), ()]


def test_a_machine_is_held_from_its_first_observation_until_its_increment_is_released(
    harness: ReadyNodesHarness,
) -> None:
    fleet, key = harness.creating()
    assert fleet.snapshot.held_instances == set(harness.backend.ids()) == fleet.snapshot.group_of_instance.keys()
    harness.register_all()
    fleet.reconcile()
    fleet.release(key)
    assert fleet.snapshot.held_instances == frozenset()
    assert len(fleet.snapshot.group_of_instance) == 3


def test_without_a_cluster_ready_is_done_and_nothing_is_held() -> None:
    harness = FleetHarness(groups=[group("a")])
    fleet = harness.fleet()
    key = fleet.apply(IncrementSpec({"a": 1})).id
    fleet.reconcile()
    harness.backend.boot_all()
    fleet.reconcile()
    assert (fleet.increment(key).phase, fleet.increment(key).held) == (Phase.DONE, ())
    assert fleet.snapshot.held_instances == frozenset()
    fleet.release(key)


# Held.


def test_letting_go_is_journalled_first_and_may_be_repeated(harness: ReadyNodesHarness) -> None:
    fleet, key = harness.ready()
    assert isinstance(harness.journal, MemoryJournal)
    harness.journal.broken = True
    with pytest.raises(errors.Unavailable):
        fleet.release(key)
    assert fleet.increment(key).phase is Phase.READY
    harness.journal.broken = False
    fleet.release(key)
    assert fleet.increment(key).phase is Phase.DONE
    assert fleet.snapshot.in_flight_pods == frozenset()
    writes = len(harness.journal.commits)
    fleet.release(key)
    assert len(harness.journal.commits) == writes
    assert harness.restart().increment(key).phase is Phase.DONE


def test_only_a_ready_increment_can_be_let_go(harness: ReadyNodesHarness) -> None:
    fleet, key = harness.creating()
    with pytest.raises(errors.FailedPrecondition, match="is creating; only a ready one"):
        fleet.release(key)
    with pytest.raises(errors.NotFound, match='"nope" not found'):
        fleet.release("nope")


def test_a_ready_increment_is_held_on_after_a_restart(harness: ReadyNodesHarness) -> None:
    fleet, key = harness.ready()
    before = fleet.increment(key)
    harness.backend.unreachable = True
    fleet = harness.restart()
    with pytest.raises(errors.Unavailable, match="not reached yet"):  # Nobody knows which nodes there are.
        fleet.release(key)
    harness.backend.unreachable = False
    harness.clock.advance(10_000)
    fleet.reconcile()
    assert fleet.increment(key) == before
    fleet.release(key)
    assert fleet.increment(key).phase is Phase.DONE


def test_without_its_cluster_a_ready_increment_is_done_at_the_next_start(harness: ReadyNodesHarness) -> None:
    _, key = harness.ready()
    harness.options = {}
    assert harness.restart().increment(key).phase is Phase.DONE


def test_a_ready_increment_is_never_rolled_back(harness: ReadyNodesHarness) -> None:
    fleet, key = harness.ready()
    harness.nodes.ready.clear()
    harness.clock.advance(10_000)
    fleet.reconcile()
    harness.nodes.unknown = True
    harness.clock.advance(10_000)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.READY
    assert len(fleet.increment(key).held) == 3
    assert harness.backend.executed_deletes == []


def test_a_node_that_vanishes_or_is_deleted_while_it_is_held_is_let_go_of(harness: ReadyNodesHarness) -> None:
    fleet, key = harness.ready()
    a1, a2, b1 = harness.backend.ids()
    harness.backend.vanish(a1)
    fleet.reconcile()
    assert fleet.increment(key).held == (
        IncrementNode(f"{key}/a/1", "a", a2, ("p2",)),
        IncrementNode(f"{key}/b/0", "b", b1, ("p3",)),
    )
    assert fleet.snapshot.in_flight_pods == {"p2", "p3"}
    assert targets(fleet.snapshot) == {"a": 1, "b": 1}
    fleet.delete_instances("b", [b1])
    assert fleet.increment(key).held == (IncrementNode(f"{key}/a/1", "a", a2, ("p2",)),)
    assert fleet.snapshot.in_flight_pods == {"p2"}
    fleet.reconcile()
    assert harness.backend.executed_deletes == [b1]
    assert fleet.increment(key).phase is Phase.READY
    harness.backend.finish_deletes()
    harness.backend.vanish(a2)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.DONE
    assert fleet.increment(key).message == "all of its instances are gone"
    assert fleet.snapshot.in_flight_pods == frozenset()


# Late, lost, unknown.


@pytest.mark.parametrize("origin", list(Origin))
def test_a_node_that_is_not_ready_by_the_deadline_fails_its_increment(
    harness: ReadyNodesHarness, origin: Origin
) -> None:
    fleet, key = harness.creating(origin)
    harness.register_all()
    late = harness.backend.ids()[2]
    harness.nodes.ready.remove(late)
    harness.clock.advance(599)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.CREATING
    harness.clock.advance(1)
    fleet.reconcile()
    status = fleet.increment(key)
    assert status.phase is Phase.ROLLING_BACK
    assert status.message == "not whole after 600 s: instances running: 3 of 3; nodes ready: 2"
    assert status.short_groups == (("b",) if origin is Origin.CAGRPC else ("a",))
    assert sorted(harness.backend.executed_deletes) == sorted(harness.backend.ids())
    assert fleet.snapshot.held_instances == set(harness.backend.ids())  # Nothing lands on what has to go.
    assert states(fleet.snapshot, "a") == (["deleting"] * 2 if origin is Origin.CAGRPC else ["failed"] * 3)


def test_a_node_that_is_lost_again_before_the_increment_is_whole_is_waited_for(harness: ReadyNodesHarness) -> None:
    fleet, key = harness.creating()
    first, second, third = harness.backend.ids()
    harness.backend.boot(first)
    harness.nodes.ready = {first}
    fleet.reconcile()
    harness.backend.boot_all()
    harness.nodes.ready = {second, third}
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.CREATING
    harness.nodes.ready.add(first)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.READY


def test_of_an_unknown_cluster_nothing_is_taken_for_ready_or_late(
    harness: ReadyNodesHarness, caplog: pytest.LogCaptureFixture
) -> None:
    fleet, key = harness.creating()
    harness.register_all()
    harness.nodes.unknown = True
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            fleet.reconcile()
    assert [record.message for record in caplog.records] == ["the cluster is unreachable: API server: out of reach"]
    assert fleet.problem == "the cluster is unreachable: API server: out of reach"
    assert fleet.increment(key).message == "instances running: 3 of 3; the cluster is unreachable"
    harness.clock.advance(400)
    harness.nodes.unknown = False
    harness.nodes.ready.clear()
    fleet.reconcile()
    assert fleet.problem is None
    harness.nodes.unknown = True
    harness.clock.advance(200)
    fleet.reconcile()
    harness.clock.advance(UNKNOWN_GRACE_SECONDS - 1)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.CREATING
    harness.nodes.unknown = False
    harness.register_all()
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.READY


def test_after_an_outage_late_nodes_have_as_long_to_come_but_a_minute_at_most(harness: ReadyNodesHarness) -> None:
    fleet, key = harness.creating()
    harness.backend.boot_all()
    harness.clock.advance(580)
    harness.nodes.unknown = True
    fleet.reconcile()
    harness.clock.advance(40)
    fleet.reconcile()
    harness.nodes.unknown = False  # what could not register yet does so now
    fleet.reconcile()
    harness.clock.advance(39)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.CREATING
    harness.nodes.unknown = True
    fleet.reconcile()
    harness.clock.advance(200)
    harness.nodes.unknown = False
    fleet.reconcile()
    harness.clock.advance(KNOWN_AGAIN_SECONDS - 1)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.CREATING
    harness.clock.advance(1)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.ROLLING_BACK


def test_a_cluster_that_stays_unknown_does_not_hold_up_the_deadline_for_ever(harness: ReadyNodesHarness) -> None:
    fleet, key = harness.creating()
    harness.backend.boot(harness.backend.ids()[2])
    harness.nodes.unknown = True
    harness.clock.advance(600)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.CREATING
    harness.clock.advance(UNKNOWN_GRACE_SECONDS)
    fleet.reconcile()
    status = fleet.increment(key)
    assert status.phase is Phase.ROLLING_BACK
    assert status.message == "not whole after 600 s: instances running: 1 of 3; the cluster is unreachable"
    assert status.short_groups == ("a",)  # The one of b runs; that its Node is not seen is no shortage.


def test_failures_that_the_backend_reports_need_no_cluster(harness: ReadyNodesHarness) -> None:
    fleet, key = harness.creating()
    harness.nodes.unknown = True
    harness.backend.fail(harness.backend.ids()[2])
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.ROLLING_BACK


# Which groups were short.


def test_the_groups_of_failed_and_vanished_machines_are_short(harness: ReadyNodesHarness) -> None:
    fleet, key = harness.creating()
    a1, _, b1 = harness.backend.ids()
    harness.backend.fail(b1)
    harness.backend.vanish(a1)
    fleet.reconcile()
    assert fleet.increment(key).short_groups == ("a", "b")
    assert harness.restart().increment(key).short_groups == ("a", "b")


def test_the_groups_that_the_backend_refuses_are_short(harness: ReadyNodesHarness) -> None:
    fleet = harness.fleet()
    harness.backend.refused_groups = {"b"}
    key = fleet.apply(IncrementSpec({"a": 2, "b": 1})).id
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.ROLLED_BACK
    assert fleet.increment(key).short_groups == ("b",)


def test_a_refusal_that_names_no_group_may_be_any(harness: ReadyNodesHarness) -> None:
    fleet = harness.fleet()
    key = fleet.apply(IncrementSpec({"a": 2, "b": 1})).id

    def refuse() -> None:
        raise errors.OutOfCapacity("no more of anything")

    harness.backend.before_order = refuse
    fleet.reconcile()
    assert fleet.increment(key).short_groups == ("a", "b")


# drive: plan.


def test_where_the_planner_decides_ca_gets_no_more_than_the_minimum() -> None:
    harness = FleetHarness(
        groups=[group("a", min_size=2, max_size=3), group("b")], options={"autoscaler_may_grow": False}
    )
    harness.backend.unreachable_groups = {"a"}
    fleet = harness.fleet()
    assert targets(fleet.snapshot) == {"a": 2}
    for deltas in ({"a": 1}, {"b": 1}, {"a": 9}):
        with pytest.raises(errors.FailedPrecondition, match="drive: plan: the planner decides on scale-ups"):
            fleet.apply(IncrementSpec(deltas, Origin.AUTOSCALER))
    with pytest.raises(errors.OutOfRange):
        fleet.apply(IncrementSpec({"a": 9}))
    fleet.apply(IncrementSpec({"a": 1, "b": 2}))
    assert targets(fleet.snapshot) == {"a": 3, "b": 2}


def test_where_the_planner_decides_ca_may_still_fill_up_to_the_minimum_and_delete() -> None:
    harness = FleetHarness(groups=[group("a", min_size=2)], options={"autoscaler_may_grow": False})
    harness.backend.refused_groups = {"a"}
    fleet = harness.fleet()  # It has tried by itself, and waits before it tries again.
    fleet.reconcile()
    assert targets(fleet.snapshot) == {}
    fleet.apply(IncrementSpec({"a": 2}, Origin.AUTOSCALER))
    assert targets(fleet.snapshot) == {"a": 2}
    fleet.reconcile()
    assert states(fleet.snapshot, "a") == ["failed", "failed"]
    fleet.decrease_target("a", -1)
    fleet.delete_instances("a", [fleet.snapshot.groups["a"].instances[0].id])
    assert targets(fleet.snapshot) == {}


def test_before_the_first_observation_nothing_of_a_ready_increment_counts_as_lost(harness: ReadyNodesHarness) -> None:
    """A new process that does not reach the backend: the pods are served by nodes that it cannot see yet."""
    harness.ready()
    harness.backend.unreachable = True
    fleet = harness.fleet()
    assert fleet.snapshot.in_flight_pods == PODS
    assert fleet.problem is not None


# Labels that come late.


def test_a_node_is_ready_with_all_of_its_labels_and_of_other_groups_without() -> None:
    harness = ReadyNodesHarness()
    harness.groups = [
        replace(group("a"), labels={"gpu": "a", "zone": "b"}, post_registration_labels=frozenset({"gpu"})),
        group("b"),
    ]
    fleet, key = harness.ready_but_for_labels()
    first, second, third = harness.backend.ids()
    assert fleet.increment(key).phase is Phase.CREATING
    harness.nodes.labels_of = {first: {"gpu": "a"}, second: {"zone": "b"}}
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.CREATING
    assert third not in harness.nodes.labels_of
    harness.nodes.labels_of[second] = {"gpu": "a", "more": ""}
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.READY


def test_labels_that_never_come_are_a_deadline_missed() -> None:
    harness = ReadyNodesHarness()
    harness.groups = [replace(group("a"), labels={"gpu": "a"}, post_registration_labels=frozenset({"gpu"})), group("b")]
    fleet, key = harness.ready_but_for_labels()
    harness.clock.advance(601)
    fleet.reconcile()
    found = fleet.increment(key)
    assert found.phase in (Phase.ROLLING_BACK, Phase.ROLLED_BACK)
    assert "nodes ready: 1" in found.message
