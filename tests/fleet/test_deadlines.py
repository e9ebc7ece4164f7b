"""Deadlines, whatever happens to wall clocks: one that is set while the fleet runs, and one of the next process that is
ahead of the last one's, or behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.fleet import lifecycle
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.lifecycle import Times
from cagrpc.fleet.model import IncrementSpec, Origin, Phase
from cagrpc.fleet.records import Changes, Contents, IncrementRecord, Member, MemberState
from cagrpc.runtime.clock import SteadyClock
from tests.support.fleet import FakeClock, FleetHarness, MemoryJournal, group, states

STEPS = [600.0, -600.0, 86_400.0, -86_400.0]


class Clocks:
    """A wall clock that can be set, and the monotonic one of the same machine."""

    def __init__(self) -> None:
        self.wall, self.timer = FakeClock(1_800_000_000.0), FakeClock(5_000.0)

    def pass_time(self, seconds: float) -> None:
        self.wall.advance(seconds)
        self.timer.advance(seconds)

    def steady(self) -> SteadyClock:
        return SteadyClock(self.wall, self.timer)


def _ordered(clocks: Clocks) -> tuple[FleetHarness, Fleet, str]:
    harness = FleetHarness(groups=[group("a")], options={"clock": clocks.steady()})
    fleet = harness.fleet()
    key = fleet.apply(IncrementSpec({"a": 2})).id
    fleet.reconcile()
    return harness, fleet, key


def _taken_over(harness: FleetHarness, clocks: Clocks, ahead: float) -> Fleet:
    """By a process whose wall clock is that much ahead."""
    clocks.wall.advance(ahead)
    harness.options["clock"] = clocks.steady()
    return harness.restart()


def _lasts(clocks: Clocks, fleet: Fleet, key: str) -> float:
    """Seconds until it is rolled back, looked at every 10 s."""
    for seconds in range(0, 2_000, 10):
        fleet.reconcile()
        if fleet.increment(key).phase is Phase.ROLLING_BACK:
            return seconds
        clocks.pass_time(10)
    return float("inf")


@pytest.mark.parametrize("step", STEPS)
def test_a_wall_clock_that_is_set_moves_no_deadline(step: float) -> None:
    clocks = Clocks()
    _, fleet, key = _ordered(clocks)
    clocks.pass_time(300)
    clocks.wall.advance(step)
    assert _lasts(clocks, fleet, key) == 300


def test_the_time_is_that_of_the_wall_clock_when_it_begins() -> None:
    clocks = Clocks()
    clock = clocks.steady()
    assert clock() == clocks.wall()
    clocks.pass_time(7)
    assert clock() == clocks.wall()


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(-1e6, 1e6)), max_size=20))
def test_it_grows_as_time_passes_and_never_otherwise(steps: list[tuple[float, float]]) -> None:
    clocks = Clocks()
    clock = clocks.steady()
    for seconds, step in steps:
        before = clock()
        clocks.wall.advance(step)
        assert clock() == before
        clocks.pass_time(seconds)
        assert clock() == pytest.approx(before + seconds)


@pytest.mark.parametrize(
    ("ahead", "lasts"), [(0.0, 400), (600.0, 300), (-600.0, 600), (86_400.0, 300), (-86_400.0, 600)]
)
def test_who_takes_over_gives_what_is_in_flight_between_half_its_time_and_all_of_it(ahead: float, lasts: float) -> None:
    clocks = Clocks()
    harness, _, key = _ordered(clocks)
    clocks.pass_time(200)
    fleet = _taken_over(harness, clocks, ahead)
    assert fleet.increment(key).phase is Phase.CREATING
    assert _lasts(clocks, fleet, key) == lasts


@pytest.mark.parametrize("ahead", STEPS)
def test_what_came_in_time_is_done_whatever_the_clock_of_the_next_process_says(ahead: float) -> None:
    clocks = Clocks()
    harness, _, key = _ordered(clocks)
    clocks.pass_time(550)
    fleet = _taken_over(harness, clocks, ahead)
    clocks.pass_time(290)
    harness.backend.boot_all()
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.DONE


@pytest.mark.parametrize(("ahead", "lasts"), [(0.0, 400), (600.0, 300), (-600.0, 600)])
def test_the_autoscaler_has_time_to_delete_what_failed(ahead: float, lasts: int) -> None:
    clocks = Clocks()
    harness = FleetHarness(groups=[group("a")], options={"clock": clocks.steady()})
    fleet = harness.fleet()
    fleet.apply(IncrementSpec({"a": 1}, Origin.AUTOSCALER))
    fleet.reconcile()
    harness.backend.vanish(harness.backend.ids()[0])
    fleet.reconcile()
    clocks.pass_time(200)
    fleet = _taken_over(harness, clocks, ahead)
    clocks.pass_time(lasts - 1)
    fleet.reconcile()
    assert states(fleet.snapshot, "a") == ["failed"]
    clocks.pass_time(1)
    fleet.reconcile()
    assert states(fleet.snapshot, "a") == []


def test_what_has_ended_ahead_of_our_time_is_forgotten_a_day_after_it_was_taken_over() -> None:
    clocks = Clocks()
    harness, fleet, _ = _ordered(clocks)
    fleet.delete_instances("a", harness.backend.ids())
    harness.backend.instances.clear()
    fleet.reconcile()
    fleet = _taken_over(harness, clocks, -86_400.0 * 30)
    clocks.pass_time(86_401)
    fleet.reconcile()
    assert isinstance(harness.journal, MemoryJournal)
    assert not harness.journal.shelf[0].increments
    assert not harness.journal.shelf[0].deletions


def test_clocks_that_agree_write_nothing() -> None:
    clocks = Clocks()
    harness, _, _ = _ordered(clocks)
    clocks.pass_time(250)
    _taken_over(harness, clocks, 0.0)
    assert isinstance(harness.journal, MemoryJournal)
    assert harness.journal.commits == []


_TIMES = Times(deadline=600.0, failed_listing=400.0)
_EPOCH = st.floats(0, 4e9)


@st.composite
def _records(draw: st.DrawFn) -> IncrementRecord:
    states = st.lists(st.sampled_from(MemberState), min_size=1, max_size=3)
    return IncrementRecord(
        id=draw(st.text("abc", min_size=1, max_size=2)),
        increment=IncrementSpec({"a": 1}),
        phase=draw(st.sampled_from(Phase)),
        members=tuple(Member(f"t{number}", "a", state) for number, state in enumerate(draw(states))),
        created_at_seconds=draw(_EPOCH),
        deadline_at_seconds=draw(_EPOCH),
        failed_at_seconds=draw(st.none() | _EPOCH),
        finished_at_seconds=draw(st.none() | _EPOCH),
    )


@given(st.lists(_records(), max_size=3, unique_by=lambda record: record.id), _EPOCH)
def test_whatever_was_written_nothing_is_ahead_and_what_waits_has_half_its_time_and_at_most_all(
    records: list[IncrementRecord], now: float
) -> None:
    contents = Contents(records)
    after = contents.after(lifecycle.taken_over(contents, now, _TIMES))
    for before, record in zip(contents.increments.values(), after.increments.values(), strict=True):
        assert record.created_at_seconds <= now
        assert all(at is None or at <= now for at in (record.failed_at_seconds, record.finished_at_seconds))
        if record.phase in (Phase.PLANNED, Phase.CREATING):
            assert now + 300.0 <= record.deadline_at_seconds <= now + 600.0
        if record.failed_at_seconds is not None and any(m.state is MemberState.FAILED for m in record.members):
            assert now + 200.0 <= record.failed_at_seconds + 400.0 <= now + 400.0
        same = {
            "created_at_seconds": before.created_at_seconds,
            "deadline_at_seconds": before.deadline_at_seconds,
            "failed_at_seconds": before.failed_at_seconds,
            "finished_at_seconds": before.finished_at_seconds,
        }
        assert replace(record, **same) == before  # type: ignore[arg-type]
    assert lifecycle.taken_over(after, now, _TIMES) == Changes()
