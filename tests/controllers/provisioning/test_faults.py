"""An API server that is slow, refuses or is unreachable, and an unreachable journal: nothing happens twice."""

from __future__ import annotations

import pytest

from cagrpc.controllers.settings import Drive
from tests.controllers.provisioning.conftest import Make
from tests.support.fleet import group
from tests.support.requests import path
from tests.support.world import BOOT_SECONDS, PLANNER

LONG = 3 * BOOT_SECONDS


def test_a_slow_store_makes_nothing_happen_twice(make: Make) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))
    world.step()
    world.late.add("provisioningrequests")
    world.run(BOOT_SECONDS + 15)
    assert len(world.increments()) == 1
    assert world.is_true("r", "Provisioned")
    assert len(world.writes("r")) == 2
    world.late.clear()
    world.run(5)
    assert len(world.writes("r")) == 2


def test_a_conflict_is_tried_again(make: Make) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))

    def edit(request: str) -> None:
        if request.startswith("PATCH"):
            world.refuse()
            world.api.edit(path("r"), annotations={"a": "b"})

    world.step()
    world.api.before = edit
    world.run(LONG)
    assert world.is_true("r", "Provisioned")
    assert world.document("r")["metadata"]["annotations"] == {"a": "b"}
    assert len(world.increments()) == 1


def test_conditions_of_others_stay(make: Make) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))
    theirs = {
        "type": "example.com/Admitted",
        "status": "Unknown",
        "reason": "Yes",
        "message": "theirs",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 7,
    }
    status = {"conditions": [theirs], "provisioningClassDetails": {"theirs": "1"}}
    world.api.put(path("r"), {**world.document("r"), "status": status})
    world.run(LONG)
    found = world.condition("r", "example.com/Admitted")
    assert found == theirs
    assert world.details("r")["theirs"] == "1"


def test_one_object_that_cannot_be_written_blocks_no_others(make: Make) -> None:
    world = make(group("a"))
    world.request("broken", ("web", 1))
    world.request("hung", ("web", 1))
    world.request("good", ("web", 1))

    world.refuse(broken=422, hung=503)
    world.run(2 * LONG)
    assert world.is_true("good", "Provisioned")
    assert len(world.writes("broken")) < 10
    world.refuse()
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
    world.refuse(nodes=422)
    world.request("r", ("web", 1))
    world.run(5)
    assert "patch nodes a-4004-0001: refused" in world.message("r", "Provisioned")
    world.refuse()
    world.run(90)
    assert world.is_true("r", "Provisioned")


def test_out_of_reach_is_said_once_and_survived(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    world = make(group("a"))
    world.request("r", ("web", 4))
    world.refuse(api=503)
    world.run(30)
    assert len(world.increments()) == 1
    assert 2 <= len(world.writes("r")) <= 10, "and then it waits a while"
    reported = [each for each in caplog.records if each.getMessage().startswith("ProvisioningRequests failed")]
    assert 1 <= len(reported) <= 10
    world.refuse()
    world.run(LONG)
    assert world.is_true("r", "Provisioned")
    assert len(world.increments()) == 1


def test_with_the_journal_out_of_reach_nothing_is_ordered_and_later_once(make: Make) -> None:
    world = make(group("a"))
    world.journal.broken = True
    world.request("r", ("web", 4))
    world.run(30)
    world.journal.broken = False
    world.run(LONG)
    assert world.is_true("r", "Provisioned")
    assert len(world.increments()) == 1


def test_nothing_is_planned_before_it_is_known_what_is_booked(make: Make) -> None:
    world = make(group("a"), drive=Drive.PLAN)
    world.late.add("provisioningrequests")
    world.cluster.add()
    world.run(30)
    assert not world.increments()
    assert 2 <= world.reads[PLANNER] <= 6, "and then it waits a while"
    assert world.status()["planner"] == (
        "reservations of ProvisioningRequests are unknown yet: the list of ProvisioningRequests is still to come"
    )
    world.late.clear()
    world.run(LONG)
    assert not world.cluster.pending()
