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
    world = make(group("a"))
    uid = world.request("r", ("web", 6))
    world.run(SOON)
    assert world.is_true("r", "Accepted")
    assert world.message("r", "Accepted").startswith("2 x a: ")
    assert world.condition("r", "Provisioned") is None
    world.run(LONG)
    assert world.is_true("r", "Provisioned")
    assert world.condition("r", "Provisioned")["reason"] == "CapacityIsProvisioned"  # type: ignore[index]
    details = world.details("r")
    assert details["nodeGroups"] == "a=2"
    assert details["nodes"] == "2"
    assert details["increment"] == world.increments()[0].id
    assert details["nodeSelector"] == f"booking.cagrpc.io/{uid}=true"
    assert float(details["costPerHour"]) == pytest.approx(0.2)
    assert float(details["lowerBoundPerHour"]) <= 0.2
    assert len(world.labelled(uid)) == 2
    assert [each.outcome for each in world.outcomes] == ["provisioned"]
    assert world.requests.counts() == {(ATOMIC_SCALE_UP, "provisioned"): 1}


def test_the_next_estimate_is_what_the_last_increment_took(make: Make) -> None:
    world = make(group("a"))
    world.request("first", ("web", 4))
    world.run(LONG)
    world.request("second", ("web", 4))
    world.run(SOON)
    assert "ready in about 2" in world.message("second", "Accepted")


def test_what_fits_on_nodes_that_stand_is_provisioned_at_once_and_nothing_is_ordered(make: Make) -> None:
    world = make(group("a"))
    world.request("first", ("web", 4))
    world.run(LONG)
    world.delete("first")
    world.run(5)
    uid = world.request("second", ("web", 3))
    world.run(3)
    assert world.condition("second", "Provisioned")["reason"] == "CapacityIsFound"  # type: ignore[index]
    assert len(world.labelled(uid)) == 1
    assert len(world.increments()) == 1


def test_bookings_are_kept_from_other_requests(make: Make) -> None:
    world = make(group("a"))
    world.request("first", ("web", 4))
    world.run(LONG)
    world.request("second", ("web", 4))
    world.run(LONG)
    assert world.targets() == {"a": 2}
    assert world.is_true("second", "Provisioned")


def test_the_planner_loop_leaves_a_booking_alone(make: Make) -> None:
    world = make(group("a"))
    world.plans = True
    world.request("r", ("web", 4))
    world.run(LONG)
    world.cluster.scheduling = False
    world.add(1, cpu=2000)
    world.run(LONG)
    assert world.targets() == {"a": 2}


def test_pods_are_counted_once_and_all_consumed_is_no_expired_booking(make: Make) -> None:
    world = make(group("a"), requests=RequestSettings(booking_seconds=120))
    world.request("r", ("web", 4))
    world.run(LONG)
    pods = world.consume("r", 2)
    world.run(5)
    assert world.details("r")["consumed"] == "0=2"
    world.cluster.finish(pods[0])
    del world.cluster.pods[pods[1]]
    world.run(5)
    assert world.details("r")["consumed"] == "0=2"
    world.consume("r", 3)
    world.run(5)
    assert world.requests.records()[0]["phase"] == "consumed"
    assert world.requests.bookings() == 0
    world.run(200)
    assert world.condition("r", "BookingExpired") is None


def test_a_booking_that_is_not_consumed_expires(make: Make) -> None:
    world = make(group("a"), requests=RequestSettings(booking_seconds=120))
    world.request("r", ("web", 4))
    world.run(LONG)
    assert set(world.requests.booked_nodes().values()) == {"ns/r"}
    world.consume("r", 1)
    world.run(130)
    assert world.is_true("r", "BookingExpired")
    assert world.condition("r", "BookingExpired")["reason"] == "CapacityReservationTimeExpired"  # type: ignore[index]
    assert world.message("r", "BookingExpired").startswith("1 of 4")
    assert world.requests.booked_nodes() == {}


def test_nodes_that_are_lost_for_good_revoke_the_capacity(make: Make) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))
    world.run(LONG)
    world.backend.vanish([each.id for each in world.backend.list_instances()])
    world.run(REVOKE_SECONDS / 2)
    assert world.condition("r", "CapacityRevoked") is None
    world.run(REVOKE_SECONDS)
    assert world.is_true("r", "CapacityRevoked")
    assert world.requests.bookings() == 0


def test_nodes_that_are_lost_after_all_was_consumed_revoke_nothing(make: Make) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))
    world.run(LONG)
    world.consume("r", 4)
    world.run(5)
    world.backend.vanish([each.id for each in world.backend.list_instances()])
    world.run(3 * REVOKE_SECONDS)
    assert world.condition("r", "CapacityRevoked") is None


def test_a_checked_request_is_answered_once_and_keeps_nothing(make: Make) -> None:
    world = make(group("a"))
    world.request("old", ("web", 2))
    world.run(LONG)
    world.delete("old")
    world.request("fits", ("web", 4), of=CHECK_CAPACITY)
    world.request("fits-too", ("web", 4), of=CHECK_CAPACITY)
    world.request("large", ("web", 9), of=CHECK_CAPACITY)
    world.run(5)
    for name in ("fits", "fits-too"):
        assert world.is_true(name, "CapacityAvailable")
        assert world.is_true(name, "Provisioned")
        assert world.message(name, "CapacityAvailable").startswith("4 of 4")
    assert not world.is_true("large", "CapacityAvailable")
    assert world.condition("large", "CapacityAvailable")["reason"] == "CapacityIsNotFound"  # type: ignore[index]
    assert world.is_true("large", "Failed")
    assert world.message("large", "Failed").startswith("4 of 9")
    assert world.requests.bookings() == 0
    assert len(world.increments()) == 1


