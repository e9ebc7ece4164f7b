"""A journal that is slow, or that another process has taken over: readers do not wait for it, callers wait no longer
than their deadline, and the backend is asked for nothing that the journal has not recorded."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cagrpc import errors
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import IncrementSpec, Origin, Phase
from cagrpc.fleet.records import Changes
from cagrpc.services.grpc import provider
from tests.support.fleet import FakeClock, FleetHarness, MemoryJournal, group, targets
from tests.support.grpc_servers import serving
from tests.support.waiting import AMPLE_SECONDS


class SlowJournal(MemoryJournal):
    """Its commits take `seconds` of the clock, or wait for `answer` while `hang` is set; after `commits_left` more it
    is lost."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.seconds = 0.0
        self.hang = False
        self.commits_left = 1000
        self.entered, self.answer = threading.Event(), threading.Event()

    def commit(self, changes: Changes) -> None:
        if self.hang:
            self.entered.set()
            assert self.answer.wait(AMPLE_SECONDS)
        self.clock.advance(self.seconds)
        self.broken = self.broken or self.commits_left == 0
        super().commit(changes)
        self.commits_left -= 1


class SlowJournalHarness(FleetHarness):
    def __init__(self) -> None:
        super().__init__(groups=[group("a"), group("b")])
        self.journal = self.slow = SlowJournal(self.clock)

    def hanging(self, fleet: Fleet) -> threading.Thread:
        """An `apply` that waits for the journal."""
        self.slow.hang = True
        thread = threading.Thread(target=lambda: fleet.apply(IncrementSpec({"a": 1})), daemon=True)
        thread.start()
        assert self.slow.entered.wait(AMPLE_SECONDS)
        return thread

    def end(self, fleet: Fleet, thread: threading.Thread) -> None:
        self.slow.hang = False
        self.slow.answer.set()
        thread.join(AMPLE_SECONDS)
        fleet.refresh(wait_seconds=10)
        fleet.close()


@pytest.fixture
def harness() -> Iterator[SlowJournalHarness]:
    harness = SlowJournalHarness()
    yield harness
    harness.slow.answer.set()


def test_what_is_read_does_not_wait_for_a_commit(harness: SlowJournalHarness) -> None:
    fleet = harness.threaded()
    key = fleet.apply(IncrementSpec({"b": 1})).id
    thread = harness.hanging(fleet)
    with serving(provider.SERVICE, provider.Provider(fleet).methods(), threads=2) as client:
        assert client.code("NodeGroups", timeout=AMPLE_SECONDS)[0] == "OK"
        code, details = client.code("Refresh", timeout=0.4)
        assert (code, "the journal has not answered for" in details) == ("UNAVAILABLE", True)
        assert client.code("NodeGroups", timeout=AMPLE_SECONDS)[0] == "OK"
    assert fleet.increment(key).phase is Phase.PLANNED
    assert targets(fleet.snapshot) == {"b": 1}
    harness.end(fleet, thread)
    assert targets(fleet.snapshot) == {"a": 1, "b": 1}


