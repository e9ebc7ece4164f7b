"""A slow backend: no caller waits for it longer than its deadline, and the delay is logged."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cagrpc import errors
from cagrpc.fleet.fleet import Fleet, FleetListeners, FleetSettings
from cagrpc.fleet.model import IncrementSpec
from cagrpc.services.grpc import provider
from tests.support.fleet import FleetHarness, group, targets
from tests.support.grpc_servers import serving
from tests.support.waiting import AMPLE_SECONDS


class SlowBackendHarness(FleetHarness):
    """Its backend's list answers when `answer` is set; `asked` counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__(groups=[group("a")])
        self.asked = 0
        self.entered, self.answer = threading.Event(), threading.Event()

    def slow_down(self) -> None:
        def slow() -> None:
            self.asked += 1
            self.entered.set()
            assert self.answer.wait(AMPLE_SECONDS)

        self.backend.before_list = slow


@pytest.fixture
def harness() -> Iterator[SlowBackendHarness]:
    harness = SlowBackendHarness()
    yield harness
    harness.answer.set()


def _answer(harness: SlowBackendHarness, fleet: Fleet) -> None:
    harness.answer.set()
    fleet.refresh(wait_seconds=10)


def test_a_refresh_waits_no_longer_than_its_deadline_and_the_silence_is_logged(harness: SlowBackendHarness) -> None:
    fleet = harness.threaded()
    harness.slow_down()
    with pytest.raises(errors.Unavailable, match=r"the backend has not answered for 0\.01 s"):
        fleet.refresh(wait_seconds=0.01)
    assert harness.entered.wait(AMPLE_SECONDS)
    harness.clock.advance(4)
    assert fleet.problem is None
    harness.clock.advance(3)
    assert fleet.problem == "the backend has not answered for 7 s"
    with pytest.raises(errors.Unavailable, match="the backend has not answered for 7 s"):
        fleet.refresh(wait_seconds=0.01)
    _answer(harness, fleet)
    assert fleet.problem is None
    fleet.close()


def test_each_call_of_the_backend_is_progress(harness: SlowBackendHarness) -> None:
    beats: list[str] = []
    fleet = Fleet(
        FleetSettings(harness.groups, harness.limits),
        harness.backend,
        harness.journal,
        clock=harness.clock,
        listeners=FleetListeners(beat=beats.append),
    )
    fleet.apply_all([IncrementSpec({"a": 2}), IncrementSpec({"a": 1})])
    beats.clear()
    fleet.reconcile()
    listing = "listing instances"
    assert beats == [listing, "ordering 2 instances", "ordering 1 instance", listing]
    fleet.delete_instances("a", harness.backend.ids())
    beats.clear()
    fleet.reconcile()
    assert beats == [listing, "deleting 3 instances", listing]
    fleet.apply(IncrementSpec({"a": 1}), refusal_wait_seconds=10.0)
    assert beats[3:] == ["ordering 1 instance"]


def test_refreshes_that_come_while_one_is_under_way_join_it(harness: SlowBackendHarness) -> None:
    fleet = harness.threaded()
    harness.slow_down()
    for _ in range(20):
        with pytest.raises(errors.Unavailable):
            fleet.refresh(wait_seconds=0.001)
    assert harness.entered.wait(AMPLE_SECONDS)
    harness.backend.before_list = None
    _answer(harness, fleet)
    assert harness.asked == 1
    fleet.close()


def test_a_start_does_not_wait_for_a_backend_that_hangs(
    harness: SlowBackendHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cagrpc.fleet.fleet._FIRST_LISTING_SECONDS", 0.01)
    harness.slow_down()
    fleet = harness.threaded()
    with pytest.raises(errors.Unavailable, match="the backend was not reached yet"):
        fleet.apply(IncrementSpec({"a": 1}))
    _answer(harness, fleet)
    fleet.apply(IncrementSpec({"a": 1}))
    assert targets(fleet.snapshot) == {"a": 1}
    fleet.close()


def test_an_unexpected_error_of_a_step_reaches_who_waits_for_it(harness: SlowBackendHarness) -> None:
    fleet = harness.threaded()

    def broken() -> None:
        raise KeyError("a bug")

    harness.backend.before_list = broken
    with pytest.raises(KeyError, match="a bug"):
        fleet.refresh(wait_seconds=10)
    harness.backend.before_list = None
    fleet.refresh(wait_seconds=10)
    fleet.close()


def test_any_number_of_refreshes_leave_threads_for_what_is_read(harness: SlowBackendHarness) -> None:
    fleet = harness.threaded()
    harness.slow_down()
    with serving(provider.SERVICE, provider.Provider(fleet).methods(), threads=2) as client:
        for _ in range(6):
            code, details = client.code("Refresh", timeout=0.4)
            assert (code, "has not answered" in details) == ("UNAVAILABLE", True)
            assert client.code("NodeGroups", timeout=AMPLE_SECONDS)[0] == "OK"
    _answer(harness, fleet)
    fleet.close()
