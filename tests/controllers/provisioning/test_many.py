"""Many requests at once: which are served first, and that none starves."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from cagrpc.controllers.settings import RequestSettings
from tests.controllers.provisioning.conftest import Make
from tests.support.fleet import group
from tests.support.world import BOOT_SECONDS

LONG = 3 * BOOT_SECONDS


def test_small_ones_do_not_starve_a_big_one_for_ever(make: Make) -> None:
    world = make(group("a", max_size=2), requests=RequestSettings(booking_seconds=9000))
    world.request("first", ("web", 4))
    world.run(LONG)
    world.request("big", ("web", 8))
    world.run(5)
    assert world.condition("big", "Failed") is None
    served = 0
    for number in range(25):
        world.request(f"small-{number}", ("web", 4))
        world.run(LONG)
        if not world.is_true(f"small-{number}", "Provisioned"):
            break
        served += 1
        world.delete(f"small-{number}")
        world.run(5)
    assert served == 10
    assert "ns/big" in world.message(f"small-{served}", "Provisioned")
    world.delete("first")
    world.run(700)
    assert world.is_true("big", "Provisioned")


def test_many_that_wait_for_room_leave_places_for_those_that_come(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cagrpc.controllers.provisioning.fairness.MOST_AT_ONCE", 4)
    world = make(group("a", max_size=2, labels={"pool": "a"}), group("b", labels={"pool": "b"}))
    world.template("to-a", cpu=1000, nodeSelector={"pool": "a"})
    world.template("to-b", cpu=1000, nodeSelector={"pool": "b"})
    world.request("first", ("to-a", 8))
    world.run(LONG)
    waiting = [f"waits-{number}" for number in range(6)]
    for name in waiting:
        world.request(name, ("to-a", 8))
    world.run(5)
    assert all(world.details(name).get("retryAt") for name in waiting)
    world.request("fresh", ("to-b", 1))
    world.run(LONG)
    assert world.is_true("fresh", "Provisioned")
    assert sorted(world.details(name)["overtaken"] for name in waiting) == ["0", "0", "0", "1", "1", "1"]


def test_many_that_come_leave_places_for_those_that_wait(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cagrpc.controllers.provisioning.fairness.MOST_AT_ONCE", 2)
    world = make(group("a", max_size=5))
    world.request("first", ("web", 4))
    world.run(LONG)
    world.request("big", ("web", 20))
    world.run(5)
    for number in range(4):
        world.request(f"small-{number}", ("web", 1))
    world.run(5)
    assert all(world.is_true(f"small-{number}", "Accepted") for number in range(4))
    assert world.details("big")["overtaken"] == "4"


def test_considering_many_takes_a_small_share_of_a_core(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(group("a"))
    world.request("r", ("web", 1))
    world.run(LONG)
    looks, seen = list[float](), world.view.state

    def look(**more: Any) -> Any:
        if world.stepping == "ProvisioningRequests":
            looks.append(world.clock())
            world.cpu_seconds += 0.06  # so one in three seconds is 2 %
        return seen(**more)

    monkeypatch.setattr(world.view, "state", look)
    world.run(15, step=0.25)
    assert [round(later - before) for before, later in pairwise(looks)][-3:] == [3, 3, 3]


def test_higher_priority_is_served_first(make: Make) -> None:
    world = make(group("a", max_size=1))
    world.priority_class("urgent", 100)
    world.template("urgent", cpu=1000, priorityClassName="urgent")
    world.request("low", ("web", 4))
    world.request("high", ("urgent", 4))
    world.run(LONG)
    assert world.is_true("high", "Provisioned")
    assert not world.is_true("low", "Provisioned")
    assert world.condition("low", "Failed") is None


def test_a_priority_that_a_template_claims_by_itself_counts_for_nothing(make: Make) -> None:
    world = make(group("a", max_size=1))
    world.template("claims", cpu=1000, priority=2_000_000_000)
    world.request("first", ("web", 4))
    world.clock.advance(1.0)
    world.request("claims", ("claims", 4))
    world.run(LONG)
    assert world.is_true("first", "Provisioned")
    assert not world.is_true("claims", "Provisioned")
