"""The loop of ProvisioningRequests in a simulated world: what is written, ordered, kept and let go, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cagrpc import errors
from cagrpc.backends.simulated_behaviour import Behaviour
from cagrpc.controllers.requests.classes import (
    ATOMIC_SCALE_UP,
    CHECK_CAPACITY,
    UPSTREAM_ATOMIC_SCALE_UP,
    UPSTREAM_CHECK_CAPACITY,
)
from cagrpc.controllers.requests.consumers import GONE, HALF, MISSING, OTHER_CLASS, TOO_MANY
from cagrpc.controllers.requests.loop import REVOKE_SECONDS
from cagrpc.controllers.requests.model import Behaviour as Served
from cagrpc.controllers.settings import RequestSettings
from cagrpc.controllers.state import PodRef
from cagrpc.fleet.model import Phase
from solver.model import Limit
from tests.controllers.planner_world import BOOT_SECONDS
from tests.controllers.requests_world import RequestsWorld
from tests.fleet.support import MemoryJournal, group

Make = Callable[..., RequestsWorld]
SOON = BOOT_SECONDS / 2
LONG = 3 * BOOT_SECONDS
LIVE = (Phase.PLANNED, Phase.CREATING, Phase.READY, Phase.DONE)


@pytest.fixture
def make() -> Iterator[Make]:
    worlds: list[RequestsWorld] = []

    def made(*groups: Any, **more: Any) -> RequestsWorld:
        worlds.append(RequestsWorld(groups or [group("a")], **more))
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
    assert world.labelled(uid) == {"a-" + name for name in ()} or len(world.labelled(uid)) == 1
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
    world.consume("r", 2)
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
    for _ in range(2500):
        world.run(1)
        if world.details("second").get("attempts", "") != attempts:
            attempts = world.details("second")["attempts"]
            pauses.append(world.clock())
    gaps = [round(later - earlier) for earlier, later in zip(pauses, pauses[1:], strict=False)]
    assert gaps[:3] == pytest.approx([60, 120, 240], abs=4)
    assert max(gaps) <= 604
