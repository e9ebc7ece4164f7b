"""Many increments at once: one write to the journal where each of them would need one, and still each on its own."""

from __future__ import annotations

from collections import Counter

import pytest

from cagrpc import errors
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import IncrementSpec, IncrementStatus, Phase
from cagrpc.fleet.records import Changes, MemberState
from solver.model import Limit
from tests.support.fleet import FleetHarness, MemoryJournal, group, targets


@pytest.fixture
def harness() -> FleetHarness:
    return FleetHarness(groups=[group("a", max_size=5), group("b", max_size=5)], limits=[Limit("all", {"nodes": 8})])


def _commits(harness: FleetHarness) -> list[Counter[str]]:
    assert isinstance(harness.journal, MemoryJournal)
    return [Counter(record.phase.value for record in changes.increments) for changes in harness.journal.commits]


def _ids(fleet: Fleet, *asked: IncrementSpec) -> list[str]:
    answers = fleet.apply_all(asked)
    assert all(isinstance(answer, IncrementStatus) for answer in answers), answers
    return [answer.id for answer in answers if isinstance(answer, IncrementStatus)]


def test_each_is_admitted_beside_those_before_it_with_one_write(harness: FleetHarness) -> None:
    fleet = harness.fleet()
    before, commits = fleet.snapshot.version, len(_commits(harness))
    asked = [
        IncrementSpec({"a": 3}),
        IncrementSpec({"a": 3}),
        IncrementSpec({"x": 1}),
        IncrementSpec({"b": 4}),
        IncrementSpec({"b": 1, "a": 1}),
    ]
    answers = fleet.apply_all(asked)
    assert [answer.increment if isinstance(answer, IncrementStatus) else type(answer) for answer in answers] == [
        asked[0],
        errors.OutOfRange,
        errors.NotFound,
        asked[3],
        errors.LimitExceeded,
    ]
    assert "target size 3 plus delta 3" in str(answers[1])
    assert "nodes is at 7 of 8, 2 more" in str(answers[4])
    assert targets(fleet.snapshot) == {"a": 3, "b": 4}
    assert _commits(harness)[commits:] == [{"planned": 2}]
    assert fleet.snapshot.version == before + 1


def test_nothing_of_it_is_in_force_where_the_journal_is_out_of_reach(harness: FleetHarness) -> None:
    fleet = harness.fleet()
    assert isinstance(harness.journal, MemoryJournal)
    harness.journal.broken = True
    with pytest.raises(errors.Unavailable):
        fleet.apply_all([IncrementSpec({"a": 1}), IncrementSpec({"b": 1})])
    assert targets(fleet.snapshot) == {}


class _Narrow(MemoryJournal):
    """Takes no increment of more than three nodes."""

    def commit(self, changes: Changes) -> None:
        if any(len(record.members) > 3 for record in changes.increments):
            raise errors.InvalidInput("too large")
        super().commit(changes)


def test_one_that_the_journal_cannot_keep_hinders_no_other(harness: FleetHarness) -> None:
    harness.journal = _Narrow()
    fleet = harness.fleet()
    answers = fleet.apply_all([IncrementSpec({"a": 1}), IncrementSpec({"a": 4}), IncrementSpec({"b": 2})])
    assert [type(answer) for answer in answers] == [IncrementStatus, errors.InvalidInput, IncrementStatus]
    assert targets(fleet.snapshot) == {"a": 1, "b": 2}


def test_each_is_an_order_of_its_own_and_the_journal_is_written_before_and_after_all(harness: FleetHarness) -> None:
    fleet = harness.fleet()
    _ids(fleet, *(IncrementSpec({"a": 1, "b": 1}) for _ in range(3)))
    commits = len(_commits(harness))
    seen: list[Counter[str]] = []
    harness.backend.before_order = lambda: seen.append(Counter(status.phase.value for status in _stored(harness)))
    fleet.reconcile()
    assert [len(call) for call in harness.backend.order_calls] == [2, 2, 2]
    assert seen == [{"creating": 3}] * 3
    # Begun, and answered; what the next look learns of instances is the third.
    assert _commits(harness)[commits:] == [{"creating": 3}] * 3


def _stored(harness: FleetHarness) -> list[IncrementStatus]:
    assert isinstance(harness.journal, MemoryJournal)
    return [record.status() for record in harness.journal.shelf[0].increments.values()]


