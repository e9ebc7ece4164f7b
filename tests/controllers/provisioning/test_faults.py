"""An API server that is slow, refuses or is away, and a journal out of reach: nothing happens twice."""

from __future__ import annotations

import pytest

from cagrpc import errors
from tests.support.controllers.planner import BOOT_SECONDS
from tests.support.controllers.provisioning import Make
from tests.support.fleet import MemoryJournal, group

LONG = 3 * BOOT_SECONDS


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
    assert not world.requests.observed_once()
    world.run(2)
    assert world.requests.reservations(state) == {}
    assert world.requests.observed_once()
