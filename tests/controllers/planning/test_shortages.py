"""Machines that are short: what is left out, for how long, and what of it is known after a restart."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.fleet.model import Phase
from tests.support.controllers.planner import BOOT_SECONDS, Make
from tests.support.fleet import group
from tests.support.gpus import add_gang, gpu_group, with_gpu

GONE = Behaviour(stock=0)
SOON = BOOT_SECONDS / 2
LONG = 300.0


def test_what_is_short_is_left_out_and_the_pods_go_elsewhere(make: Make) -> None:
    world = make(group("cheap", zone="z"), group("dear", price=0.3, zone="z"))
    world.backend.set_behaviour("cheap", GONE)
    world.add(4)
    world.run(SOON)
    assert world.targets() == {"dear": 1}
    assert [each.offering for each in world.loop.plans()[-1].shortages] == ["cheap/z"]
    world.run(LONG)
    assert not world.pending()
    world.backend.set_behaviour("cheap", None)
    world.run(LONG)
    world.add(4)
    world.run(SOON)
    assert world.targets() == {"dear": 1, "cheap": 1}


def test_an_offering_that_is_short_is_left_out_in_all_of_its_groups(make: Make) -> None:
    same: dict[str, Any] = {"instance_type": "m", "zone": "z", "capacity_type": "spot"}
    world = make(group("a", **same), group("b", price=0.2, **same), group("c", price=0.3))
    world.backend.set_behaviour("m", GONE)
    world.add(1)
    world.run(SOON)
    assert world.targets() == {"c": 1}
    assert len(world.loop.plans()) == 2


def test_a_shortage_lasts_longer_each_time(make: Make) -> None:
    world = make(group("a"), settings=PlannerSettings(shortage_seconds=100.0))
    world.backend.set_behaviour("a", GONE)
    world.add(1)
    tried = []
    for _ in range(300):
        before = len(world.increments())
        world.clock.advance(5)
        world.step()
        tried += [world.clock()] * (len(world.increments()) > before)
    waits = [round((later - earlier) / 100) for earlier, later in pairwise(tried)]
    assert waits == [1, 2, 4, 6]


def test_late_shortages_take_down_their_own_group_only(make: Make) -> None:
    world = make(gpu_group("gpu"), group("plain", price=0.1))
    world.backend.set_behaviour("gpu", Behaviour(boot_seconds=BOOT_SECONDS, late_shortage=0))
    world.add(4)
    world.cluster.pods[world.add(1)[0]].spec = with_gpu(1000)
    world.run(LONG)
    assert world.targets() == {"plain": 1}
    assert len(world.pending()) == 1


@pytest.mark.parametrize("behaviour", [GONE, Behaviour(late_shortage=1, boot_seconds=BOOT_SECONDS)])
def test_a_gang_over_two_groups_comes_whole_or_not_at_all(make: Make, behaviour: Behaviour) -> None:
    world = make(gpu_group("gpu"), group("plain", price=0.1))
    world.backend.set_behaviour("gpu", behaviour)
    add_gang(world, "train", plain=2, gpus=2)
    lonely = world.add(1, cpu=4000)
    world.run(200)
    assert world.targets() == {"plain": 1}
    assert world.cluster.pods[lonely[0]].node is not None
    assert len(world.pending()) == 4
    assert not [pod for pod in world.cluster.pods.values() if pod.gang and pod.node]
    world.backend.set_behaviour("gpu", None)
    world.run(2 * LONG)
    assert not world.pending()
    assert world.targets() == {"plain": 3, "gpu": 2}


def test_nothing_is_ordered_twice_across_a_restart(make: Make) -> None:
    world = make(group("a", cpu=4000))
    world.add(8)
    world.run(2)
    assert [each.phase for each in world.increments()] == [Phase.CREATING]
    world.restart()
    world.add(1)
    world.run(LONG)
    assert world.targets() == {"a": 3}
    assert not world.pending()


def test_a_shortage_is_known_after_a_restart_and_an_old_one_is_not(make: Make) -> None:
    world = make(group("cheap"), group("dear", price=0.3))
    world.backend.set_behaviour("cheap", GONE)
    world.add(1)
    world.run(3)
    world.restart()
    world.add(4)
    world.run(SOON)
    assert world.targets() == {"dear": 2}
    assert len(world.increments(Phase.ROLLED_BACK)) == 1
    world.backend.set_behaviour("cheap", None)
    world.run(LONG)
    world.restart()
    world.add(4)
    world.run(SOON)
    assert world.targets() == {"dear": 2, "cheap": 1}


def test_what_is_found_short_while_planning_is_not_asked_for(make: Make) -> None:
    world = make(group("cheap"), group("dear", price=0.3))
    world.backend.set_behaviour("cheap", Behaviour(late_shortage=0, fail_after_seconds=10.0))
    world.add(1, cpu=4000)
    world.run(3)
    world.add(1, cpu=4000)

    def meanwhile() -> None:
        world.clock.advance(10)
        world.fleet.reconcile()

    world.cluster.after_state = meanwhile
    world.run(LONG)
    assert not world.pending()
    assert len(world.increments(Phase.ROLLED_BACK)) == 1
    assert world.targets() == {"dear": 2}
