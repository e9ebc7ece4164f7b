"""Requests that cannot be served, now or ever: what is retried and when, and what fails with which message."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from cagrpc.api.encoding.json_documents import epoch_seconds
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.settings import RequestSettings
from cagrpc.fleet.catalogue import NVIDIA_GPU
from cagrpc.runtime import tracing
from solver.model import Limit
from tests.controllers.provisioning.conftest import Make
from tests.support.cluster import path_of
from tests.support.devices import CLAIMS, CLASSES, SLICES, TEMPLATES, claim, claim_template, device_class, gpus
from tests.support.fleet import group
from tests.support.traces import traced
from tests.support.world import BOOT_SECONDS

LONG = 3 * BOOT_SECONDS


def test_a_request_of_which_an_offering_is_short_is_told_so_and_loses_no_attempt(make: Make) -> None:
    """As found live: its only GPU group had been short, and it was told to ask for no GPU."""
    gpus = group("gpu", price=3.0)
    world = make(replace(gpus, allocatable={**gpus.allocatable, NVIDIA_GPU: 1}), group("cpu"))
    asks = {"requests": {"cpu": "1", NVIDIA_GPU: "1"}, "limits": {NVIDIA_GPU: "1"}}
    world.template("worker", containers=[{"name": "main", "resources": asks}])
    world.backend.set_behaviours({"gpu": Behaviour(stock=0)})
    world.request("r", ("worker", 2))
    world.run(5)
    assert world.condition("r", "Provisioned")["reason"] == "CapacityIsNotFound"
    assert (world.details("r")["attempts"], len(world.increments())) == ("1", 1)
    world.run(100)  # the back-off is over, the shortage is not
    found = world.condition("r", "Provisioned")
    assert found is not None
    assert (found["status"], found["reason"]) == ("False", "CapacityIsShort")
    until = world.details("r")["retryAt"]  # the next try is when something can have changed
    ends = epoch_seconds(until)
    assert found["message"].startswith(f"backed off after a shortage: node group gpu until {until} (")
    assert "the whole request would fit" in found["message"]
    assert "no attempt is counted" in found["message"]
    assert "lower" not in found["message"]
    assert (world.details("r")["attempts"], len(world.increments())) == ("1", 1), "nothing could be tried"
    assert found["message"] in [note.text for note in world.events("CapacityIsShort")]
    written = len(world.writes())
    world.run(ends - world.clock() - 5)
    assert len(world.writes()) == written, "it is said once"
    world.backend.set_behaviours({"gpu": Behaviour(boot_seconds=BOOT_SECONDS)})
    world.run(10)
    assert len(world.increments()) == 2, "tried once the shortage was over"
    world.run(LONG)
    assert world.is_true("r", "Provisioned")


def test_a_request_without_room_is_tried_as_soon_as_room_is_made(make: Make) -> None:
    world = make(group("a", max_size=1), limits=[Limit("all", {"nodes": 1})])
    world.request("first", ("web", 4), ValidUntilSeconds="9h")
    world.run(LONG)
    world.request("second", ("web", 3), ValidUntilSeconds="9h")
    world.run(200)  # the next attempt is minutes away
    attempts = world.details("second")["attempts"]
    retry_at = epoch_seconds(world.details("second")["retryAt"])
    world.delete("first")
    world.run(20)
    assert world.clock() < retry_at - 30
    assert world.is_true("second", "Provisioned"), "it has the room that was reserved before"
    assert world.details("second")["attempts"] == attempts


def test_a_device_that_is_given_back_after_its_pod_has_ended_is_room_made(make: Make) -> None:
    """Of a node of no node group, whose devices may all be free one day."""
    world = make()
    world.cluster.node("n", group("stranger"))
    held = path_of(CLAIMS, "held")
    eight = claim_template("eight", 8, namespace="ns")
    world.api.put(held, claim("held", *(f"gpu-{number}" for number in range(7)), on="n", namespace="ns"))
    world.api.put(path_of(TEMPLATES, "eight"), eight)
    world.api.put(f"{CLASSES}/gpu", device_class())
    world.api.put(f"{SLICES}/n", gpus(8, on="n"))
    world.template("eight", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "eight"}])
    world.request("r", ("eight", 1), ValidUntilSeconds="9h")
    world.run(200, step=5.0)
    assert "asks for 8 devices, free and matching: 1 (node n)" in world.message("r", "Provisioned")
    before = world.details("r")
    assert world.clock() < epoch_seconds(before["retryAt"]) - 60
    world.api.change(held, status={"allocation": None})
    world.run(20)
    assert world.is_true("r", "Provisioned")
    assert world.details("r")["attempts"] == before["attempts"]


def test_a_shortage_is_rolled_back_and_tried_again_later_and_later(make: Make) -> None:
    world = make(group("a"))
    world.backend.set_behaviours({"*": Behaviour(stock=0)})
    uid = world.request("r", ("web", 4))
    world.run(5)
    found = world.condition("r", "Provisioned")
    assert found is not None
    assert (found["status"], found["reason"]) == ("False", "CapacityIsNotFound")
    assert world.condition("r", "Accepted")["status"] == "False"
    assert world.details("r")["attempts"] == "1"
    assert found["message"].endswith(f"; attempt 1, tried again at {world.details('r')['retryAt']}")
    assert not {"costPerHour", "nodeGroups", "nodes"} & world.details("r").keys(), "it has no nodes, and costs nothing"
    world.run(50)
    assert len(world.increments()) == 1
    world.restart()
    world.run(30)
    assert world.details("r")["attempts"] == "1", "what could not try is no attempt"
    world.run(600)
    assert int(world.details("r")["attempts"]) >= 2
    world.backend.set_behaviours({"*": Behaviour(boot_seconds=BOOT_SECONDS)})
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


def test_bad_requests_fail_with_one_clear_message_and_block_no_others(make: Make) -> None:
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
    bad = {"parameter": "Colour", "validity": '"soon"', "huge": "cpu", "torn": "", "too-many": "20000"}
    for name, reported in bad.items():
        assert world.is_true(name, "Failed"), name
        assert reported in world.message(name, "Failed")
    assert world.condition("no-template", "Failed") is None
    assert world.is_true("good", "Accepted")
    world.run(LONG)
    assert world.is_true("no-template", "Failed")
    assert world.condition("no-template", "Failed")["reason"] == "FailedToCreatePods"
    assert "ns/nothing" in world.message("no-template", "Failed")
    assert world.is_true("good", "Provisioned")
    assert len(world.writes("huge")) == 1


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
    world.backend.set_behaviours({"*": Behaviour(stock=0)})
    world.request("r", ("web", 4), ValidUntilSeconds="5m")
    world.run(290)
    assert world.condition("r", "Failed") is None
    ends = world.details("r")["retryAt"]
    said = world.message("r", "Provisioned")
    assert said.startswith("backed off after a shortage: node group a until ")
    assert said.endswith(
        "; no attempt is counted, and it is"
        f" given up at {ends}, the end of its validity, or tried before where room is made"
    )
    world.run(30)
    assert world.condition("r", "Failed")["reason"] == "Expired"
    why = world.message("r", "Failed")
    assert why.startswith(f"not provisioned by {ends}, the end of its validity: backed off after a shortage: ")
    assert why.endswith("; with it the whole request would fit"), "what is given up is not tried again"
    asked = len(world.increments())
    world.backend.set_behaviours({"*": None})
    world.run(700)
    assert len(world.increments()) == asked


def test_without_retry_the_first_failure_is_the_last(make: Make) -> None:
    world = make(group("a"))
    world.backend.set_behaviours({"*": Behaviour(stock=0)})
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
    assert [path.rpartition("/")[2] for path in world.api.objects if "provisioningrequests" in path] == ["theirs"]
    assert not world.any_labels()


def test_events_on_a_request_name_its_increment_and_its_decision_is_a_round(make: Make) -> None:
    world = make(group("a"))
    world.template("worker", requests={"cpu": "1"})
    with traced(world.clock) as spans:
        world.request("r", ("worker", 2))
        world.run(LONG)
        (status,) = world.increments()
        assert world.details("r")["increment"] == status.id
        told = {each.reason: dict(each.labels) for each in world.events() if each.kind == "ProvisioningRequest"}
        assert told == {reason: {"cagrpc.io/increment": status.id} for reason in ("Accepted", "Provisioned")}
        steps = {each.name for each in spans.of(tracing.plan(status.increment.plan))}
        assert steps == {"plan", "solving", "committing"}
        assert status.increment.waiting_since_seconds is not None
