"""The controller of ProvisioningRequests: what is written, ordered, booked and released, and when."""

from __future__ import annotations

import pytest

from cagrpc.cluster.state import PodRef
from cagrpc.controllers.provisioning.classes import (
    ATOMIC_SCALE_UP,
    CHECK_CAPACITY,
    UPSTREAM_ATOMIC_SCALE_UP,
    UPSTREAM_CHECK_CAPACITY,
)
from cagrpc.controllers.provisioning.conditions import FIRST_PAUSE_SECONDS
from cagrpc.controllers.provisioning.consumers import GONE, HALF, MISSING, OTHER_CLASS, TOO_MANY
from cagrpc.controllers.provisioning.lost_room import REVOKE_SECONDS
from cagrpc.controllers.settings import ClassBehaviour as Served
from cagrpc.controllers.settings import RequestSettings
from cagrpc.fleet.model import Phase
from solver.model import Taint, TaintEffect
from tests.support.controllers.planner import BOOT_SECONDS
from tests.support.controllers.provisioning import Make
from tests.support.fleet import group

SOON = BOOT_SECONDS / 2
LONG = 3 * BOOT_SECONDS


def test_an_atomic_request_is_accepted_with_an_estimate_and_provisioned_when_every_node_is_ready(make: Make) -> None:
    harness = make(group("a"))
    uid = harness.request("r", ("web", 6))
    harness.run(SOON)
    assert harness.is_true("r", "Accepted")
    assert harness.message("r", "Accepted").startswith("2 x a: ")
    assert harness.condition("r", "Provisioned") is None
    harness.run(LONG)
    assert harness.is_true("r", "Provisioned")
    assert harness.condition("r", "Provisioned")["reason"] == "CapacityIsProvisioned"  # type: ignore[index]
    details = harness.details("r")
    assert details["nodeGroups"] == "a=2"
    assert details["nodes"] == "2"
    assert details["increment"] == harness.increments()[0].id
    assert details["nodeSelector"] == f"booking.cagrpc.io/{uid}=true"
    assert float(details["costPerHour"]) == pytest.approx(0.2)
    assert float(details["lowerBoundPerHour"]) <= 0.2
    assert len(harness.labelled(uid)) == 2
    assert [each.outcome for each in harness.outcomes] == ["provisioned"]
    assert harness.requests.counts() == {(ATOMIC_SCALE_UP, "provisioned"): 1}


def test_the_next_estimate_is_what_the_last_increment_took(make: Make) -> None:
    harness = make(group("a"))
    harness.request("first", ("web", 4))
    harness.run(LONG)
    harness.request("second", ("web", 4))
    harness.run(SOON)
    assert "ready in about 2" in harness.message("second", "Accepted")


def test_what_fits_on_nodes_that_stand_is_provisioned_at_once_and_nothing_is_ordered(make: Make) -> None:
    harness = make(group("a"))
    harness.request("first", ("web", 4))
    harness.run(LONG)
    harness.delete("first")
    harness.run(5)
    uid = harness.request("second", ("web", 3))
    harness.run(3)
    assert harness.condition("second", "Provisioned")["reason"] == "CapacityIsFound"  # type: ignore[index]
    assert len(harness.labelled(uid)) == 1
    assert len(harness.increments()) == 1


def test_bookings_are_not_given_to_other_requests(make: Make) -> None:
    harness = make(group("a"))
    harness.request("first", ("web", 4))
    harness.run(LONG)
    harness.request("second", ("web", 4))
    harness.run(LONG)
    assert harness.targets() == {"a": 2}
    assert harness.is_true("second", "Provisioned")


def test_the_planner_loop_leaves_a_booking_alone(make: Make) -> None:
    harness = make(group("a"))
    harness.plans = True
    harness.request("r", ("web", 4))
    harness.run(LONG)
    harness.cluster.scheduling = False
    harness.add(1, cpu=2000)
    harness.run(LONG)
    assert harness.targets() == {"a": 2}


def test_pods_are_counted_once_and_all_consumed_is_no_expired_booking(make: Make) -> None:
    harness = make(group("a"), requests=RequestSettings(booking_seconds=120))
    harness.request("r", ("web", 4))
    harness.run(LONG)
    pods = harness.consume("r", 2)
    harness.run(5)
    assert harness.details("r")["consumed"] == "0=2"
    harness.cluster.finish(pods[0])
    del harness.cluster.pods[pods[1]]
    harness.run(5)
    assert harness.details("r")["consumed"] == "0=2"
    harness.consume("r", 3)
    harness.run(5)
    assert harness.requests.records()[0]["phase"] == "consumed"
    assert harness.requests.bookings() == 0
    harness.run(200)
    assert harness.condition("r", "BookingExpired") is None


def test_a_booking_lasts_while_pods_keep_coming_and_not_for_ever(make: Make) -> None:
    harness = make(group("a", cpu=40_000), requests=RequestSettings(booking_seconds=120))
    harness.request("r", ("web", 20))
    harness.run(LONG)
    for _ in range(10):
        harness.consume("r", 1)
        harness.run(100)
        assert harness.condition("r", "BookingExpired") is None
    harness.consume("r", 1)
    harness.run(110)
    harness.consume("r", 1)
    harness.run(100)
    assert harness.message("r", "BookingExpired").startswith("12 of 20 of its pods have come within 1200 s")


