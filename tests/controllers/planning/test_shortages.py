"""Shortages: which offerings are excluded, for how long, and what of it survives a restart."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.cluster.shortages import until
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.fleet.model import Phase
from tests.support.controllers.planner import BOOT_SECONDS, Make
from tests.support.fleet import group
from tests.support.gpus import add_gang, gpu_group, with_gpu

GONE = Behaviour(stock=0)
SOON = BOOT_SECONDS / 2
LONG = 300.0


def test_what_is_short_is_left_out_and_the_pods_go_elsewhere(make: Make) -> None:
    harness = make(group("cheap", zone="z"), group("dear", price=0.3, zone="z"))
    harness.backend.set_behaviour("cheap", GONE)
    harness.add(4)
    harness.run(SOON)
    assert harness.targets() == {"dear": 1}
    assert [each.offering for each in harness.loop.plans()[-1].shortages] == ["cheap/z"]
    harness.run(LONG)
    assert not harness.pending()
    harness.backend.set_behaviour("cheap", None)
    harness.run(LONG)
    harness.add(4)
    harness.run(SOON)
    assert harness.targets() == {"dear": 1, "cheap": 1}


def test_an_offering_that_is_short_is_left_out_in_all_of_its_groups(make: Make) -> None:
    same: dict[str, Any] = {"instance_type": "m", "zone": "z", "capacity_type": "spot"}
    harness = make(group("a", **same), group("b", price=0.2, **same), group("c", price=0.3))
    harness.backend.set_behaviour("m", GONE)
    harness.add(1)
    harness.run(SOON)
    assert harness.targets() == {"c": 1}
    assert len(harness.loop.plans()) == 2


def test_a_shortage_lasts_longer_each_time(make: Make) -> None:
    harness = make(group("a"), settings=PlannerSettings(shortage_seconds=100.0))
    harness.backend.set_behaviour("a", GONE)
    harness.add(1)
    tried = []
    for _ in range(300):
        before = len(harness.increments())
        harness.clock.advance(5)
        harness.step()
        tried += [harness.clock()] * (len(harness.increments()) > before)
    waits = [round((later - earlier) / 100) for earlier, later in pairwise(tried)]
    assert waits == [1, 2, 4, 6]


def test_late_shortages_take_down_their_own_group_only(make: Make) -> None:
    harness = make(gpu_group("gpu"), group("plain", price=0.1))
    harness.backend.set_behaviour("gpu", Behaviour(boot_seconds=BOOT_SECONDS, late_shortage=0))
    harness.add(4)
    harness.cluster.pods[harness.add(1)[0]].spec = with_gpu(1000)
    harness.run(LONG)
    assert harness.targets() == {"plain": 1}
    assert len(harness.pending()) == 1


@pytest.mark.parametrize("behaviour", [GONE, Behaviour(late_shortage=1, boot_seconds=BOOT_SECONDS)])
def test_a_gang_over_two_groups_comes_whole_or_not_at_all(make: Make, behaviour: Behaviour) -> None:
    harness = make(gpu_group("gpu"), group("plain", price=0.1))
    harness.backend.set_behaviour("gpu", behaviour)
    add_gang(harness, "train", plain=2, gpus=2)
    lonely = harness.add(1, cpu=4000)
    harness.run(200)
    assert harness.targets() == {"plain": 1}
    assert harness.cluster.pods[lonely[0]].node is not None
    assert len(harness.pending()) == 4
    assert not [pod for pod in harness.cluster.pods.values() if pod.gang and pod.node]
    harness.backend.set_behaviour("gpu", None)
    harness.run(2 * LONG)
    assert not harness.pending()
    assert harness.targets() == {"plain": 3, "gpu": 2}


def test_nothing_is_ordered_twice_across_a_restart(make: Make) -> None:
    harness = make(group("a", cpu=4000))
    harness.add(8)
    harness.run(2)
    assert [each.phase for each in harness.increments()] == [Phase.CREATING]
    harness.restart()
    harness.add(1)
    harness.run(LONG)
    assert harness.targets() == {"a": 3}
    assert not harness.pending()


def test_a_shortage_is_known_after_a_restart_and_an_old_one_is_not(make: Make) -> None:
    harness = make(group("cheap"), group("dear", price=0.3))
    harness.backend.set_behaviour("cheap", GONE)
    harness.add(1)
    harness.run(3)
    harness.restart()
    harness.add(4)
    harness.run(SOON)
    assert harness.targets() == {"dear": 2}
    assert len(harness.increments(Phase.ROLLED_BACK)) == 1
    harness.backend.set_behaviour("cheap", None)
    harness.run(LONG)
    harness.restart()
    harness.add(4)
    harness.run(SOON)
    assert harness.targets() == {"dear": 2, "cheap": 1}


def test_what_is_found_short_while_planning_is_not_asked_for(make: Make) -> None:
    harness = make(group("cheap"), group("dear", price=0.3))
    harness.backend.set_behaviour("cheap", Behaviour(late_shortage=0, fail_after_seconds=10.0))
    harness.add(1, cpu=4000)
    harness.run(3)
    harness.add(1, cpu=4000)

    def meanwhile() -> None:
        harness.clock.advance(10)
        harness.fleet.reconcile()

    harness.cluster.after_state = meanwhile
    harness.run(LONG)
    assert not harness.pending()
    assert len(harness.increments(Phase.ROLLED_BACK)) == 1
    assert harness.targets() == {"dear": 2}


def test_a_shortage_is_the_first_reason_of_the_pods_that_wait_for_it(make: Make) -> None:
    harness = make(gpu_group("gpu"), group("plain", price=0.1))
    harness.backend.set_behaviour("gpu", GONE)
    harness.cluster.pods[harness.add(1)[0]].spec = with_gpu(1000)
    harness.run(SOON)
    latest = harness.loop.plans()[-1]
    (shortage,), (left,) = latest.shortages, latest.unplaced
    first, *others = left.reasons
    assert first.startswith(f"left out after a shortage: {shortage.offering} until {until(shortage)} (")
    assert shortage.cause in first
    assert others
    assert all(each.startswith("elsewhere: ") for each in others), "what is left out is not spoken of as not there"
    assert not left.ways, "no way takes the pod's only GPU away"
    assert any(note.text.startswith(first) for note in harness.notes if note.warning)