def test_one_that_is_withdrawn_while_others_are_ordered_is_not_ordered(harness: FleetHarness) -> None:
    fleet = harness.fleet()
    first, second, third = _ids(fleet, IncrementSpec({"a": 1}), IncrementSpec({"a": 1}), IncrementSpec({"b": 1}))

    def withdraw() -> None:
        harness.backend.before_order = None
        fleet.withdraw(second, "no longer wanted")

    harness.backend.before_order = withdraw
    fleet.reconcile()
    assert [call[0].partition("-")[0] for call in harness.backend.order_calls] == [first, third]
    assert [fleet.increment(key).phase for key in (first, second, third)] == [
        Phase.CREATING,
        Phase.ROLLED_BACK,
        Phase.CREATING,
    ]
    assert targets(fleet.snapshot) == {"a": 1, "b": 1}


def test_answers_of_a_slow_backend_are_journalled_meanwhile(harness: FleetHarness) -> None:
    fleet = harness.fleet()
    _ids(fleet, *(IncrementSpec({"a": 1}) for _ in range(4)))
    ordered: list[int] = []

    def order() -> None:
        assert isinstance(harness.journal, MemoryJournal)
        members = [m for record in harness.journal.shelf[0].increments.values() for m in record.members]
        ordered.append(sum(member.state is MemberState.ORDERED for member in members))
        harness.clock.advance(0.6)

    harness.backend.before_order = order
    fleet.reconcile()
    assert ordered == [0, 0, 2, 2]


def test_a_refusal_and_a_part_of_the_backend_out_of_reach_hinder_no_other(harness: FleetHarness) -> None:
    fleet = harness.fleet()
    harness.backend.refused_groups = {"b"}
    refused, ordered = _ids(fleet, IncrementSpec({"b": 1}), IncrementSpec({"a": 2}))
    fleet.reconcile()
    assert (fleet.increment(refused).phase, fleet.increment(ordered).phase) == (Phase.ROLLED_BACK, Phase.CREATING)
    harness.backend.refused_groups = set()
    harness.backend.unreachable_groups = {"b"}
    late, soon = _ids(fleet, IncrementSpec({"b": 1}), IncrementSpec({"a": 1}))
    fleet.reconcile()
    assert [len(harness.backend.ids(key)) for key in ("a", "b")] == [3, 0]
    harness.backend.unreachable_groups = set()
    fleet.reconcile()
    assert [len(harness.backend.ids(key)) for key in ("a", "b")] == [3, 1]
    assert len(harness.backend.executed_orders) == len(set(harness.backend.executed_orders)) == 4
    harness.backend.boot_all()
    fleet.reconcile()
    assert {fleet.increment(key).phase for key in (late, soon, ordered)} == {Phase.DONE}


def test_so_many_nodes_are_journalled_together_as_a_journal_of_objects_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cagrpc.fleet.orders._MOST_ORDERS", 4)
    harness = FleetHarness(groups=[group("a", max_size=100)])
    fleet = harness.fleet()
    _ids(fleet, *(IncrementSpec({"a": nodes}) for nodes in (6, 2, 2, 1)))
    commits = len(_commits(harness))
    fleet.reconcile()
    begun = [record for record in _commits(harness)[commits:] if record]
    assert begun[:6] == [
        {"creating": 1},
        {"creating": 1},
        {"creating": 2},
        {"creating": 2},
        {"creating": 1},
        {"creating": 1},
    ]
    assert [len(call) for call in harness.backend.order_calls] == [6, 2, 2, 1]


def test_the_journal_is_checked_between_two_orders(harness: FleetHarness) -> None:
    """Orders may take long; the write that precedes them is one for many."""
    fleet, journal = harness.fleet(), harness.journal
    assert isinstance(journal, MemoryJournal)
    first, _, _ = _ids(fleet, *(IncrementSpec({"a": 1}) for _ in range(3)))

    def lose() -> None:
        journal.lost = True

    harness.backend.before_order = lose
    with pytest.raises(errors.Unavailable, match="not the one writer"):
        fleet.reconcile()
    assert [call[0].partition("-")[0] for call in harness.backend.order_calls] == [first]
    harness.backend.before_order = None
    with pytest.raises(errors.Unavailable, match="not the one writer"):
        fleet.reconcile()
    assert len(harness.backend.order_calls) == 1


def test_an_order_at_once_is_made_only_by_the_one_writer(harness: FleetHarness) -> None:
    fleet, journal = harness.fleet(), harness.journal
    assert isinstance(journal, MemoryJournal)
    journal.lost = True
    assert fleet.apply(IncrementSpec({"a": 1}), refusal_wait_seconds=1.0).phase is Phase.CREATING
    assert harness.backend.order_calls == []