def test_a_request_waits_for_its_turn_for_a_limited_time_and_the_silence_is_logged(
    harness: SlowJournalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cagrpc.fleet.fleet._LOCK_SECONDS", 0.01)
    fleet = harness.threaded()
    thread = harness.hanging(fleet)
    for change in (
        lambda: fleet.apply(IncrementSpec({"b": 1}), refusal_wait_seconds=1.0),
        lambda: fleet.delete_instances("a", ["x"]),
        lambda: fleet.decrease_target("a", -1),
        lambda: fleet.release("x"),
    ):
        with pytest.raises(errors.Unavailable, match=r"the journal has not answered for 0\.01 s"):
            change()
    assert fleet.problem is None
    harness.clock.advance(7)
    assert fleet.problem == "the journal has not answered for 7 s"
    harness.end(fleet, thread)
    assert fleet.problem is None
    assert targets(fleet.snapshot) == {"a": 1}


def test_what_was_journalled_too_late_to_be_answered_is_taken_back_before_it_is_ordered(
    harness: SlowJournalHarness,
) -> None:
    fleet = harness.fleet()
    harness.slow.seconds = 4.0
    asked = IncrementSpec({"a": 2}, Origin.AUTOSCALER)
    with pytest.raises(errors.DeadlineExpired, match="the journal took 4 s, the answer was due after 3 s"):
        fleet.apply(asked, refusal_wait_seconds=2.0, answer_within_seconds=3.0)
    assert targets(fleet.snapshot) == {}
    fleet.reconcile()
    assert harness.backend.order_calls == []
    (status,) = fleet.snapshot.increments
    assert (status.phase, status.short_groups) == (Phase.ROLLED_BACK, ())
    assert fleet.apply(asked, answer_within_seconds=4.0).phase is Phase.PLANNED


# Lost, as with its Lease.


def test_a_journal_that_is_lost_in_the_middle_of_a_step_stops_it(harness: SlowJournalHarness) -> None:
    fleet = harness.fleet()
    for key in ("a", "b"):
        fleet.apply(IncrementSpec({key: 1}))
    harness.slow.commits_left = 1  # The first order is journalled, and carried out; its answer is not taken any more.
    harness.backend.before_order = lambda: harness.clock.advance(1)  # and for the second that would be too long ago
    with pytest.raises(errors.Unavailable, match="journal: out of reach"):
        fleet.reconcile()
    assert len(harness.backend.order_calls) == 1
    for _ in range(3):
        with pytest.raises(errors.Unavailable):
            fleet.reconcile()
    assert len(harness.backend.order_calls) == 1
    assert fleet.problem == "journal: out of reach"
    harness.slow.broken, harness.slow.commits_left = False, 1000
    fleet.reconcile()
    assert sorted(len(call) for call in harness.backend.order_calls) == [1, 1]
    assert len(harness.backend.executed_orders) == 2


def test_an_order_is_not_repeated_without_the_journal(harness: SlowJournalHarness) -> None:
    fleet = harness.fleet()
    harness.backend.lose_answers = harness.backend.hide_new = True
    fleet.apply(IncrementSpec({"a": 1}))
    fleet.reconcile()
    asked = len(harness.backend.order_calls)
    harness.slow.broken = True  # Nobody knows it yet: the last write was a moment ago.
    with pytest.raises(errors.Unavailable):
        fleet.reconcile()
    assert len(harness.backend.order_calls) == asked


def test_nothing_is_deleted_once_the_journal_is_known_to_be_lost(harness: SlowJournalHarness) -> None:
    fleet = harness.fleet()
    fleet.apply(IncrementSpec({"a": 1}))
    fleet.reconcile()
    harness.backend.boot_all()
    fleet.reconcile()
    harness.backend.unreachable_groups = {"a"}
    fleet.delete_instances("a", harness.backend.ids())
    harness.slow.broken = True
    with pytest.raises(errors.Unavailable):
        fleet.apply(IncrementSpec({"b": 1}))
    harness.backend.unreachable_groups = set()
    with pytest.raises(errors.Unavailable):
        fleet.reconcile()
    assert harness.backend.executed_deletes == []
    harness.slow.broken = False
    fleet.reconcile()
    assert len(harness.backend.executed_deletes) == 1


def test_a_closed_fleet_asks_the_backend_for_nothing(harness: SlowJournalHarness) -> None:
    fleet = harness.fleet()
    fleet.apply(IncrementSpec({"a": 1}))
    fleet.close()
    for step in (fleet.reconcile, fleet.refresh):
        with pytest.raises(errors.Unavailable, match="closed"):
            step()
    assert harness.backend.order_calls == []
    assert targets(fleet.snapshot) == {"a": 1}  # What was seen last can still be read.
