"""An API server that is slow, refuses or is unreachable, and an unreachable journal: nothing happens twice."""

from __future__ import annotations

import pytest

from cagrpc import errors
from tests.support.controllers.planner import BOOT_SECONDS
from tests.support.controllers.provisioning import Make
from tests.support.fleet import MemoryJournal, group

LONG = 3 * BOOT_SECONDS


def test_a_slow_store_makes_nothing_happen_twice(make: Make) -> None:
    harness = make(group("a"))
    harness.request("r", ("web", 4))
    harness.step()
    harness.store_lags = harness.view_lags = True
    harness.run(BOOT_SECONDS + 15)
    assert len(harness.increments()) == 1
    assert harness.is_true("r", "Provisioned")
    writes = [call for call in harness.api.calls if "provisioningrequests/r" in call]
    assert len(writes) == 2
    harness.store_lags = harness.view_lags = False
    harness.run(5)
    assert len([call for call in harness.api.calls if "provisioningrequests/r" in call]) == 2


def test_a_conflict_is_tried_again(make: Make) -> None:
    harness = make(group("a"))
    harness.request("r", ("web", 4))
    path = next(path for path in harness.api.store.objects if path.endswith("/r"))

    def edit() -> None:
        harness.api.before = lambda: None
        harness.api.store.edit(path, annotations={"a": "b"})

    harness.step()
    harness.api.before = edit
    harness.run(LONG)
    assert harness.is_true("r", "Provisioned")
    assert harness.document("r")["metadata"]["annotations"] == {"a": "b"}
    assert len(harness.increments()) == 1


def test_conditions_of_others_stay(make: Make) -> None:
    harness = make(group("a"))
    harness.request("r", ("web", 4))
    path = next(path for path in harness.api.store.objects if path.endswith("/r"))
    theirs = {
        "type": "example.com/Admitted",
        "status": "Unknown",
        "reason": "Yes",
        "message": "theirs",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 7,
    }
    status = {"conditions": [theirs], "provisioningClassDetails": {"theirs": "1"}}
    harness.api.store.put(path, {**harness.document("r"), "status": status})
    harness.run(LONG)
    found = harness.condition("r", "example.com/Admitted")
    assert found == theirs
    assert harness.details("r")["theirs"] == "1"


def test_one_object_that_cannot_be_written_blocks_no_others(make: Make) -> None:
    harness = make(group("a"))
    harness.request("broken", ("web", 1))
    harness.request("hung", ("web", 1))
    harness.request("good", ("web", 1))

    def refuses(method: str, path: str) -> errors.CagrpcError | None:
        if path.endswith("/broken"):
            return errors.InvalidInput("denied by a webhook")
        return errors.Unavailable("a webhook does not answer") if path.endswith("/hung") else None

    harness.api.refuses = refuses
    harness.run(2 * LONG)
    assert harness.is_true("good", "Provisioned")
    assert len([call for call in harness.api.calls if call.endswith("/broken")]) < 10
    harness.api.refuses = lambda method, path: None
    harness.run(LONG)
    assert harness.is_true("broken", "Provisioned")
    assert harness.is_true("hung", "Provisioned")
    assert sum(increment.increment.deltas["a"] for increment in harness.increments()) == 1


def test_a_node_that_cannot_be_labelled_is_not_used_and_that_is_said(make: Make) -> None:
    harness = make(group("a"))
    harness.request("room", ("web", 1))
    harness.run(LONG)
    harness.delete("room")
    harness.run(5)
    harness.api.refuses = lambda method, path: errors.InvalidInput("no labels here") if "nodes" in path else None
    harness.request("r", ("web", 1))
    harness.run(5)
    assert "no labels here" in harness.message("r", "Provisioned")
    harness.api.refuses = lambda method, path: None
    harness.run(90)
    assert harness.is_true("r", "Provisioned")


def test_out_of_reach_is_said_once_and_survived(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    harness = make(group("a"))
    harness.request("r", ("web", 4))
    harness.api.refuses = lambda method, path: errors.Unavailable("the API server does not answer")
    harness.run(30)
    assert "does not answer" in harness.requests.waits_for or len(harness.increments()) == 1
    harness.clock.advance(LONG)
    assert [harness.provisioning.take(), harness.provisioning.take()] == [False, True]  # and then it waits a while
    reported = [record for record in caplog.records if "the API server does not answer" in record.getMessage()]
    assert len(reported) <= 10
    harness.api.refuses = lambda method, path: None
    harness.run(LONG)
    assert harness.is_true("r", "Provisioned")
    assert len(harness.increments()) == 1


def test_with_the_journal_out_of_reach_nothing_is_ordered_and_later_once(make: Make) -> None:
    harness = make(group("a"))
    assert isinstance(harness.journal, MemoryJournal)
    harness.journal.broken = True
    harness.request("r", ("web", 4))
    harness.run(30)
    harness.journal.broken = False
    harness.run(LONG)
    assert harness.is_true("r", "Provisioned")
    assert len(harness.increments()) == 1


def test_what_is_booked_is_not_said_before_it_is_known(make: Make) -> None:
    harness = make(group("a"))
    state = harness.cluster.state()
    with pytest.raises(errors.Unavailable):
        harness.requests.reservations(state)
    assert not harness.requests.observed_once()
    harness.run(2)
    assert harness.requests.reservations(state) == {}
    assert harness.requests.observed_once()
