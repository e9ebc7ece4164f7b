"""What is remembered of the last day, and how full nodes are."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cagrpc.cluster.state import ClusterNode
from cagrpc.controllers.overview import DAY_SECONDS, OverviewController, Sample, node_as_json, thinned
from cagrpc.errors import Unavailable
from cagrpc.fleet.backend_records import BackendRecords
from cagrpc.fleet.records import Changes
from solver.model import Node, NodeGroup
from tests.support.fleet import MemoryJournal
from tests.support.world import World

SMALL = NodeGroup("small", {"cpu": 4_000, "memory": 16 * 2**30, "pods": 110}, 0.2)


def _shown(controller: OverviewController, path: str) -> list[Any]:
    page = controller.pages()[path].get()
    return [page.as_json(each) for each in page.items]  # type: ignore[union-attr]


def _controller(world: World, journal: MemoryJournal) -> OverviewController:
    return OverviewController(world.fleet, world.view, BackendRecords(journal, "overview"), world.clock)


def test_what_it_costs_and_what_waits_is_sampled_and_known_after_a_restart() -> None:
    journal = MemoryJournal()
    with World(SMALL) as world:
        controller = _controller(world, journal)
        controller.step()
        world.cluster.add(3, cpu=1000)
        world.run(10)
        controller.step()
        world.run(60)
        controller.step()
        found = _shown(controller, "/history")
        assert [(each["usd_per_hour"], each["nodes"], each["waiting_pods"]) for each in found] == [
            (0, 0, 0),
            (0.2, 1, 3),
            (0.2, 1, 0),
        ]
        assert BackendRecords(journal).read() == {}  # a backend sees nothing of it
        controller.stop()
        after = _controller(world, MemoryJournal(journal.shelf))
        after.step()
        assert _shown(after, "/history")[:3] == found


def test_it_is_kept_every_five_minutes_and_what_cannot_be_kept_is_kept_later() -> None:
    journal = MemoryJournal()
    with World(SMALL) as world:
        controller = _controller(world, journal)
        controller.step()
        assert BackendRecords(journal, "overview").read() == {}
        world.clock.advance(300)
        journal.broken = True
        with pytest.raises(Unavailable):
            controller.step()
        journal.broken = False
        world.clock.advance(10)
        controller.step()
        assert len(BackendRecords(journal, "overview").read()["history"]["samples"]) == 3


def test_no_sample_is_taken_before_instances_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    with World(SMALL) as world:
        controller = _controller(world, MemoryJournal())
        with monkeypatch.context() as starting:
            starting.setattr(type(world.fleet), "problems", {"backend": "it was not reached yet"})
            controller.step()
        assert _shown(controller, "/history") == []
        controller.step()
        assert len(_shown(controller, "/history")) == 1


def test_without_a_cluster_nothing_is_said_of_pods() -> None:
    journal = MemoryJournal()
    with World(SMALL) as world:
        controller = OverviewController(world.fleet, None, BackendRecords(journal, "overview"), world.clock)
        controller.step()
        controller.stop(10)
        after = OverviewController(world.fleet, None, BackendRecords(journal, "overview"), world.clock)
        world.clock.advance(10)
        after.step()
        assert [each["waiting_pods"] for each in _shown(after, "/history")] == [None, None]
    two = [Sample(100, 1, 1, None), Sample(101, 1, 1, None)]
    assert [each.waiting_pods for each in thinned(two, 10_000)] == [None]


class _SlowJournal(MemoryJournal):
    """A journal that answers commits once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    def commit(self, changes: Changes) -> None:
        self.answers.wait(10)
        super().commit(changes)


def test_a_journal_that_does_not_answer_keeps_nobody_from_stopping() -> None:
    journal = _SlowJournal()
    with World(SMALL) as world:
        controller = _controller(world, journal)
        controller.step()
        controller.stop(0.0)
        controller.stop(0.01)
        assert BackendRecords(journal, "overview").read() == {}
        journal.answers.set()
        controller.stop(10)
        assert len(BackendRecords(journal, "overview").read()["history"]["samples"]) == 1


def test_nodes_say_how_full_they_are_and_which_increment_brought_them() -> None:
    with World(SMALL) as world:
        controller = _controller(world, MemoryJournal())
        world.cluster.add(3, cpu=1000)
        world.run(15)
        controller.step()
        world.run(60)
        (increment,) = world.increments()
        (node,) = _shown(controller, "/nodes")
        assert node["used"]["cpu"] == [3000, 4000]
        assert (node["node_group"], node["increment"], node["pods"]) == ("small", increment.id, 3)
        assert (node["ready"], node["held"]) == (True, False)


def test_any_gpu_is_among_what_a_node_is_full_of() -> None:
    there = {"aws.amazon.com/neuron": 16, "cpu": 4000, "example.com/gpu": 2}
    node = ClusterNode(
        Node("n", {"aws.amazon.com/neuron": 4, "cpu": 4000}, allocatable=there), "n", ready=True, held=False
    )
    assert node_as_json(node, "", "")["used"] == {"cpu": [0, 4000], "aws.amazon.com/neuron": [12, 16]}


def test_the_last_half_hour_is_kept_whole_and_the_day_before_it_by_five_minutes() -> None:
    now = 10 * DAY_SECONDS
    samples = [Sample(now - 10 * each, each, each, 9 if each == 1000 else 0) for each in range(20_000, -1, -1)]
    kept = thinned(samples, now)
    assert kept[0].at_seconds >= now - DAY_SECONDS
    assert len([each for each in kept if each.at_seconds >= now - 1800]) == 181
    assert len(kept) < 181 + 290
    assert max(each.waiting_pods or 0 for each in kept) == 9
    assert thinned(kept, now) == kept
    assert thinned([Sample(now + 60, 1, 1, 1)], now) == []  # of a clock that was set back