def test_a_booking_that_is_not_consumed_expires(make: Make) -> None:
    harness = make(group("a"), requests=RequestSettings(booking_seconds=120))
    harness.request("r", ("web", 4))
    harness.run(LONG)
    assert set(harness.requests.booked_nodes().values()) == {"ns/r"}
    harness.consume("r", 1)
    harness.run(130)
    assert harness.is_true("r", "BookingExpired")
    assert harness.condition("r", "BookingExpired")["reason"] == "CapacityReservationTimeExpired"  # type: ignore[index]
    assert harness.message("r", "BookingExpired").startswith("1 of 4")
    assert harness.requests.booked_nodes() == {}


def test_nodes_that_are_lost_for_good_revoke_the_capacity(make: Make) -> None:
    harness = make(group("a"))
    harness.request("r", ("web", 4))
    harness.run(LONG)
    harness.backend.vanish([each.id for each in harness.backend.list_instances().instances])
    harness.run(REVOKE_SECONDS / 2)
    assert harness.condition("r", "CapacityRevoked") is None
    harness.run(REVOKE_SECONDS)
    assert harness.is_true("r", "CapacityRevoked")
    assert harness.requests.bookings() == 0


def test_a_request_is_tried_again_where_a_node_that_stood_goes_while_others_come(make: Make) -> None:
    harness = make(group("a"))
    harness.request("first", ("web", 2))
    harness.run(LONG)
    harness.delete("first")
    harness.run(5)
    uid = harness.request("r", ("web", 6))
    harness.run(SOON)
    assert harness.message("r", "Accepted").startswith("1 x a, beside 1 node that stood")
    (stood,) = harness.labelled(uid)
    (instance,) = (each.id for each in harness.backend.list_instances().instances if each.id.endswith(stood))
    harness.backend.vanish([instance])
    harness.run(LONG)
    assert not harness.is_true("r", "Provisioned")
    assert f"1 node that stood beside its own went meanwhile: {stood}" in harness.message("r", "Provisioned")
    harness.run(2 * FIRST_PAUSE_SECONDS)
    assert harness.is_true("r", "Provisioned")
    assert harness.targets() == {"a": 2}
    assert [each.outcome for each in harness.outcomes] == ["provisioned", "rolled-back", "provisioned"]


def test_nodes_that_are_lost_after_all_was_consumed_revoke_nothing(make: Make) -> None:
    harness = make(group("a"))
    harness.request("r", ("web", 4))
    harness.run(LONG)
    harness.consume("r", 4)
    harness.run(5)
    harness.backend.vanish([each.id for each in harness.backend.list_instances().instances])
    harness.run(3 * REVOKE_SECONDS)
    assert harness.condition("r", "CapacityRevoked") is None


def test_a_checked_request_is_answered_once_and_keeps_nothing(make: Make) -> None:
    harness = make(group("a"))
    harness.request("old", ("web", 2))
    harness.run(LONG)
    harness.delete("old")
    harness.request("fits", ("web", 4), of=CHECK_CAPACITY)
    harness.request("fits-too", ("web", 4), of=CHECK_CAPACITY)
    harness.request("large", ("web", 9), of=CHECK_CAPACITY)
    harness.run(5)
    for name in ("fits", "fits-too"):
        assert harness.is_true(name, "CapacityAvailable")
        assert harness.is_true(name, "Provisioned")
        assert harness.message(name, "CapacityAvailable").startswith("4 of 4")
    assert not harness.is_true("large", "CapacityAvailable")
    assert harness.condition("large", "CapacityAvailable")["reason"] == "CapacityIsNotFound"  # type: ignore[index]
    assert harness.is_true("large", "Failed")
    assert harness.message("large", "Failed").startswith("4 of 9")
    assert harness.requests.bookings() == 0
    assert len(harness.increments()) == 1


def test_upstreams_classes_are_left_alone_unless_they_are_left_to_us(make: Make) -> None:
    harness = make(group("a"))
    for name in (UPSTREAM_CHECK_CAPACITY, UPSTREAM_ATOMIC_SCALE_UP, "cloud.example.com"):
        harness.request(name, ("web", 1), of=name)
    harness.run(LONG)
    assert all("status" not in harness.document(name) for name in (UPSTREAM_CHECK_CAPACITY, "cloud.example.com"))
    assert not harness.increments()
    assert not harness.requests.records()