def test_upstreams_classes_are_left_alone_unless_they_are_left_to_us(make: Make) -> None:
    world = make(group("a"))
    for name in (UPSTREAM_CHECK_CAPACITY, UPSTREAM_ATOMIC_SCALE_UP, "cloud.example.com"):
        world.request(name, ("web", 1), of=name)
    world.run(LONG)
    assert all("status" not in world.document(name) for name in (UPSTREAM_CHECK_CAPACITY, "cloud.example.com"))
    assert not world.increments()
    assert not world.requests.records()


def test_upstreams_check_books_what_it_found_and_fails_only_where_it_is_told_to(make: Make) -> None:
    world = make(group("a"), requests=RequestSettings(upstream_classes=frozenset(Served), booking_seconds=60))
    world.request("room", ("web", 1))
    world.run(LONG)
    world.delete("room")
    world.run(2)
    world.request("first", ("web", 3), of=UPSTREAM_CHECK_CAPACITY)
    world.run(2)
    world.request("second", ("web", 3), of=UPSTREAM_CHECK_CAPACITY)
    world.request("third", ("web", 3), of=UPSTREAM_CHECK_CAPACITY, noRetry="true")
    world.request("elsewhere", ("web", 1), of=UPSTREAM_CHECK_CAPACITY, processorInstance="other")
    world.run(2)
    assert world.is_true("first", "Provisioned")
    assert world.condition("second", "Provisioned")["status"] == "False"  # type: ignore[index]
    assert world.condition("second", "Failed") is None
    assert world.is_true("third", "Failed")
    assert "status" not in world.document("elsewhere")
    assert world.requests.bookings() == 1
    assert set(world.requests.booked_nodes().values()) == {"ns/first"}
    world.run(130)
    assert world.is_true("first", "BookingExpired")
    assert world.is_true("second", "Provisioned")


@pytest.mark.parametrize("seconds", [0.0, 2.0, SOON, BOOT_SECONDS + 4, LONG])
def test_a_request_that_is_deleted_leaves_nothing_in_any_phase(make: Make, seconds: float) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))
    world.run(seconds, step=0.5)
    world.delete("r")
    world.run(LONG)
    assert not [each for each in world.increments() if each.phase.in_flight]
    assert not world.any_labels()
    assert world.requests.bookings() == 0
    assert world.targets() in ({}, {"a": 1})
    if seconds <= SOON:
        assert world.targets() == {}


def test_a_request_that_is_deleted_while_nobody_looks_is_cancelled_after_a_restart(make: Make) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))
    world.run(SOON)
    assert world.increments(Phase.CREATING)
    world.delete("r")
    world.restart()
    world.run(LONG)
    assert world.targets() == {}
    assert world.increments(Phase.ROLLED_BACK)


def test_what_nobody_asks_for_is_withdrawn_before_requests_are_called_looked_at(make: Make) -> None:
    world = make(group("a"))
    world.releases = False
    world.request("r", ("web", 4))
    world.run(LONG)
    assert world.increments(Phase.READY)
    world.delete("r")
    world.restart()
    world.fleet.reconcile()
    world.sync()
    world.requests.step()
    assert world.requests.observed_once()
    assert world.increments(Phase.ROLLING_BACK)


def test_pods_are_told_what_is_amiss_with_their_request(make: Make) -> None:
    world = make(group("a"), requests=RequestSettings(booking_seconds=30))
    world.cluster.half = ((PodRef("half", "ns", "half"), "the annotation X is missing"),)
    lost = world.consume("nothing", 1)
    theirs = world.consume("nothing", 1, of="cloud.example.com")
    world.request("r", ("web", 4))
    world.run(LONG)
    differing = world.consume("r", 1, cpu=9000, of=CHECK_CAPACITY)
    world.consume("r", 4)
    world.run(LONG)
    assert [note.about.name for note in world.notes_of(HALF)][:1] == ["half"]
    missing = {note.about.uid for note in world.notes_of(MISSING)}
    assert missing == set(lost)
    assert not missing & set(theirs)
    assert {note.about.uid for note in world.notes_of(OTHER_CLASS)} == set(differing)
    assert {note.about.kind for note in world.notes_of(TOO_MANY)} >= {"ProvisioningRequest"}


def test_pods_that_find_their_checked_capacity_gone_are_told_and_so_is_the_request(make: Make) -> None:
    world = make(group("a"))
    world.request("room", ("web", 1))
    world.run(LONG)
    world.delete("room")
    uid = world.request("r", ("web", 4), of=CHECK_CAPACITY)
    world.run(5)
    assert world.is_true("r", "Provisioned")
    world.add(2, cpu=2000)
    world.run(5)
    pods = world.consume("r", 2, of=CHECK_CAPACITY)
    world.run(LONG)
    assert {note.about.uid for note in world.notes_of(GONE)} == {uid, *pods}


def test_a_gang_over_two_groups_is_one_increment(make: Make) -> None:
    gpu = group("gpu", cpu=9000, price=0.5, taints=(Taint("gpu", TaintEffect.NO_SCHEDULE),))
    world = make(group("a"), gpu)
    world.template("worker", cpu=8000, tolerations=[{"key": "gpu", "operator": "Exists"}])
    world.request("r", ("worker", 2), ("web", 3))
    world.run(LONG)
    (increment,) = world.increments()
    assert increment.increment.deltas == {"a": 1, "gpu": 2}
    assert world.is_true("r", "Provisioned")


def test_a_template_that_goes_after_the_decision_changes_nothing(make: Make) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))
    world.run(SOON)
    del world.templates["web"]
    world.run(LONG)
    assert world.is_true("r", "Provisioned")
    assert world.requests.bookings() == 1
