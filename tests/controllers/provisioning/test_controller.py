"""The loop of ProvisioningRequests in a simulated world: what is written, ordered, kept and let go, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from cagrpc import errors
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.cluster.state import ClusterState, PodRef
from cagrpc.controllers.provisioning import fairness
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
from solver.model import Limit, Taint, TaintEffect
from tests.support.fleet import MemoryJournal, group
from tests.support.planner import BOOT_SECONDS
from tests.support.provisioning import ProvisioningHarness

Make = Callable[..., ProvisioningHarness]
SOON = BOOT_SECONDS / 2
LONG = 3 * BOOT_SECONDS
LIVE = (Phase.PLANNED, Phase.CREATING, Phase.READY, Phase.DONE)


@pytest.fixture
def make() -> Iterator[Make]:
    worlds: list[ProvisioningHarness] = []

    def made(*groups: Any, **more: Any) -> ProvisioningHarness:
        worlds.append(ProvisioningHarness(groups or [group("a")], **more))
        worlds[-1].template("web", cpu=1000)
        return worlds[-1]

    yield made
    for world in worlds:
        world.close()


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
    assert world.requests.looked
    assert world.increments(Phase.ROLLING_BACK)


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


def test_a_slow_store_makes_nothing_happen_twice(make: Make) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))
    world.step()
    world.store_lags = world.view_lags = True
    world.run(BOOT_SECONDS + 15)
    assert len(world.increments()) == 1
    assert world.is_true("r", "Provisioned")
    writes = [call for call in world.api.calls if "provisioningrequests/r" in call]
    assert len(writes) == 2
    world.store_lags = world.view_lags = False
    world.run(5)
    assert len([call for call in world.api.calls if "provisioningrequests/r" in call]) == 2


def test_a_conflict_is_looked_at_again(make: Make) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))
    path = next(path for path in world.api.store.objects if path.endswith("/r"))

    def edit() -> None:
        world.api.before = lambda: None
        world.api.store.edit(path, annotations={"a": "b"})

    world.step()
    world.api.before = edit
    world.run(LONG)
    assert world.is_true("r", "Provisioned")
    assert world.document("r")["metadata"]["annotations"] == {"a": "b"}
    assert len(world.increments()) == 1


def test_conditions_of_others_stay(make: Make) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))
    path = next(path for path in world.api.store.objects if path.endswith("/r"))
    theirs = {
        "type": "example.com/Admitted",
        "status": "Unknown",
        "reason": "Yes",
        "message": "theirs",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 7,
    }
    status = {"conditions": [theirs], "provisioningClassDetails": {"theirs": "1"}}
    world.api.store.put(path, {**world.document("r"), "status": status})
    world.run(LONG)
    found = world.condition("r", "example.com/Admitted")
    assert found == theirs
    assert world.details("r")["theirs"] == "1"


def test_one_object_that_cannot_be_written_is_in_nobodys_way(make: Make) -> None:
    world = make(group("a"))
    world.request("broken", ("web", 1))
    world.request("hung", ("web", 1))
    world.request("good", ("web", 1))

    def refuses(method: str, path: str) -> errors.CagrpcError | None:
        if path.endswith("/broken"):
            return errors.InvalidInput("denied by a webhook")
        return errors.Unavailable("a webhook does not answer") if path.endswith("/hung") else None

    world.api.refuses = refuses
    world.run(2 * LONG)
    assert world.is_true("good", "Provisioned")
    assert len([call for call in world.api.calls if call.endswith("/broken")]) < 10
    world.api.refuses = lambda method, path: None
    world.run(LONG)
    assert world.is_true("broken", "Provisioned")
    assert world.is_true("hung", "Provisioned")
    assert sum(increment.increment.deltas["a"] for increment in world.increments()) == 1


def test_a_node_that_cannot_be_labelled_is_not_used_and_that_is_said(make: Make) -> None:
    world = make(group("a"))
    world.request("room", ("web", 1))
    world.run(LONG)
    world.delete("room")
    world.run(5)
    world.api.refuses = lambda method, path: errors.InvalidInput("no labels here") if "nodes" in path else None
    world.request("r", ("web", 1))
    world.run(5)
    assert "no labels here" in world.message("r", "Provisioned")
    world.api.refuses = lambda method, path: None
    world.run(90)
    assert world.is_true("r", "Provisioned")


def test_out_of_reach_is_said_once_and_survived(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))
    world.api.refuses = lambda method, path: errors.Unavailable("the API server does not answer")
    world.run(30)
    assert "does not answer" in world.requests.waits_for or len(world.increments()) == 1
    world.clock.advance(LONG)
    assert [world.provisioning.take(), world.provisioning.take()] == [False, True]  # and then it waits a while
    told = [record for record in caplog.records if "the API server does not answer" in record.getMessage()]
    assert len(told) <= 10
    world.api.refuses = lambda method, path: None
    world.run(LONG)
    assert world.is_true("r", "Provisioned")
    assert len(world.increments()) == 1


def test_with_the_journal_out_of_reach_nothing_is_ordered_and_later_once(make: Make) -> None:
    world = make(group("a"))
    assert isinstance(world.journal, MemoryJournal)
    world.journal.broken = True
    world.request("r", ("web", 4))
    world.run(30)
    world.journal.broken = False
    world.run(LONG)
    assert world.is_true("r", "Provisioned")
    assert len(world.increments()) == 1


def test_what_is_booked_is_not_said_before_it_is_known(make: Make) -> None:
    world = make(group("a"))
    state = world.cluster.state()
    with pytest.raises(errors.Unavailable):
        world.requests.reservations(state)
    assert not world.requests.looked
    world.run(2)
    assert world.requests.reservations(state) == {}
    assert world.requests.looked


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
    monkeypatch.setattr(fairness, "MOST_AT_ONCE", 4)
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
    monkeypatch.setattr(fairness, "MOST_AT_ONCE", 2)
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


def test_looking_at_many_takes_a_small_share_of_a_core(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(group("a"))
    world.request("r", ("web", 1))
    world.run(LONG)
    passed = iter(range(1000))
    world.cpu = lambda: 0.06 * next(passed)  # a look takes 0.06 s, so one in three seconds is 2 %
    world.restart()
    world.run(5)
    looks = []
    seen = world.cluster.state

    def look() -> ClusterState:
        looks.append(world.clock())
        return seen()

    monkeypatch.setattr(world.cluster, "state", look)
    world.run(12, step=0.25)
    assert [round(later - before) for before, later in pairwise(looks)] == [3, 3, 3]


def test_a_gang_over_two_groups_is_one_increment(make: Make) -> None:
    gpu = group("gpu", cpu=9000, price=0.5, taints=(Taint("gpu", TaintEffect.NO_SCHEDULE),))
    world = make(group("a"), gpu)
    world.template("worker", cpu=8000, tolerations=[{"key": "gpu", "operator": "Exists"}])
    world.request("r", ("worker", 2), ("web", 3))
    world.run(LONG)
    (increment,) = world.increments()
    assert increment.increment.deltas == {"a": 1, "gpu": 2}
    assert world.is_true("r", "Provisioned")


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


def test_a_template_that_goes_after_the_decision_changes_nothing(make: Make) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))
    world.run(SOON)
    del world.templates["web"]
    world.run(LONG)
    assert world.is_true("r", "Provisioned")
    assert world.requests.bookings() == 1