def test_upstreams_check_books_what_it_found_and_fails_only_where_it_is_told_to(make: Make) -> None:
    harness = make(group("a"), requests=RequestSettings(upstream_classes=frozenset(Served), booking_seconds=60))
    harness.request("room", ("web", 1))
    harness.run(LONG)
    harness.delete("room")
    harness.run(2)
    harness.request("first", ("web", 3), of=UPSTREAM_CHECK_CAPACITY)
    harness.run(2)
    harness.request("second", ("web", 3), of=UPSTREAM_CHECK_CAPACITY)
    harness.request("third", ("web", 3), of=UPSTREAM_CHECK_CAPACITY, noRetry="true")
    harness.request("elsewhere", ("web", 1), of=UPSTREAM_CHECK_CAPACITY, processorInstance="other")
    harness.run(2)
    assert harness.is_true("first", "Provisioned")
    assert harness.condition("second", "Provisioned")["status"] == "False"  # type: ignore[index]
    assert harness.condition("second", "Failed") is None
    assert harness.is_true("third", "Failed")
    assert "status" not in harness.document("elsewhere")
    assert harness.requests.bookings() == 1
    assert set(harness.requests.booked_nodes().values()) == {"ns/first"}
    harness.run(130)
    assert harness.is_true("first", "BookingExpired")
    assert harness.is_true("second", "Provisioned")


@pytest.mark.parametrize("seconds", [0.0, 2.0, SOON, BOOT_SECONDS + 4, LONG])
def test_a_request_that_is_deleted_leaves_nothing_in_any_phase(make: Make, seconds: float) -> None:
    harness = make(group("a"))
    harness.request("r", ("web", 4))
    harness.run(seconds, step=0.5)
    harness.delete("r")
    harness.run(LONG)
    assert not [each for each in harness.increments() if each.phase.in_flight]
    assert not harness.any_labels()
    assert harness.requests.bookings() == 0
    assert harness.targets() in ({}, {"a": 1})
    if seconds <= SOON:
        assert harness.targets() == {}


def test_a_request_that_is_deleted_while_nobody_looks_is_cancelled_after_a_restart(make: Make) -> None:
    harness = make(group("a"))
    harness.request("r", ("web", 4))
    harness.run(SOON)
    assert harness.increments(Phase.CREATING)
    harness.delete("r")
    harness.restart()
    harness.run(LONG)
    assert harness.targets() == {}
    assert harness.increments(Phase.ROLLED_BACK)


def test_what_no_request_asks_for_is_withdrawn_before_requests_count_as_considered(make: Make) -> None:
    harness = make(group("a"))
    harness.releases = False
    harness.request("r", ("web", 4))
    harness.run(LONG)
    assert harness.increments(Phase.READY)
    harness.delete("r")
    harness.restart()
    harness.fleet.reconcile()
    harness.sync()
    harness.requests.step()
    assert harness.requests.observed_once()
    assert harness.increments(Phase.ROLLING_BACK)


def test_pods_get_events_of_what_is_wrong_with_their_request(make: Make) -> None:
    harness = make(group("a"), requests=RequestSettings(booking_seconds=30))
    harness.cluster.half = ((PodRef("half", "ns", "half"), "the annotation X is missing"),)
    lost = harness.consume("nothing", 1)
    theirs = harness.consume("nothing", 1, of="cloud.example.com")
    harness.request("r", ("web", 4))
    harness.run(LONG)
    differing = harness.consume("r", 1, cpu=9000, of=CHECK_CAPACITY)
    harness.consume("r", 4)
    harness.run(LONG)
    assert [note.about.name for note in harness.notes_of(HALF)][:1] == ["half"]
    missing = {note.about.uid for note in harness.notes_of(MISSING)}
    assert missing == set(lost)
    assert not missing & set(theirs)
    assert {note.about.uid for note in harness.notes_of(OTHER_CLASS)} == set(differing)
    assert {note.about.kind for note in harness.notes_of(TOO_MANY)} >= {"ProvisioningRequest"}


def test_pods_and_request_report_that_checked_capacity_is_gone(make: Make) -> None:
    harness = make(group("a"))
    harness.request("room", ("web", 1))
    harness.run(LONG)
    harness.delete("room")
    uid = harness.request("r", ("web", 4), of=CHECK_CAPACITY)
    harness.run(5)
    assert harness.is_true("r", "Provisioned")
    harness.add(2, cpu=2000)
    harness.run(5)
    pods = harness.consume("r", 2, of=CHECK_CAPACITY)
    harness.run(LONG)
    assert {note.about.uid for note in harness.notes_of(GONE)} == {uid, *pods}


def test_a_gang_over_two_groups_is_one_increment(make: Make) -> None:
    gpu = group("gpu", cpu=9000, price=0.5, taints=(Taint("gpu", TaintEffect.NO_SCHEDULE),))
    harness = make(group("a"), gpu)
    harness.template("worker", cpu=8000, tolerations=[{"key": "gpu", "operator": "Exists"}])
    harness.request("r", ("worker", 2), ("web", 3))
    harness.run(LONG)
    (increment,) = harness.increments()
    assert increment.increment.deltas == {"a": 1, "gpu": 2}
    assert harness.is_true("r", "Provisioned")


def test_a_template_that_goes_after_the_decision_changes_nothing(make: Make) -> None:
    harness = make(group("a"))
    harness.request("r", ("web", 4))
    harness.run(SOON)
    del harness.templates["web"]
    harness.run(LONG)
    assert harness.is_true("r", "Provisioned")
    assert harness.requests.bookings() == 1
