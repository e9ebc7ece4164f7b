"""What changes or is lost while a round is planned."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc import errors
from cagrpc.controllers.planning.reasons import NOT_PLANNED
from cagrpc.fleet.model import IncrementSpec
from tests.support.controllers.planner import BOOT_SECONDS, Make
from tests.support.fleet import MemoryJournal, group
from tests.support.gpus import add_gang, gpu_group

SOON = BOOT_SECONDS / 2
LONG = 300.0


def test_pods_that_are_bound_while_planning_get_no_node(make: Make) -> None:
    world = make(group("a", cpu=4000))
    uids = world.add(2, cpu=4000)

    def bound() -> None:
        del world.cluster.pods[uids[0]]

    world.cluster.after_state = bound
    world.run(SOON)
    assert world.targets() == {"a": 1}
    (status,) = world.increments()
    assert status.increment.pods == {uids[1]}


def test_a_gang_that_loses_a_pod_while_planning_is_planned_anew(make: Make) -> None:
    world = make(gpu_group("gpu"), group("plain", price=0.1))
    add_gang(world, "train", plain=2, gpus=2)
    world.cluster.after_state = lambda: world.cluster.pods.pop("uid-4")
    world.run(LONG)
    assert world.targets() == {"plain": 1, "gpu": 2}
    assert not world.pending()


def test_a_node_that_goes_while_planning_is_made_up_for(make: Make) -> None:
    world = make(group("a", cpu=4000))
    first = world.add(1, cpu=4000)
    world.run(LONG)
    del world.cluster.pods[first[0]]
    world.cluster.scheduling = False
    world.add(1, cpu=4000)
    (instance,) = world.fleet.snapshot.groups["a"].instances
    world.cluster.after_state = lambda: world.fleet.delete_instances("a", [instance.id])
    world.run(2)
    world.cluster.scheduling = True
    world.run(LONG)
    assert not world.pending()
    assert world.targets() == {"a": 1}


def test_a_size_that_changes_while_planning_is_planned_with_at_once(make: Make) -> None:
    world = make(group("a", max_size=2), group("b", price=0.5))
    world.add(2, cpu=4000)
    world.cluster.after_state = lambda: world.fleet.apply(IncrementSpec({"a": 1}))
    world.run(SOON)
    assert world.targets() == {"a": 2, "b": 1} or world.targets() == {"a": 2}
    refused = [each for each in world.loop.plans()[0].increments if not each.id]
    assert ["maximum" in each.message for each in refused] == [True]
    told = {note.about.uid: note.text for note in world.notes if note.reason == NOT_PLANNED}
    assert told == dict.fromkeys(("uid-1", "uid-2"), f"2 x a was refused: {refused[0].message}")
    world.run(LONG)
    assert not world.pending()


def test_a_plan_is_thrown_away_when_the_cluster_is_lost_meanwhile(make: Make) -> None:
    world = make(group("a"))
    world.add(1)
    world.cluster.after_state = lambda: setattr(world.cluster, "problem", "watching pods")
    world.run(30)
    assert not world.increments()


def test_it_plans_nothing_after_stop(make: Make) -> None:
    world = make(group("a"))
    world.add(1)
    world.cluster.after_state = world.loop.stop
    world.run(30)
    assert not world.increments()


def test_it_waits_for_the_cluster_to_be_known(make: Make) -> None:
    world = make(group("a"))
    world.cluster.problem = "listing pods"
    world.add(1)
    world.run(10)
    assert world.loop.waits_for == "listing pods"
    world.cluster.problem = None
    world.run(LONG)
    assert not world.pending()


class BreakingJournal(MemoryJournal):
    """Breaks at the commit of an increment, once."""

    breaks = True

    def commit(self, changes: Any) -> None:
        if self.breaks and changes.increments:
            type(self).breaks = False
            raise errors.Unavailable("journal: out of reach")
        super().commit(changes)


def test_with_the_journal_out_of_reach_nothing_is_ordered_and_later_all_is(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    world = make(group("a"))
    assert isinstance(world.journal, MemoryJournal)
    world.journal.broken = True
    world.add(1)
    world.run(60)
    assert not world.backend.list_instances()
    assert sum("the planner loop failed and is tried again" in record.message for record in caplog.records) <= 1
    world.journal.broken = False
    world.run(LONG)
    assert not world.pending()
    assert world.targets() == {"a": 1}


def test_what_could_not_be_journalled_is_planned_again(make: Make) -> None:
    world = make(group("a"), group("b", price=0.1, cpu=8000))
    world.fleet.close()
    world.journal = BreakingJournal()
    world._start()
    world.add(1, cpu=3000)
    world.add(1, cpu=7000)
    world.run(LONG)
    assert not world.pending()
