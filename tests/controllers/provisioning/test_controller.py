"""The controller of ProvisioningRequests: what is written, ordered, booked and released, and when."""

from __future__ import annotations

import pytest

from cagrpc.api.core.consumption import CONSUME_KEYS
from cagrpc.controllers.settings import ClassBehaviour as Served
from cagrpc.controllers.settings import Drive, RequestSettings
from cagrpc.fleet.model import Phase
from solver.model import Taint, TaintEffect
from tests.controllers.provisioning.conftest import Make
from tests.support.fleet import group
from tests.support.requests import (
    ATOMIC,
    CHECK,
    FIRST_PAUSE_SECONDS,
    REVOKED_AFTER_SECONDS,
    UPSTREAM_ATOMIC,
    UPSTREAM_CHECK,
)
from tests.support.world import BOOT_SECONDS

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
    assert world.condition("r", "Provisioned")["reason"] == "CapacityIsProvisioned"
    details = world.details("r")
    assert details["nodeGroups"] == "a=2"
    assert details["nodes"] == "2"
    assert details["increment"] == world.increments()[0].id
    assert details["nodeSelector"] == f"booking.cagrpc.io/{uid}=true"
    assert float(details["costPerHour"]) == pytest.approx(0.2)
    assert float(details["lowerBoundPerHour"]) <= 0.2
    assert len(world.labelled(uid)) == 2
    assert world.outcomes() == {(ATOMIC, "provisioned"): 1}


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
    assert world.condition("second", "Provisioned")["reason"] == "CapacityIsFound"
    assert len(world.labelled(uid)) == 1
    assert len(world.increments()) == 1


def test_bookings_are_not_given_to_other_requests(make: Make) -> None:
    world = make(group("a"))
    world.request("first", ("web", 4))
    world.run(LONG)
    world.request("second", ("web", 4))
    world.run(LONG)
    assert world.targets() == {"a": 2}
    assert world.is_true("second", "Provisioned")


def test_the_planner_loop_leaves_a_booking_alone(make: Make) -> None:
    world = make(group("a"), drive=Drive.PLAN)
    world.request("r", ("web", 4))
    world.run(LONG)
    world.cluster.scheduling = False
    world.cluster.add(1, cpu=2000)
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
    world.cluster.delete(pods[1])
    world.run(5)
    assert world.details("r")["consumed"] == "0=2"
    world.consume("r", 3)
    world.run(5)
    assert world.page("/provisioningrequests")[0]["phase"] == "consumed"
    assert world.bookings == 0
    world.run(200)
    assert world.condition("r", "BookingExpired") is None


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
    world = make(group("a"), requests=RequestSettings(booking_seconds=120))
    world.request("r", ("web", 4))
    world.run(LONG)
    assert world.kept_for() == {"ns/r"}
    world.consume("r", 1)
    world.run(130)
    assert world.is_true("r", "BookingExpired")
    assert world.condition("r", "BookingExpired")["reason"] == "CapacityReservationTimeExpired"
    assert world.message("r", "BookingExpired").startswith("1 of 4")
    assert world.kept_for() == set()


def test_nodes_that_are_lost_for_good_revoke_the_capacity(make: Make) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))
    world.run(LONG)
    world.cluster.vanish()
    world.run(REVOKED_AFTER_SECONDS / 2)
    assert world.condition("r", "CapacityRevoked") is None
    world.run(REVOKED_AFTER_SECONDS)
    assert world.is_true("r", "CapacityRevoked")
    assert world.bookings == 0


def test_a_request_is_tried_again_where_a_node_that_stood_goes_while_others_come(make: Make) -> None:
    world = make(group("a"))
    world.request("first", ("web", 2))
    world.run(LONG)
    world.delete("first")
    world.run(5)
    uid = world.request("r", ("web", 6))
    world.run(SOON)
    assert world.message("r", "Accepted").startswith("1 x a, beside 1 node that stood")
    (stood,) = world.labelled(uid)
    world.cluster.vanish(stood)
    world.run(LONG)
    assert not world.is_true("r", "Provisioned")
    assert f"1 node that stood beside its own went meanwhile: {stood}" in world.message("r", "Provisioned")
    world.run(2 * FIRST_PAUSE_SECONDS)
    assert world.is_true("r", "Provisioned")
    assert world.targets() == {"a": 2}
    assert world.outcomes() == {(ATOMIC, "provisioned"): 2, (ATOMIC, "rolled-back"): 1}


def test_nodes_that_are_lost_after_all_was_consumed_revoke_nothing(make: Make) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))
    world.run(LONG)
    world.consume("r", 4)
    world.run(5)
    world.cluster.vanish()
    world.run(3 * REVOKED_AFTER_SECONDS)
    assert world.condition("r", "CapacityRevoked") is None


def test_pods_that_replace_those_of_lost_nodes_revoke_the_capacity_where_they_find_no_room(make: Make) -> None:
    """Kueue's own tests expect it, "to prevent replacement pods being stuck"."""
    world = make(group("a"))
    for name in "rs":
        world.request(name, ("web", 8))
        world.run(LONG)
        world.consume(name, 8)
        world.run(5)
    (lost, *_) = sorted(world.labelled(str(world.document("r")["metadata"]["uid"])))
    world.cluster.vanish(lost)
    world.consume("r", 1)
    world.run(REVOKED_AFTER_SECONDS / 2)
    assert world.condition("r", "CapacityRevoked") is None
    world.run(2 * REVOKED_AFTER_SECONDS)
    assert world.message("r", "CapacityRevoked") == (
        "nodes were lost after all of its pods had come; no room is left for 1 pod in their place"
    )
    assert world.condition("s", "CapacityRevoked") is None


