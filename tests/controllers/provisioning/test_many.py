"""Many requests at once: which are served first, and that none starves."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.provisioning import fairness
from cagrpc.controllers.settings import RequestSettings
from tests.support.controllers.planner import BOOT_SECONDS
from tests.support.controllers.provisioning import Make
from tests.support.fleet import group

LONG = 3 * BOOT_SECONDS


def test_small_ones_do_not_starve_a_big_one_for_ever(make: Make) -> None:
    harness = make(group("a", max_size=2), requests=RequestSettings(booking_seconds=9000))
    harness.request("first", ("web", 4))
    harness.run(LONG)
    harness.request("big", ("web", 8))
    harness.run(5)
    assert harness.condition("big", "Failed") is None
    served = 0
    for number in range(25):
        harness.request(f"small-{number}", ("web", 4))
        harness.run(LONG)
        if not harness.is_true(f"small-{number}", "Provisioned"):
            break
        served += 1
        harness.delete(f"small-{number}")
        harness.run(5)
    assert served == 10
    assert "ns/big" in harness.message(f"small-{served}", "Provisioned")
    harness.delete("first")
    harness.run(700)
    assert harness.is_true("big", "Provisioned")


def test_many_that_wait_for_room_leave_places_for_those_that_come(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "MOST_AT_ONCE", 4)
    harness = make(group("a", max_size=2, labels={"pool": "a"}), group("b", labels={"pool": "b"}))
    harness.template("to-a", cpu=1000, nodeSelector={"pool": "a"})
    harness.template("to-b", cpu=1000, nodeSelector={"pool": "b"})
    harness.request("first", ("to-a", 8))
    harness.run(LONG)
    waiting = [f"waits-{number}" for number in range(6)]
    for name in waiting:
        harness.request(name, ("to-a", 8))
    harness.run(5)
    assert all(harness.details(name).get("retryAt") for name in waiting)
    harness.request("fresh", ("to-b", 1))
    harness.run(LONG)
    assert harness.is_true("fresh", "Provisioned")
    assert sorted(harness.details(name)["overtaken"] for name in waiting) == ["0", "0", "0", "1", "1", "1"]


def test_many_that_come_leave_places_for_those_that_wait(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "MOST_AT_ONCE", 2)
    harness = make(group("a", max_size=5))
    harness.request("first", ("web", 4))
    harness.run(LONG)
    harness.request("big", ("web", 20))
    harness.run(5)
    for number in range(4):
        harness.request(f"small-{number}", ("web", 1))
    harness.run(5)
    assert all(harness.is_true(f"small-{number}", "Accepted") for number in range(4))
    assert harness.details("big")["overtaken"] == "4"


def test_considering_many_takes_a_small_share_of_a_core(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = make(group("a"))
    harness.request("r", ("web", 1))
    harness.run(LONG)
    passed = iter(range(1000))
    harness.cpu = lambda: 0.06 * next(passed)  # a look takes 0.06 s, so one in three seconds is 2 %
    harness.restart()
    harness.run(5)
    looks = []
    seen = harness.cluster.state

    def look() -> ClusterState:
        looks.append(harness.clock())
        return seen()

    monkeypatch.setattr(harness.cluster, "state", look)
    harness.run(12, step=0.25)
    assert [round(later - before) for before, later in pairwise(looks)] == [3, 3, 3]


def test_higher_priority_is_served_first(make: Make) -> None:
    harness = make(group("a", max_size=1))
    harness.priority_class("urgent", 100)
    harness.template("urgent", cpu=1000, priorityClassName="urgent")
    harness.request("low", ("web", 4))
    harness.request("high", ("urgent", 4))
    harness.run(LONG)
    assert harness.is_true("high", "Provisioned")
    assert not harness.is_true("low", "Provisioned")
    assert harness.condition("low", "Failed") is None


def test_a_priority_that_a_template_claims_by_itself_counts_for_nothing(make: Make) -> None:
    harness = make(group("a", max_size=1))
    harness.template("claims", cpu=1000, priority=2_000_000_000)
    harness.request("first", ("web", 4))
    harness.clock.advance(1.0)
    harness.request("claims", ("claims", 4))
    harness.run(LONG)
    assert harness.is_true("first", "Provisioned")
    assert not harness.is_true("claims", "Provisioned")
