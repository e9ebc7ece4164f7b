"""Pods that workloads still have to create are planned with those that are there: once, for the nodes that they go to
when they come."""

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
    worlds: list[PlannerHarness] = []

    def made(*groups: Any, **more: Any) -> PlannerHarness:
        worlds.append(PlannerHarness(groups or [group("a", cpu=4000), group("b", cpu=10000, price=0.24)], **more))
        return worlds[-1]

    yield made
    for world in worlds:
        world.close()


def _trickle(world: PlannerHarness, workload: str, seconds: float = 5.0) -> None:
    while world.cluster.to_come[workload][1]:
        world.create(workload)
        world.run(seconds)


def test_one_round_plans_them_all_and_each_goes_where_one_was_planned(make: Make) -> None:
    world = make()
    world.want(WEB, 10)
    world.create(WEB, 2)
    world.run(SOON)
    (record,) = world.loop.plans()
    assert (record.pods, world.targets()) == (10, {"b": 1})
    _trickle(world, WEB)
    world.run(LONG)
    assert not world.pending()
    assert world.targets() == {"b": 1}
    assert len(world.loop.plans()) == 1


def test_without_any_pod_that_waits_a_round_begins_all_the_same(make: Make) -> None:
    world = make()
    world.want(WEB, 3)
    world.run(SOON)
    assert world.targets() == {"a": 1}
    assert not world.notes
    world.create(WEB, 3)
    world.run(LONG)
    assert not world.pending()


def test_a_node_is_held_until_all_of_its_pods_are_there(make: Make) -> None:
    world = make(group("a", cpu=4000))
    world.want(WEB, 4)
    first = world.create(WEB, 3)
    world.run(LONG)
    assert set(first) == set(world.pending())
    world.add(1)  # would take the last one's room
    world.run(SOON)
    assert world.targets() == {"a": 2}
    world.create(WEB)
    world.run(LONG)
    assert not world.pending()
    assert len({world.cluster.pods[uid].node for uid in first}) == 1


def test_nodes_of_others_are_released_meanwhile(make: Make) -> None:
    world = make(group("a", cpu=4000))
    world.want(WEB, 8)
    world.create(WEB, 4)
    world.run(LONG)
    assert len(world.pending()) == 0
    assert world.targets() == {"a": 2}
    assert [each.phase for each in world.increments()] == [Phase.READY]


def test_nodes_for_pods_that_never_come_are_not_kept(make: Make) -> None:
    world = make(group("a", cpu=4000))
    world.want(WEB, 8)
    world.create(WEB, 3)
    world.run(LONG)
    world.cluster.to_come.clear()  # given up
    world.run(LONG)
    assert not world.pending()
    assert world.targets() == {"a": 1}
    assert [each.phase for each in world.increments()] == [Phase.DONE]


def test_where_their_nodes_may_not_be_deleted_they_are_released(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def below_the_minimum(*_: object) -> None:
        raise FailedPrecondition("node group a: the minimum is 2")

    world = make(group("a", cpu=4000))
    world.want(WEB, 8)
    world.run(LONG)
    monkeypatch.setattr(world.fleet, "delete_instances", below_the_minimum)
    world.cluster.to_come.clear()
    world.run(LONG)
    assert world.targets() == {"a": 2}
    assert not world.cluster.held_nodes()


def test_pods_that_come_while_they_are_planned_are_who_the_increment_is_for(make: Make) -> None:
    world = make()
    world.want(WEB, 3)
    world.run(0.5)
    came: list[str] = []
    world.cluster.after_state = lambda: came.extend(world.create(WEB, 2))
    world.run(SOON)
    (status,) = world.increments()
    assert len(came) == 2
    assert status.increment.pods == {*came, ExpectedPod("Deployment/ns/web", 0)}
    assert {note.about.uid for note in world.notes if note.reason == PLANNED} == set(came)


def test_pods_that_were_given_up_while_they_were_planned_are_not_ordered_for(make: Make) -> None:
    world = make()
    world.want(WEB, 3)
    world.run(0.5)
    world.cluster.after_state = world.cluster.to_come.clear
    world.run(SOON)
    assert not world.increments()


@pytest.mark.parametrize("at", [0.5 * BOOT_SECONDS, 1.5 * BOOT_SECONDS, 3 * BOOT_SECONDS])
def test_after_a_restart_they_still_go_where_they_were_planned(make: Make, at: float) -> None:
    world = make()
    world.want(WEB, 10)
    world.want(BATCH, 4, cpu=2500)
    world.create(WEB, 3)
    world.run(at)
    targets = world.targets()
    world.restart()
    _trickle(world, BATCH)
    _trickle(world, WEB)
    world.run(LONG)
    assert not world.pending()
    assert world.targets() == targets


def test_pods_of_a_failed_increment_are_planned_anew_whether_they_are_there_or_not(make: Make) -> None:
    world = make(group("a", cpu=4000), group("b", cpu=4000, price=0.5))
    world.want(WEB, 4)
    world.create(WEB, 2)
    world.run(SOON)
    (status,) = world.increments()
    world.fleet.withdraw(status.id, "taken back")
    world.run(LONG)
    world.create(WEB, 2)
    world.run(LONG)
    assert not world.pending()
    assert sum(world.targets().values()) == 1


def test_room_on_standing_nodes_is_kept_for_them(make: Make) -> None:
    world = make(group("a", cpu=4000))
    world.add(1)
    world.run(LONG)
    world.want(WEB, 3)
    world.run(SOON)
    assert world.targets() == {"a": 1}
    world.add(2)
    world.cluster.scheduling = False
    world.run(SOON)
    assert world.targets() == {"a": 2}
    world.create(WEB, 3)
    world.cluster.scheduling = True
    world.run(LONG)
    assert not world.pending()
    assert world.targets() == {"a": 2}


def test_who_has_lost_a_place_is_ordered_for_once(make: Make) -> None:
    world = make(group("a", cpu=4000))
    lost = world.add(2, cpu=3000)
    world.run(SOON)
    nodes = {node.name for status in world.increments() for node in status.nodes}
    assert len(nodes) == 2
    world.run(2)
    world.cluster.scheduling = False
    for uid in lost:
        world.placement._lose([uid])
        world.run(3)
    (first, second) = world.loop.plans()[1:]
    assert (first.pods, second.pods) == (1, 1)