def test_pods_that_replace_others_revoke_nothing_where_there_is_room(make: Make) -> None:
    world = make(group("a"))
    uid = world.request("r", ("web", 6))
    world.run(LONG)
    pods = world.consume("r", 6)
    world.run(5)
    world.cluster.vanish(max(world.labelled(uid), key=list(map(world.cluster.node_of, pods)).count))
    world.cluster.scheduling = False
    world.consume("r", 1)
    world.run(3 * REVOKED_AFTER_SECONDS)
    assert world.condition("r", "CapacityRevoked") is None


def test_a_checked_request_is_answered_once_and_keeps_nothing(make: Make) -> None:
    world = make(group("a"))
    world.request("old", ("web", 2))
    world.run(LONG)
    world.delete("old")
    world.request("fits", ("web", 4), of=CHECK)
    world.request("fits-too", ("web", 4), of=CHECK)
    world.request("large", ("web", 9), of=CHECK)
    world.run(5)
    for name in ("fits", "fits-too"):
        assert world.is_true(name, "CapacityAvailable")
        assert world.is_true(name, "Provisioned")
        assert world.message(name, "CapacityAvailable").startswith("4 of 4")
    assert not world.is_true("large", "CapacityAvailable")
    assert world.condition("large", "CapacityAvailable")["reason"] == "CapacityIsNotFound"
    assert world.is_true("large", "Failed")
    assert world.message("large", "Failed").startswith("4 of 9")
    assert world.bookings == 0
    assert len(world.increments()) == 1


def test_upstreams_classes_are_left_alone_unless_they_are_left_to_us(make: Make) -> None:
    world = make(group("a"))
    for name in (UPSTREAM_CHECK, UPSTREAM_ATOMIC, "cloud.example.com"):
        world.request(name, ("web", 1), of=name)
    world.run(LONG)
    assert all("status" not in world.document(name) for name in (UPSTREAM_CHECK, "cloud.example.com"))
    assert not world.increments()
    assert not world.page("/provisioningrequests")


def test_upstreams_check_books_what_it_found_and_fails_only_where_it_is_told_to(make: Make) -> None:
    world = make(group("a"), requests=RequestSettings(upstream_classes=frozenset(Served), booking_seconds=60))
    world.request("room", ("web", 1))
    world.run(LONG)
    world.delete("room")
    world.run(2)
    world.request("first", ("web", 3), of=UPSTREAM_CHECK)
    world.run(2)
    world.request("second", ("web", 3), of=UPSTREAM_CHECK)
    world.request("third", ("web", 3), of=UPSTREAM_CHECK, noRetry="true")
    world.request("elsewhere", ("web", 1), of=UPSTREAM_CHECK, processorInstance="other")
    world.run(2)
    assert world.is_true("first", "Provisioned")
    assert world.condition("second", "Provisioned")["status"] == "False"
    assert world.condition("second", "Failed") is None
    assert world.is_true("third", "Failed")
    assert "status" not in world.document("elsewhere")
    assert world.bookings == 1
    assert world.kept_for() == {"ns/first"}
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
    assert world.bookings == 0
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


def test_nodes_that_no_request_asks_for_any_more_are_never_released(make: Make) -> None:
    world = make(group("a"))
    world.idle.add("releasing nodes")
    world.request("r", ("web", 4))
    world.run(LONG)
    assert world.increments(Phase.READY)
    world.delete("r")
    world.restart()
    world.idle.clear()
    for _ in range(60):
        world.run(1)
        assert not world.increments(Phase.DONE)
    assert world.increments(Phase.ROLLED_BACK)


def test_pods_get_events_of_what_is_wrong_with_their_request(make: Make) -> None:
    world = make(group("a"), requests=RequestSettings(booking_seconds=30))
    (half,) = world.cluster.add(annotations={CONSUME_KEYS[0]: "r"})
    lost = world.consume("nothing", 1)
    theirs = world.consume("nothing", 1, of="cloud.example.com")
    world.request("r", ("web", 4))
    world.run(LONG)
    differing = world.consume("r", 1, cpu=9000, of=CHECK)
    world.consume("r", 4)
    world.run(LONG)
    assert {note.uid for note in world.events("ConsumesByHalf")} == {half}
    missing = {note.uid for note in world.events("ProvisioningRequestMissing")}
    assert missing == set(lost)
    assert not missing & set(theirs)
    assert {note.uid for note in world.events("ProvisioningClassDiffers")} == set(differing)
    assert {note.kind for note in world.events("MoreConsumersThanAskedFor")} >= {"ProvisioningRequest"}


def test_pods_and_request_report_that_checked_capacity_is_gone(make: Make) -> None:
    world = make(group("a"))
    world.request("room", ("web", 1))
    world.run(LONG)
    world.delete("room")
    uid = world.request("r", ("web", 4), of=CHECK)
    world.run(5)
    assert world.is_true("r", "Provisioned")
    world.cluster.add(2, cpu=2000)
    world.run(5)
    pods = world.consume("r", 2, of=CHECK)
    world.run(LONG)
    assert {note.uid for note in world.events("CapacityGone")} == {uid, *pods}


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
    world.remove_template("web")
    world.run(LONG)
    assert world.is_true("r", "Provisioned")
    assert world.bookings == 1
