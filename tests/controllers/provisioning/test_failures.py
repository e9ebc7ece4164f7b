"""Requests that cannot be served, now or ever: what is tried again and when, and what fails with which message."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.settings import RequestSettings
from solver.model import Limit
from tests.support.controllers.planner import BOOT_SECONDS
from tests.support.controllers.provisioning import Make
from tests.support.fleet import group

LONG = 3 * BOOT_SECONDS


def test_a_shortage_is_rolled_back_and_tried_again_later_and_later(make: Make) -> None:
    world = make(group("a"))
    world.backend.set_behaviour("*", Behaviour(stock=0))
    uid = world.request("r", ("web", 4))
    world.run(5)
    found = world.condition("r", "Provisioned")
    assert found is not None
    assert (found["status"], found["reason"]) == ("False", "CapacityIsNotFound")
    assert world.condition("r", "Accepted")["status"] == "False"  # type: ignore[index]
    assert world.details("r")["attempts"] == "1"
    world.run(50)
    assert len(world.increments()) == 1
    world.restart()
    world.run(30)
    assert int(world.details("r")["attempts"]) >= 2
    world.backend.set_behaviour("*", Behaviour(boot_seconds=BOOT_SECONDS))
    world.run(1300)
    assert world.is_true("r", "Provisioned")
    assert world.labelled(uid)
    assert "retryAt" not in world.details("r")


def test_the_pause_doubles_up_to_ten_minutes(make: Make) -> None:
    world = make(group("a", max_size=1), limits=[Limit("all", {"nodes": 1})])
    world.request("first", ("web", 4), ValidUntilSeconds="9h")
    world.run(LONG)
    world.request("second", ("web", 3), ValidUntilSeconds="9h")
    pauses = []
    attempts = ""
    for _ in range(1250):
        world.clock.advance(2)
        world.step()
        if world.details("second").get("attempts", "") != attempts:
            attempts = world.details("second")["attempts"]
            pauses.append(world.clock())
    gaps = [round(later - earlier) for earlier, later in pairwise(pauses)]
    assert gaps[:3] == pytest.approx([60, 120, 240], abs=4)
    assert max(gaps) <= 604


def test_bad_requests_fail_with_one_clear_message_and_are_in_nobodys_way(make: Make) -> None:
    world = make(group("a"))
    world.template("huge", cpu=64_000)
    world.template("torn", nodeSelector={"zone": "a"}, affinity=_in_zone("b"))
    world.request("no-template", ("nothing", 1))
    world.request("parameter", ("web", 1), Colour="blue")
    world.request("validity", ("web", 1), ValidUntilSeconds="soon")
    world.request("huge", ("huge", 1))
    world.request("torn", ("torn", 1))
    world.request("too-many", ("web", 20_000))
    world.request("good", ("web", 4))
    world.run(5)
    bad = {"parameter": "Colour", "validity": "'soon'", "huge": "cpu", "torn": "", "too-many": "20000"}
    for name, told in bad.items():
        assert world.is_true(name, "Failed"), name
        assert told in world.message(name, "Failed")
    assert world.condition("no-template", "Failed") is None
    assert world.is_true("good", "Accepted")
    world.run(LONG)
    assert world.is_true("no-template", "Failed")
    assert world.condition("no-template", "Failed")["reason"] == "FailedToCreatePods"  # type: ignore[index]
    assert "ns/nothing" in world.message("no-template", "Failed")
    assert world.is_true("good", "Provisioned")
    writes = [call for call in world.api.calls if "provisioningrequests/huge" in call]
    assert len(writes) == 1


def _in_zone(zone: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def test_a_template_that_comes_a_moment_later_is_waited_for(make: Make) -> None:
    world = make(group("a"))
    world.request("r", ("late", 2))
    world.run(10)
    world.template("late", cpu=500)
    world.run(LONG)
    assert world.is_true("r", "Provisioned")


def test_what_sizes_or_limits_never_allow_fails_with_the_reason(make: Make) -> None:
    world = make(group("a", max_size=2), limits=[Limit("everything", {"cpu": 100_000})])
    world.request("sizes", ("web", 9))
    world.run(5)
    assert world.is_true("sizes", "Failed")
    assert not world.increments()


def test_a_request_is_given_up_after_its_validity(make: Make) -> None:
    world = make(group("a"))
    world.backend.set_behaviour("*", Behaviour(stock=0))
    world.request("r", ("web", 4), ValidUntilSeconds="5m")
    world.run(290)
    assert world.condition("r", "Failed") is None
    world.run(30)
    assert world.condition("r", "Failed")["reason"] == "Expired"  # type: ignore[index]
    assert "attempt" in world.message("r", "Failed")
    asked = len(world.increments())
    world.backend.set_behaviour("*", None)
    world.run(700)
    assert len(world.increments()) == asked


def test_without_retry_the_first_failure_is_the_last(make: Make) -> None:
    world = make(group("a"))
    world.backend.set_behaviour("*", Behaviour(stock=0))
    world.request("r", ("web", 4), noRetry="true")
    world.run(10)
    assert world.is_true("r", "Failed")


def test_what_is_over_is_deleted_after_a_time(make: Make) -> None:
    world = make(group("a"), requests=RequestSettings(keep_seconds=300, booking_seconds=30))
    world.template("huge", cpu=64_000)
    world.request("done", ("web", 1))
    world.request("failed", ("huge", 1))
    world.request("theirs", ("web", 1), of="cloud.example.com")
    world.run(250)
    assert world.is_true("done", "BookingExpired")
    assert world.is_true("failed", "Failed")
    world.run(150)
    assert [path.rpartition("/")[2] for path in world.api.store.objects if "provisioningrequests" in path] == ["theirs"]
    assert not world.any_labels()
