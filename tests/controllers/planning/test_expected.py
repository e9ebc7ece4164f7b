"""Pods that workloads have yet to create are planned with existing ones: once, for the nodes that they go to when they
come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cagrpc.controllers.planning.reasons import PLANNED
from cagrpc.errors import FailedPrecondition
from cagrpc.fleet.model import ExpectedPod, Phase
from tests.support.controllers.planner import BOOT_SECONDS, PlannerHarness
from tests.support.fleet import group

WEB, BATCH = "Deployment/ns/web", "Job/ns/batch"
SOON = BOOT_SECONDS / 2
LONG = 300.0
Make = Callable[..., PlannerHarness]


@pytest.fixture
def make() -> Iterator[Make]:
    harnesses: list[PlannerHarness] = []

    def made(*groups: Any, **more: Any) -> PlannerHarness:
        harnesses.append(PlannerHarness(groups or [group("a", cpu=4000), group("b", cpu=10000, price=0.24)], **more))
        return harnesses[-1]

    yield made
    for harness in harnesses:
        harness.close()


def _trickle(harness: PlannerHarness, workload: str, seconds: float = 5.0) -> None:
    while harness.cluster.to_come[workload][1]:
        harness.create(workload)
        harness.run(seconds)


def test_one_round_plans_them_all_and_each_goes_where_one_was_planned(make: Make) -> None:
    harness = make()
    harness.want(WEB, 10)
    harness.create(WEB, 2)
    harness.run(SOON)
    (record,) = harness.loop.plans()
    assert (record.pods, harness.targets()) == (10, {"b": 1})
    _trickle(harness, WEB)
    harness.run(LONG)
    assert not harness.pending()
    assert harness.targets() == {"b": 1}
    assert len(harness.loop.plans()) == 1


def test_without_any_pod_that_waits_a_round_begins_all_the_same(make: Make) -> None:
    harness = make()
    harness.want(WEB, 3)
    harness.run(SOON)
    assert harness.targets() == {"a": 1}
    assert not harness.notes
    harness.create(WEB, 3)
    harness.run(LONG)
    assert not harness.pending()


def test_a_node_is_held_until_all_of_its_pods_are_there(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    harness.want(WEB, 4)
    first = harness.create(WEB, 3)
    harness.run(LONG)
    assert set(first) == set(harness.pending())
    harness.add(1)  # would take the last one's room
    harness.run(SOON)
    assert harness.targets() == {"a": 2}
    harness.create(WEB)
    harness.run(LONG)
    assert not harness.pending()
    assert len({harness.cluster.pods[uid].node for uid in first}) == 1


def test_nodes_of_others_are_released_meanwhile(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    harness.want(WEB, 8)
    harness.create(WEB, 4)
    harness.run(LONG)
    assert len(harness.pending()) == 0
    assert harness.targets() == {"a": 2}
    assert [each.phase for each in harness.increments()] == [Phase.READY]


def test_nodes_for_pods_that_never_come_are_not_kept(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    harness.want(WEB, 8)
    harness.create(WEB, 3)
    harness.run(LONG)
    harness.cluster.to_come.clear()  # given up
    harness.run(LONG)
    assert not harness.pending()
    assert harness.targets() == {"a": 1}
    assert [each.phase for each in harness.increments()] == [Phase.DONE]


def test_where_their_nodes_may_not_be_deleted_they_are_released(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def below_the_minimum(*_: object) -> None:
        raise FailedPrecondition("node group a: the minimum is 2")

    harness = make(group("a", cpu=4000))
    harness.want(WEB, 8)
    harness.run(LONG)
    monkeypatch.setattr(harness.fleet, "delete_instances", below_the_minimum)
    harness.cluster.to_come.clear()
    harness.run(LONG)
    assert harness.targets() == {"a": 2}
    assert not harness.cluster.held_nodes()


def test_pods_that_come_while_they_are_planned_are_who_the_increment_is_for(make: Make) -> None:
    harness = make()
    harness.want(WEB, 3)
    harness.run(0.5)
    came: list[str] = []
    harness.cluster.after_state = lambda: came.extend(harness.create(WEB, 2))
    harness.run(SOON)
    (status,) = harness.increments()
    assert len(came) == 2
    assert status.increment.pods == {*came, ExpectedPod("Deployment/ns/web", 0)}
    assert {note.about.uid for note in harness.notes if note.reason == PLANNED} == set(came)


def test_pods_that_were_given_up_while_they_were_planned_are_not_ordered_for(make: Make) -> None:
    harness = make()
    harness.want(WEB, 3)
    harness.run(0.5)
    harness.cluster.after_state = harness.cluster.to_come.clear
    harness.run(SOON)
    assert not harness.increments()


@pytest.mark.parametrize("at", [0.5 * BOOT_SECONDS, 1.5 * BOOT_SECONDS, 3 * BOOT_SECONDS])
def test_after_a_restart_they_still_go_where_they_were_planned(make: Make, at: float) -> None:
    harness = make()
    harness.want(WEB, 10)
    harness.want(BATCH, 4, cpu=2500)
    harness.create(WEB, 3)
    harness.run(at)
    targets = harness.targets()
    harness.restart()
    _trickle(harness, BATCH)
    _trickle(harness, WEB)
    harness.run(LONG)
    assert not harness.pending()
    assert harness.targets() == targets


def test_pods_of_a_failed_increment_are_planned_anew_whether_they_are_there_or_not(make: Make) -> None:
    harness = make(group("a", cpu=4000), group("b", cpu=4000, price=0.5))
    harness.want(WEB, 4)
    harness.create(WEB, 2)
    harness.run(SOON)
    (status,) = harness.increments()
    harness.fleet.withdraw(status.id, "taken back")
    harness.run(LONG)
    harness.create(WEB, 2)
    harness.run(LONG)
    assert not harness.pending()
    assert sum(harness.targets().values()) == 1


def test_room_on_standing_nodes_is_kept_for_them(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    harness.add(1)
    harness.run(LONG)
    harness.want(WEB, 3)
    harness.run(SOON)
    assert harness.targets() == {"a": 1}
    harness.add(2)
    harness.cluster.scheduling = False
    harness.run(SOON)
    assert harness.targets() == {"a": 2}
    harness.create(WEB, 3)
    harness.cluster.scheduling = True
    harness.run(LONG)
    assert not harness.pending()
    assert harness.targets() == {"a": 2}


def test_who_has_lost_a_place_is_ordered_for_once(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    lost = harness.add(2, cpu=3000)
    harness.run(SOON)
    nodes = {node.name for status in harness.increments() for node in status.nodes}
    assert len(nodes) == 2
    harness.run(2)
    harness.cluster.scheduling = False
    for uid in lost:
        harness.placement._lose([uid])
        harness.run(3)
    (first, second) = harness.loop.plans()[1:]
    assert (first.pods, second.pods) == (1, 1)
