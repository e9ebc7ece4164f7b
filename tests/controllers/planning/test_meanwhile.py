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
    harness = make(group("a", cpu=4000))
    uids = harness.add(2, cpu=4000)

    def bound() -> None:
        del harness.cluster.pods[uids[0]]

    harness.cluster.after_state = bound
    harness.run(SOON)
    assert harness.targets() == {"a": 1}
    (status,) = harness.increments()
    assert status.increment.pods == {uids[1]}


def test_a_gang_that_loses_a_pod_while_planning_is_planned_anew(make: Make) -> None:
    harness = make(gpu_group("gpu"), group("plain", price=0.1))
    add_gang(harness, "train", plain=2, gpus=2)
    harness.cluster.after_state = lambda: harness.cluster.pods.pop("uid-4")
    harness.run(LONG)
    assert harness.targets() == {"plain": 1, "gpu": 2}
    assert not harness.pending()


def test_a_node_that_goes_while_planning_is_made_up_for(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    first = harness.add(1, cpu=4000)
    harness.run(LONG)
    del harness.cluster.pods[first[0]]
    harness.cluster.scheduling = False
    harness.add(1, cpu=4000)
    (instance,) = harness.fleet.snapshot.groups["a"].instances
    harness.cluster.after_state = lambda: harness.fleet.delete_instances("a", [instance.id])
    harness.run(2)
    harness.cluster.scheduling = True
    harness.run(LONG)
    assert not harness.pending()
    assert harness.targets() == {"a": 1}


def test_a_size_that_changes_while_planning_is_planned_with_at_once(make: Make) -> None:
    harness = make(group("a", max_size=2), group("b", price=0.5))
    harness.add(2, cpu=4000)
    harness.cluster.after_state = lambda: harness.fleet.apply(IncrementSpec({"a": 1}))
    harness.run(SOON)
    assert harness.targets() == {"a": 2, "b": 1} or harness.targets() == {"a": 2}
    refused = [each for each in harness.loop.plans()[0].increments if not each.id]
    assert ["maximum" in each.message for each in refused] == [True]
    reported = {note.about.uid: note.text for note in harness.notes if note.reason == NOT_PLANNED}
    assert reported == dict.fromkeys(("uid-1", "uid-2"), f"2 x a was refused: {refused[0].message}")
    harness.run(LONG)
    assert not harness.pending()


def test_a_plan_is_thrown_away_when_the_cluster_is_lost_meanwhile(make: Make) -> None:
    harness = make(group("a"))
    harness.add(1)
    harness.cluster.after_state = lambda: setattr(harness.cluster, "problem", "watching pods")
    harness.run(30)
    assert not harness.increments()


def test_it_plans_nothing_after_stop(make: Make) -> None:
    harness = make(group("a"))
    harness.add(1)
    harness.cluster.after_state = harness.loop.stop
    harness.run(30)
    assert not harness.increments()


def test_it_waits_for_the_cluster_to_be_known(make: Make) -> None:
    harness = make(group("a"))
    harness.cluster.problem = "listing pods"
    harness.add(1)
    harness.run(10)
    assert harness.loop.waits_for == "listing pods"
    harness.cluster.problem = None
    harness.run(LONG)
    assert not harness.pending()


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
    harness = make(group("a"))
    assert isinstance(harness.journal, MemoryJournal)
    harness.journal.broken = True
    harness.add(1)
    harness.run(60)
    assert not harness.backend.list_instances().instances
    assert sum("the planner loop failed and is tried again" in record.message for record in caplog.records) <= 1
    harness.journal.broken = False
    harness.run(LONG)
    assert not harness.pending()
    assert harness.targets() == {"a": 1}


def test_what_could_not_be_journalled_is_planned_again(make: Make) -> None:
    harness = make(group("a"), group("b", price=0.1, cpu=8000))
    harness.fleet.close()
    harness.journal = BreakingJournal()
    harness._start()
    harness.add(1, cpu=3000)
    harness.add(1, cpu=7000)
    harness.run(LONG)
    assert not harness.pending()
