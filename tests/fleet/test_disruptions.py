"""Disruptions in the journal: begun with their new nodes and ended with the deletion of their old ones, each in one
commit; one at a time; the last ones remembered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cagrpc import errors
from cagrpc.fleet.disruptions import KEPT, DisruptionSpec
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import (
    DisruptedNode,
    Disruption,
    DisruptionPhase,
    IncrementSpec,
    InstanceState,
    Phase,
    PodMove,
)
from solver.model import Limit
from tests.support.fleet import FleetHarness, MemoryJournal, ScriptedNodes, group, states, targets


class Scene(FleetHarness):
    """Three nodes of `a`, whose minimum is 1; `b` can be had."""

    def __init__(self) -> None:
        self.nodes = ScriptedNodes()
        super().__init__(
            groups=[group("a", min_size=1), group("b", max_size=3)],
            limits=[Limit("nodes", {"nodes": 6})],
            options={"nodes": self.nodes},
        )
        fleet = self.fleet()
        fleet.apply(IncrementSpec({"a": 2}))
        for _ in range(2):
            fleet.reconcile()
            self.boot(fleet)
        for each in fleet.snapshot.increments:
            fleet.release(each.id)
        fleet.reconcile()

    def boot(self, fleet: Fleet) -> None:
        self.backend.boot_all()
        self.nodes.ready.update(self.backend.ids())
        fleet.reconcile()

    @property
    def writes(self) -> int:
        assert isinstance(self.journal, MemoryJournal)
        return len(self.journal.commits)

    def spec(self, count: int = 2, new: dict[str, int] | None = None) -> DisruptionSpec:
        nodes = tuple(DisruptedNode(f"node-{n}", key, "a") for n, key in enumerate(self.backend.ids("a")[:count]))
        moves = (
            PodMove("uid-1", "default", "web-1", "ReplicaSet/default/web", "b/0" if new else "node-9"),
            PodMove("uid-2", "default", "web-2", "ReplicaSet/default/web", "node-9"),
        )
        return DisruptionSpec("Underutilized", nodes, moves, IncrementSpec(new) if new else None, 0.5, 900.0)


def phase_is(found: Disruption, phase: DisruptionPhase) -> Disruption:
    return replace(found, phase=phase)


def test_it_begins_with_its_new_nodes_in_one_commit() -> None:
    scene = Scene()
    fleet, before = scene.current, scene.writes
    found = fleet.disruptions.begin(scene.spec(new={"b": 1}))
    assert scene.writes == before + 1
    assert fleet.snapshot.disruption == found
    assert fleet.increment(found.increment_id).phase is Phase.PLANNED
    assert [each.target for each in found.moves] == [f"{found.increment_id}/b/0", "node-9"]
    assert (found.pods, found.deadline_at_seconds - found.created_at_seconds) == (2, 900.0)
    fleet.reconcile()
    assert fleet.increment(found.increment_id).nodes[0].name == found.moves[0].target
    assert scene.restart().snapshot.disruption == found


def test_without_new_nodes_there_is_no_increment() -> None:
    scene = Scene()
    increments = len(scene.current.snapshot.increments)
    found = scene.current.disruptions.begin(scene.spec())
    assert found.increment_id == ""
    assert len(scene.current.snapshot.increments) == increments


@pytest.mark.parametrize(
    ("asked", "error", "match"),
    [
        (lambda scene: scene.spec(3), errors.FailedPrecondition, "0 nodes would be left, fewer than its minimum of 1"),
        (lambda scene: scene.spec(new={"b": 4}), errors.OutOfRange, "maximum of 3"),
        (lambda scene: scene.spec(new={"b": 3, "a": 1}), errors.LimitExceeded, "limit nodes"),
        (lambda scene: scene.spec(new={"c": 1}), errors.NotFound, '"c" does not exist'),
        (
            lambda scene: replace(scene.spec(), nodes=(DisruptedNode("node-x", "x", "a"),)),
            errors.FailedPrecondition,
            "node node-x: x is not a running instance of a",
        ),
    ],
)
def test_what_is_not_admitted_leaves_nothing_behind(
    asked: Callable[[Scene], DisruptionSpec], error: type[Exception], match: str
) -> None:
    scene = Scene()
    before, snapshot = scene.writes, scene.current.snapshot
    with pytest.raises(error, match=match):
        scene.current.disruptions.begin(asked(scene))
    assert scene.writes == before
    assert scene.current.snapshot is snapshot


def test_new_nodes_of_a_group_make_up_for_old_ones() -> None:
    scene = Scene()
    scene.current.disruptions.begin(scene.spec(3, new={"a": 1}))


def test_there_is_one_at_a_time() -> None:
    scene = Scene()
    first = scene.current.disruptions.begin(scene.spec(1))
    with pytest.raises(errors.FailedPrecondition, match=f"disruption {first.id} is under way"):
        scene.current.disruptions.begin(scene.spec(1))
    scene.current.disruptions.change(phase_is(first, DisruptionPhase.UNDONE))
    assert scene.current.disruptions.begin(scene.spec(1)).id != first.id


def test_it_ends_with_its_old_nodes_in_one_commit() -> None:
    scene = Scene()
    fleet = scene.current
    found = fleet.disruptions.begin(scene.spec())
    doomed = [each.instance_id for each in found.nodes]
    fleet.disruptions.change(phase_is(found, DisruptionPhase.MOVING))
    before = scene.writes
    fleet.disruptions.change(phase_is(found, DisruptionPhase.DONE), delete=[*doomed, "gone long ago"])
    assert scene.writes == before + 1
    assert fleet.snapshot.disruption is None
    (ended,) = fleet.snapshot.disruptions
    assert (ended.phase, ended.moves, ended.pods) == (DisruptionPhase.DONE, (), 2)
    assert ended.finished_at_seconds == scene.clock()
    assert targets(fleet.snapshot) == {"a": 1}
    fleet.reconcile()
    assert sorted(scene.backend.executed_deletes) == sorted(doomed)
    assert states(fleet.snapshot, "a").count(InstanceState.RUNNING) == 1


def test_below_a_minimum_nothing_is_deleted_and_nothing_ended() -> None:
    scene = Scene()
    fleet = scene.current
    found = fleet.disruptions.begin(scene.spec())
    fleet.delete_instances("a", [scene.backend.ids("a")[2]])
    before = scene.writes
    with pytest.raises(errors.FailedPrecondition, match="minimum of 1"):
        fleet.disruptions.change(
            phase_is(found, DisruptionPhase.DONE), delete=[each.instance_id for each in found.nodes]
        )
    assert scene.writes == before
    assert fleet.snapshot.disruption == found


def test_one_that_has_ended_stays_as_it_is() -> None:
    scene = Scene()
    found = scene.current.disruptions.begin(scene.spec())
    scene.current.disruptions.change(phase_is(found, DisruptionPhase.UNDONE))
    before = scene.writes
    scene.current.disruptions.change(phase_is(found, DisruptionPhase.MOVING))
    scene.current.disruptions.change(replace(found, id="never was"))
    assert scene.writes == before


def test_the_last_ones_are_remembered() -> None:
    scene = Scene()
    ids = []
    for _ in range(KEPT + 3):
        scene.clock.advance(1)
        found = scene.current.disruptions.begin(scene.spec(1))
        scene.current.disruptions.change(phase_is(found, DisruptionPhase.UNDONE))
        ids.append(found.id)
    assert [each.id for each in scene.current.snapshot.disruptions] == ids[-KEPT:]
    assert [each.id for each in scene.restart().snapshot.disruptions] == ids[-KEPT:]


def test_of_its_time_at_least_half_is_left_after_a_restart_whatever_the_clocks_say() -> None:
    scene = Scene()
    found = scene.current.disruptions.begin(scene.spec(1))
    scene.clock.advance(3600)
    kept = scene.restart().snapshot.disruption
    assert kept is not None
    assert kept.deadline_at_seconds == scene.clock() + 450
    scene.clock.advance(-7200)
    kept = scene.restart().snapshot.disruption
    assert kept is not None
    assert kept.created_at_seconds == scene.clock()
    assert kept.deadline_at_seconds <= scene.clock() + 2 * (found.deadline_at_seconds - found.created_at_seconds) + 3600


def test_a_journal_out_of_reach_changes_nothing() -> None:
    scene = Scene()
    assert isinstance(scene.journal, MemoryJournal)
    scene.journal.broken = True
    with pytest.raises(errors.Unavailable):
        scene.current.disruptions.begin(scene.spec(new={"b": 1}))
    scene.journal.broken = False
    assert scene.current.snapshot.disruption is None
    found = scene.current.disruptions.begin(scene.spec(new={"b": 1}))
    scene.journal.broken = True
    with pytest.raises(errors.Unavailable):
        scene.current.disruptions.change(phase_is(found, DisruptionPhase.MOVING))
    assert scene.current.snapshot.disruption == found
