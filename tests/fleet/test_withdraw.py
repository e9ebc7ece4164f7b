"""Withdrawal of increments: whole, at once, once, in every phase, whatever fails in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cagrpc import errors
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import IncrementSpec, Origin, Phase, Placement
from tests.support.fleet import FleetHarness, MemoryJournal, ScriptedNodes, group, states, targets

WHY = "its request was deleted"
FOR_REQUESTS = IncrementSpec(
    {"a": 2, "b": 1},
    requests=frozenset({"u1", "u2"}),
    placements=(
        Placement("a", requests=("u1",)),
        Placement("a", requests=("u1", "u2")),
        Placement("b", requests=("u2",)),
    ),
)


class WithdrawHarness(FleetHarness):
    """Two groups, and a cluster."""

    def __init__(self) -> None:
        self.nodes = ScriptedNodes()
        super().__init__(groups=[group("a", max_size=2), group("b")], options={"nodes": self.nodes})

    @property
    def writes(self) -> int:
        assert isinstance(self.journal, MemoryJournal)
        return len(self.journal.commits)

    def applied(self) -> tuple[Fleet, str]:
        fleet = self.fleet()
        return fleet, fleet.apply(FOR_REQUESTS).id

    def ordered(self) -> tuple[Fleet, str]:
        fleet, key = self.applied()
        fleet.reconcile()
        return fleet, key

    def booting(self) -> tuple[Fleet, str]:
        """One runs, one has its node, of one nothing is known."""
        fleet, key = self.ordered()
        first, second, _ = self.backend.ids()
        self.backend.boot(first)
        self.backend.boot(second)
        self.nodes.ready.add(second)
        fleet.reconcile()
        return fleet, key

    def ready(self) -> tuple[Fleet, str]:
        fleet, key = self.ordered()
        self.backend.boot_all()
        self.nodes.ready.update(self.backend.ids())
        fleet.reconcile()
        assert fleet.increment(key).phase is Phase.READY
        return fleet, key


@pytest.fixture
def harness() -> WithdrawHarness:
    return WithdrawHarness()


PHASES = [
    pytest.param(WithdrawHarness.ordered, id="ordered"),
    pytest.param(WithdrawHarness.booting, id="booting"),
    pytest.param(WithdrawHarness.ready, id="ready"),
]
InPhase = Callable[[WithdrawHarness], tuple[Fleet, str]]


def _ends(harness: WithdrawHarness, fleet: Fleet, key: str) -> None:
    """All of it goes, by one delete each, and nothing is left to see."""
    fleet.reconcile()
    fleet.reconcile()
    assert sorted(harness.backend.executed_deletes) == sorted(harness.backend.ids())
    assert len(harness.backend.executed_deletes) == len(harness.backend.executed_orders) == 3
    harness.backend.finish_deletes()
    fleet.reconcile()
    status = fleet.increment(key)
    assert (status.phase, status.message, status.short_groups) == (Phase.ROLLED_BACK, WHY, ())
    assert fleet.snapshot.group_of_instance == {}
    assert targets(fleet.snapshot) == {}


@pytest.mark.parametrize("in_phase", PHASES)
@pytest.mark.parametrize("restarted", [False, True])
def test_it_is_out_of_the_targets_at_once_and_its_machines_go(
    harness: WithdrawHarness, in_phase: InPhase, restarted: bool
) -> None:
    fleet, key = in_phase(harness)
    fleet.withdraw(key, WHY)
    status = fleet.increment(key)
    assert (status.phase, status.message, status.held) == (Phase.ROLLING_BACK, WHY, ())
    assert targets(fleet.snapshot) == {}
    assert harness.backend.executed_deletes == []
    assert fleet.snapshot.held_instances == set(harness.backend.ids())  # nothing lands on them while they go
    assert fleet.snapshot.requested_instances == {}
    assert states(fleet.snapshot, "a") == ["deleting", "deleting"]
    if restarted:
        fleet = harness.restart()
    else:
        again = fleet.apply(IncrementSpec({"a": 2})).id  # the group's maximum is free for others
        fleet.withdraw(again, WHY)
    _ends(harness, fleet, key)


def test_what_was_not_ordered_yet_never_is(harness: WithdrawHarness) -> None:
    fleet, key = harness.applied()
    fleet.withdraw(key, WHY)
    status = fleet.increment(key)
    assert (status.phase, status.message) == (Phase.ROLLED_BACK, WHY)
    assert status.finished_at_seconds == harness.clock()
    fleet.reconcile()
    harness.restart().reconcile()
    assert harness.backend.order_calls == []
    assert targets(fleet.snapshot) == {}


@pytest.mark.parametrize("in_phase", [pytest.param(WithdrawHarness.applied, id="planned"), *PHASES])
def test_the_journal_comes_first(harness: WithdrawHarness, in_phase: InPhase) -> None:
    fleet, key = in_phase(harness)
    before, snapshot = fleet.increment(key), fleet.snapshot
    assert isinstance(harness.journal, MemoryJournal)
    harness.journal.broken = True
    with pytest.raises(errors.Unavailable):
        fleet.withdraw(key, WHY)
    assert (fleet.increment(key), fleet.snapshot) == (before, snapshot)
    harness.journal.broken = False
    fleet.withdraw(key, WHY)
    assert targets(fleet.snapshot) == {}


def test_what_is_over_is_passed_over(harness: WithdrawHarness) -> None:
    fleet, key = harness.ready()
    fleet.release(key)
    writes = harness.writes
    for each in (key, "never heard of"):
        fleet.withdraw(each, WHY)
    assert fleet.increment(key).phase is Phase.DONE
    assert targets(fleet.snapshot) == {"a": 2, "b": 1}
    later = fleet.apply(IncrementSpec({"b": 1})).id
    fleet.withdraw(later, WHY)
    writes += 2
    fleet.withdraw(later, "another reason")
    assert fleet.increment(later).message == WHY
    assert harness.writes == writes


def test_what_fails_already_fails_on_for_its_own_reason(harness: WithdrawHarness) -> None:
    fleet, key = harness.ordered()
    harness.backend.fail(harness.backend.ids("b")[0])
    fleet.reconcile()
    fleet.withdraw(key, WHY)
    status = fleet.increment(key)
    assert (status.phase, status.short_groups) == (Phase.ROLLING_BACK, ("b",))
    assert "no capacity" in status.message


def test_what_the_autoscaler_asked_for_is_its_own_to_take_back(harness: WithdrawHarness) -> None:
    fleet = harness.fleet()
    key = fleet.apply(IncrementSpec({"b": 1}, Origin.AUTOSCALER)).id
    with pytest.raises(errors.FailedPrecondition, match=f"increment {key} is the autoscaler's"):
        fleet.withdraw(key, WHY)
    assert fleet.increment(key).phase is Phase.PLANNED


@pytest.mark.parametrize("outcome", ["executed", "answer lost", "unreachable", "refused"])
def test_taken_back_while_the_order_is_under_way(harness: WithdrawHarness, outcome: str) -> None:
    fleet, key = harness.applied()
    harness.backend.before_order = lambda: fleet.withdraw(key, WHY)
    harness.backend.lose_answers = outcome == "answer lost"
    harness.backend.unreachable_groups = {"b"} if outcome == "unreachable" else set()
    harness.backend.refused_groups = {"b"} if outcome == "refused" else set()
    fleet.reconcile()
    assert targets(fleet.snapshot) == {}
    harness.backend.lose_answers, harness.backend.unreachable_groups = False, set()
    if outcome in ("executed", "answer lost"):
        _ends(harness, fleet, key)
    fleet.reconcile()
    status = fleet.increment(key)
    assert (status.phase, status.message, status.short_groups) == (Phase.ROLLED_BACK, WHY, ())
    assert len(harness.backend.order_calls) == 1
    assert harness.backend.ids() == []


def test_an_order_whose_answer_was_lost_is_not_repeated(harness: WithdrawHarness) -> None:
    fleet, key = harness.applied()
    harness.backend.lose_answers = harness.backend.hide_new = True
    fleet.reconcile()
    fleet.withdraw(key, WHY)
    harness.backend.lose_answers = False
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.ROLLED_BACK  # as far as can be seen
    calls = len(harness.backend.order_calls)
    harness.backend.hidden.clear()  # machines that are listed late
    _ends(harness, fleet, key)
    assert len(harness.backend.order_calls) == calls


def test_who_waits_for_the_answer_to_the_order_is_not_kept_waiting(harness: WithdrawHarness) -> None:
    fleet = harness.fleet()

    def taken_back() -> None:
        (status,) = fleet.snapshot.increments
        fleet.withdraw(status.id, WHY)

    harness.backend.before_order = taken_back
    assert fleet.apply(FOR_REQUESTS, refusal_wait_seconds=10).phase is Phase.ROLLING_BACK


def test_deletes_that_do_not_reach_the_backend_are_repeated(harness: WithdrawHarness) -> None:
    fleet, key = harness.ready()
    fleet.withdraw(key, WHY)
    harness.backend.unreachable_groups = {"a"}
    fleet.reconcile()
    assert targets(fleet.snapshot) == {}
    assert harness.backend.executed_deletes == harness.backend.ids("b")
    harness.backend.unreachable_groups = set()
    _ends(harness, fleet, key)


def test_a_part_that_ca_has_deleted_is_deleted_once(harness: WithdrawHarness) -> None:
    fleet, key = harness.ready()
    fleet.delete_instances("a", harness.backend.ids("a")[:1])
    fleet.withdraw(key, WHY)
    _ends(harness, fleet, key)


# What is to be seen of increments for requests.


def test_instances_for_requests_are_named_until_they_are_gone(harness: WithdrawHarness) -> None:
    fleet, key = harness.ready()
    a1, a2, b1 = harness.backend.ids()
    wanted = {a1: {"u1"}, a2: {"u1", "u2"}, b1: {"u2"}}
    assert fleet.snapshot.requested_instances == wanted
    fleet.release(key)
    assert fleet.snapshot.requested_instances == wanted
    assert harness.restart().snapshot.requested_instances == wanted
    fleet = harness.current
    fleet.delete_instances("b", [b1])
    fleet.reconcile()
    harness.backend.finish_deletes()
    fleet.reconcile()
    assert fleet.snapshot.requested_instances == {a1: {"u1"}, a2: {"u1", "u2"}}


def test_requests_are_no_pods(harness: WithdrawHarness) -> None:
    fleet, key = harness.ready()
    other = fleet.apply(IncrementSpec({"b": 1}, pods=frozenset({"p"}), placements=(Placement("b", ("p",)),)))
    assert fleet.snapshot.in_flight_pods == {"p"}
    assert fleet.increment(key).increment.requests == {"u1", "u2"}
    assert other.increment.requests == frozenset()
    assert other.id not in fleet.snapshot.requested_instances
