"""Requests that cannot be served, now or ever: what is retried and when, and what fails with which message."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from cagrpc.api.encoding.times import epoch_seconds, timestamp
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.provisioning import woken
from cagrpc.controllers.provisioning.woken import WOKEN_SECONDS
from cagrpc.controllers.settings import RequestSettings
from cagrpc.fleet.catalogue import NVIDIA_GPU
from cagrpc.runtime import tracing
from solver.model import Limit
from tests.support.controllers.planner import BOOT_SECONDS
from tests.support.controllers.provisioning import Make
from tests.support.fleet import group
from tests.support.solver.device_examples import claim, devices
from tests.support.solver.problems import node, spec
from tests.support.traces import traced

LONG = 3 * BOOT_SECONDS


def test_a_request_of_which_an_offering_is_short_is_told_so_and_loses_no_attempt(make: Make) -> None:
    """As found live: its only GPU group had been short, and it was told to ask for no GPU."""
    gpus = group("gpu", price=3.0)
    harness = make(replace(gpus, allocatable={**gpus.allocatable, NVIDIA_GPU: 1}), group("cpu"))
    asks = {"requests": {"cpu": "1", NVIDIA_GPU: "1"}, "limits": {NVIDIA_GPU: "1"}}
    harness.template("worker", containers=[{"name": "main", "resources": asks}])
    harness.backend.set_behaviour("gpu", Behaviour(stock=0))
    harness.request("r", ("worker", 2))
    harness.run(5)
    assert harness.condition("r", "Provisioned")["reason"] == "CapacityIsNotFound"  # type: ignore[index]
    assert (harness.details("r")["attempts"], len(harness.increments())) == ("1", 1)
    harness.run(100)  # the back-off is over, the shortage is not
    found = harness.condition("r", "Provisioned")
    assert found is not None
    assert (found["status"], found["reason"]) == ("False", "CapacityIsShort")
    ends = max(each.until_seconds for each in harness.requests._deciding.short().values())
    until = timestamp(math.ceil(ends))
    assert found["message"].startswith(f"left out after a shortage: node group gpu until {until} (")
    assert "the whole request would fit" in found["message"]
    assert "no attempt is counted" in found["message"]
    assert "lower" not in found["message"]
    assert harness.details("r")["retryAt"] == until, "the next try is when something can have changed"
    assert (harness.details("r")["attempts"], len(harness.increments())) == ("1", 1), "nothing could be tried"
    assert found["message"] in [note.text for note in harness.notes_of("CapacityIsShort")]
    written = len(harness.api.calls)
    harness.run(ends - harness.clock() - 5)
    assert len(harness.api.calls) == written, "it is said once"
    harness.backend.set_behaviour("gpu", Behaviour(boot_seconds=BOOT_SECONDS))
    harness.run(10)
    assert len(harness.increments()) == 2, "tried once the shortage was over"
    harness.run(LONG)
    assert harness.is_true("r", "Provisioned")


def test_a_request_without_room_is_tried_as_soon_as_room_is_made(make: Make) -> None:
    harness = make(group("a", max_size=1), limits=[Limit("all", {"nodes": 1})])
    harness.request("first", ("web", 4), ValidUntilSeconds="9h")
    harness.run(LONG)
    harness.request("second", ("web", 3), ValidUntilSeconds="9h")
    harness.run(200)  # the next attempt is minutes away
    attempts = harness.details("second")["attempts"]
    retry_at = epoch_seconds(harness.details("second")["retryAt"])
    harness.delete("first")
    harness.run(2 * WOKEN_SECONDS)
    assert harness.clock() < retry_at - 30
    assert harness.is_true("second", "Provisioned"), "it has the room that was reserved before"
    assert harness.details("second")["attempts"] == attempts


@pytest.mark.parametrize("claims", [True, False])
def test_a_device_that_is_given_back_after_its_pod_has_ended_is_room_made(*, claims: bool) -> None:
    before, now = (
        node("n", 4000, devices=each) for each in ((devices("gpu", count=1, taken=7),), (devices("gpu", count=8),))
    )
    (found,) = woken._freed({"n": before}, {"n": now})
    assert woken._fits(spec(100, claims=claim(count=8) if claims else ()), *found) is claims


def test_a_shortage_is_rolled_back_and_tried_again_later_and_later(make: Make) -> None:
    harness = make(group("a"))
    harness.backend.set_behaviour("*", Behaviour(stock=0))
    uid = harness.request("r", ("web", 4))
    harness.run(5)
    found = harness.condition("r", "Provisioned")
    assert found is not None
    assert (found["status"], found["reason"]) == ("False", "CapacityIsNotFound")
    assert harness.condition("r", "Accepted")["status"] == "False"  # type: ignore[index]
    assert harness.details("r")["attempts"] == "1"
    assert found["message"].endswith(f"; attempt 1, tried again at {harness.details('r')['retryAt']}")
    assert not {"costPerHour", "nodeGroups", "nodes"} & harness.details("r").keys(), (
        "it has no nodes, and costs nothing"
    )
    harness.run(50)
    assert len(harness.increments()) == 1
    harness.restart()
    harness.run(30)
    assert harness.details("r")["attempts"] == "1", "what could not try is no attempt"
    harness.run(600)
    assert int(harness.details("r")["attempts"]) >= 2
    harness.backend.set_behaviour("*", Behaviour(boot_seconds=BOOT_SECONDS))
    harness.run(1300)
    assert harness.is_true("r", "Provisioned")
    assert harness.labelled(uid)
    assert "retryAt" not in harness.details("r")


def test_the_pause_doubles_up_to_ten_minutes(make: Make) -> None:
    harness = make(group("a", max_size=1), limits=[Limit("all", {"nodes": 1})])
    harness.request("first", ("web", 4), ValidUntilSeconds="9h")
    harness.run(LONG)
    harness.request("second", ("web", 3), ValidUntilSeconds="9h")
    pauses = []
    attempts = ""
    for _ in range(1250):
        harness.clock.advance(2)
        harness.step()
        if harness.details("second").get("attempts", "") != attempts:
            attempts = harness.details("second")["attempts"]
            pauses.append(harness.clock())
    gaps = [round(later - earlier) for earlier, later in pairwise(pauses)]
    assert gaps[:3] == pytest.approx([60, 120, 240], abs=4)
    assert max(gaps) <= 604


def test_bad_requests_fail_with_one_clear_message_and_block_no_others(make: Make) -> None:
    harness = make(group("a"))
    harness.template("huge", cpu=64_000)
    harness.template("torn", nodeSelector={"zone": "a"}, affinity=_in_zone("b"))
    harness.request("no-template", ("nothing", 1))
    harness.request("parameter", ("web", 1), Colour="blue")
    harness.request("validity", ("web", 1), ValidUntilSeconds="soon")
    harness.request("huge", ("huge", 1))
    harness.request("torn", ("torn", 1))
    harness.request("too-many", ("web", 20_000))
    harness.request("good", ("web", 4))
    harness.run(5)
    bad = {"parameter": "Colour", "validity": "'soon'", "huge": "cpu", "torn": "", "too-many": "20000"}
    for name, reported in bad.items():
        assert harness.is_true(name, "Failed"), name
        assert reported in harness.message(name, "Failed")
    assert harness.condition("no-template", "Failed") is None
    assert harness.is_true("good", "Accepted")
    harness.run(LONG)
    assert harness.is_true("no-template", "Failed")
    assert harness.condition("no-template", "Failed")["reason"] == "FailedToCreatePods"  # type: ignore[index]
    assert "ns/nothing" in harness.message("no-template", "Failed")
    assert harness.is_true("good", "Provisioned")
    writes = [call for call in harness.api.calls if "provisioningrequests/huge" in call]
    assert len(writes) == 1


def _in_zone(zone: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def test_a_template_that_comes_a_moment_later_is_waited_for(make: Make) -> None:
    harness = make(group("a"))
    harness.request("r", ("late", 2))
    harness.run(10)
    harness.template("late", cpu=500)
    harness.run(LONG)
    assert harness.is_true("r", "Provisioned")


def test_what_sizes_or_limits_never_allow_fails_with_the_reason(make: Make) -> None:
    harness = make(group("a", max_size=2), limits=[Limit("everything", {"cpu": 100_000})])
    harness.request("sizes", ("web", 9))
    harness.run(5)
    assert harness.is_true("sizes", "Failed")
    assert not harness.increments()


def test_a_request_is_given_up_after_its_validity(make: Make) -> None:
    harness = make(group("a"))
    harness.backend.set_behaviour("*", Behaviour(stock=0))
    harness.request("r", ("web", 4), ValidUntilSeconds="5m")
    harness.run(290)
    assert harness.condition("r", "Failed") is None
    ends = harness.details("r")["retryAt"]
    said = harness.message("r", "Provisioned")
    assert said.startswith("left out after a shortage: node group a until ")
    assert said.endswith(
        "; no attempt is counted, and it is"
        f" given up at {ends}, the end of its validity, or tried before where room is made"
    )
    harness.run(30)
    assert harness.condition("r", "Failed")["reason"] == "Expired"  # type: ignore[index]
    why = harness.message("r", "Failed")
    assert why.startswith(f"not provisioned by {ends}, the end of its validity: left out after a shortage: ")
    assert why.endswith("; with it the whole request would fit"), "what is given up is not tried again"
    asked = len(harness.increments())
    harness.backend.set_behaviour("*", None)
    harness.run(700)
    assert len(harness.increments()) == asked


def test_without_retry_the_first_failure_is_the_last(make: Make) -> None:
    harness = make(group("a"))
    harness.backend.set_behaviour("*", Behaviour(stock=0))
    harness.request("r", ("web", 4), noRetry="true")
    harness.run(10)
    assert harness.is_true("r", "Failed")


def test_what_is_over_is_deleted_after_a_time(make: Make) -> None:
    harness = make(group("a"), requests=RequestSettings(keep_seconds=300, booking_seconds=30))
    harness.template("huge", cpu=64_000)
    harness.request("done", ("web", 1))
    harness.request("failed", ("huge", 1))
    harness.request("theirs", ("web", 1), of="cloud.example.com")
    harness.run(250)
    assert harness.is_true("done", "BookingExpired")
    assert harness.is_true("failed", "Failed")
    harness.run(150)
    assert [path.rpartition("/")[2] for path in harness.api.store.objects if "provisioningrequests" in path] == [
        "theirs"
    ]
    assert not harness.any_labels()


def test_events_on_a_request_name_its_increment_and_its_decision_is_a_round(make: Make) -> None:
    harness = make(group("a"))
    harness.template("worker", requests={"cpu": "1"})
    with traced(harness.clock) as spans:
        harness.request("r", ("worker", 2))
        harness.run(LONG)
        (status,) = harness.increments()
        assert harness.details("r")["increment"] == status.id
        told = {each.reason: each.increment for each in harness.recorded}
        assert told == {"Accepted": status.id, "Provisioned": status.id}
        steps = {each.name for each in spans.of(tracing.plan(status.increment.plan))}
        assert steps == {"plan", "solving", "committing"}
        assert status.increment.waiting_since_seconds is not None
