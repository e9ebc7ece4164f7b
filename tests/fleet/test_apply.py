"""Ordering capacity: what is refused and with which message, what is journalled first, and how an increment
succeeds."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from cagrpc import errors
from cagrpc.fleet.model import IncrementSpec, Origin, Phase
from cagrpc.fleet.records import MemberState
from solver.model import Limit
from tests.support.fleet import FleetHarness, MemoryJournal, group, run_inline, states, targets
from tests.support.waiting import AMPLE_SECONDS


def _harness(**more: object) -> FleetHarness:
    limits = [
        Limit("provisioner gold", {"cpu": 24_000}, node_groups=frozenset({"a", "b"})),
        Limit("cluster", {"nodes": 12}),
    ]
    groups = [group("a", max_size=5), group("b", max_size=5), group("c", max_size=20)]
    return FleetHarness(groups=groups, limits=limits, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("deltas", "error", "words"),
    [
        pytest.param({}, errors.InvalidInput, ["at least one node group"], id="nothing asked"),
        pytest.param({"x": 1}, errors.NotFound, ['"x" does not exist'], id="unknown group"),
        pytest.param({"a": 0}, errors.InvalidInput, ["delta is 0, it must be at least 1"], id="zero"),
        pytest.param({"a": -3}, errors.InvalidInput, ["delta is -3"], id="negative"),
        pytest.param({"a": 6}, errors.OutOfRange, ["target size 0 plus delta 6 is 6", "maximum of 5"], id="above max"),
        pytest.param({"a": 2**31}, errors.OutOfRange, ["maximum of 5"], id="far above max"),
        pytest.param(
            {"a": 4, "b": 4},
            errors.LimitExceeded,
            ["limit provisioner gold: cpu is at 0 of 24000, 32000 more"],
            id="provisioner limit",
        ),
        pytest.param({"c": 13}, errors.LimitExceeded, ["limit cluster: nodes is at 0 of 12, 13 more"], id="cluster"),
        pytest.param(
            {"x": 1, "a": -1, "b": 9},
            errors.NotFound,
            ['"x" does not exist', "delta is -1", "maximum of 5"],
            id="all problems at once",
        ),
        pytest.param(
            {"a": 6, "c": 8},
            errors.OutOfRange,
            ["maximum of 5", "limit cluster: nodes"],
            id="range and limit at once",
        ),
    ],
)
def test_refused_with_nothing_changed(
    deltas: Mapping[str, int], error: type[errors.CagrpcError], words: list[str]
) -> None:
    harness = _harness()
    fleet = harness.fleet()
    before = fleet.snapshot
    with pytest.raises(error) as raised:
        fleet.apply(IncrementSpec(deltas))
    assert all(word in str(raised.value) for word in words), str(raised.value)
    fleet.reconcile()
    assert fleet.snapshot is before
    assert harness.backend.order_calls == []


def test_one_increment_has_a_largest_size() -> None:
    harness = FleetHarness(groups=[group("a", max_size=2**31 - 1), group("b", max_size=2**31 - 1)])
    fleet = harness.fleet()
    with pytest.raises(errors.InvalidInput, match="an increment of 100,001 nodes; one has at most 100,000"):
        fleet.apply(IncrementSpec({"a": 100_000, "b": 1}))
    assert targets(fleet.snapshot) == {}


def test_the_journal_is_written_before_the_backend_is_asked() -> None:
    harness = _harness()
    fleet = harness.fleet()
    assert isinstance(harness.journal, MemoryJournal)
    journal = harness.journal
    seen = []
    harness.backend.before_order = lambda: seen.append([r.phase for r in journal.shelf[0].increments.values()])
    applied = fleet.apply(IncrementSpec({"a": 2}))
    assert applied.phase is Phase.PLANNED
    assert harness.backend.order_calls == []
    assert targets(fleet.snapshot) == {"a": 2}
    fleet.reconcile()
    assert seen == [[Phase.CREATING]]


def test_an_increment_over_several_groups_is_one_order_and_ends_done() -> None:
    harness = _harness()
    fleet = harness.fleet()
    applied = fleet.apply(IncrementSpec({"a": 2, "c": 1}, pods=frozenset({"p"}), reason="gang"))
    fleet.reconcile()
    assert [len(call) for call in harness.backend.order_calls] == [3]
    assert fleet.increment(applied.id).message == "instances running: 0 of 3"
    assert states(fleet.snapshot, "a") == ["creating", "creating"]
    assert fleet.snapshot.in_flight_pods == {"p"}
    harness.backend.boot_all()
    fleet.reconcile()
    assert fleet.increment(applied.id).phase is Phase.DONE
    assert states(fleet.snapshot, "a") == ["running", "running"]
    assert states(fleet.snapshot, "c") == ["running"]
    assert targets(fleet.snapshot) == {"a": 2, "c": 1}
    assert fleet.snapshot.in_flight_pods == frozenset()
    assert isinstance(harness.journal, MemoryJournal)
    phases = [record.phase for changes in harness.journal.commits for record in changes.increments]
    assert list(dict.fromkeys(phases)) == [Phase.PLANNED, Phase.CREATING, Phase.READY, Phase.DONE]


def test_every_node_counts_once_at_every_step() -> None:
    harness = _harness()
    fleet = harness.fleet()
    fleet.apply(IncrementSpec({"a": 3}))
    seen = [targets(fleet.snapshot)]
    harness.backend.before_order = lambda: seen.append(targets(fleet.snapshot))
    fleet.reconcile()
    seen.append(targets(fleet.snapshot))
    harness.backend.boot(harness.backend.ids()[0])
    fleet.reconcile()
    seen.append(targets(fleet.snapshot))
    harness.backend.boot_all()
    fleet.reconcile()
    seen.append(targets(fleet.snapshot))
    assert seen == [{"a": 3}] * 5


def test_increments_in_flight_count_against_maximum_and_limits() -> None:
    fleet = _harness().fleet()
    fleet.apply(IncrementSpec({"a": 3}))
    with pytest.raises(errors.OutOfRange):
        fleet.apply(IncrementSpec({"a": 3}))
    with pytest.raises(errors.LimitExceeded, match="cpu is at 12000 of 24000, 16000 more"):
        fleet.apply(IncrementSpec({"b": 4}))
    fleet.apply(IncrementSpec({"b": 3}))
    assert fleet.snapshot.limits[0].used == {"cpu": 24_000}
    assert fleet.snapshot.limits[1].used == {"nodes": 6}


def test_what_a_limit_is_given_with_stands_outside_the_fleet() -> None:
    harness = FleetHarness(groups=[group("a")], limits=[Limit("cluster", {"nodes": 5}, used={"nodes": 3})])
    fleet = harness.fleet()
    with pytest.raises(errors.LimitExceeded, match="nodes is at 3 of 5, 3 more"):
        fleet.apply(IncrementSpec({"a": 3}))
    fleet.apply(IncrementSpec({"a": 2}))
    assert fleet.snapshot.limits[0].used == {"nodes": 5}


def test_a_limit_that_is_broken_already_bounds_only_what_it_counts() -> None:
    gpu = group("gpu", capacity={"cpu": 4000, "nvidia.com/gpu": 1})
    plain = group("a", capacity={"cpu": 4000, "nvidia.com/gpu": 0})
    harness = FleetHarness(groups=[gpu, plain], limits=[Limit("cluster", {"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 4})])
    fleet = harness.fleet()
    fleet.apply(IncrementSpec({"a": 1}))
    with pytest.raises(errors.LimitExceeded):
        fleet.apply(IncrementSpec({"gpu": 1}))


def test_the_caller_may_change_its_mapping_afterwards() -> None:
    fleet = _harness().fleet()
    deltas = {"a": 1}
    applied = fleet.apply(IncrementSpec(deltas))
    deltas["a"] = 5
    assert fleet.increment(applied.id).increment.deltas == {"a": 1}


# Waiting for an immediate refusal.


@pytest.mark.parametrize("origin", [pytest.param(o, id=o.value) for o in Origin])
def test_an_immediate_refusal_is_raised_and_leaves_nothing(origin: Origin) -> None:
    harness = _harness()
    harness.backend.refused_groups = {"b"}
    fleet = harness.fleet()
    with pytest.raises(errors.OutOfCapacity, match="no capacity for b"):
        fleet.apply(IncrementSpec({"a": 1, "b": 1}, origin), refusal_wait_seconds=1)
    assert targets(fleet.snapshot) == {}
    assert [i.phase for i in fleet.snapshot.increments] == [Phase.ROLLED_BACK]
    fleet = harness.restart()
    assert targets(fleet.snapshot) == {}
    assert harness.backend.executed_orders == []


def test_an_order_that_is_taken_at_once_is_answered_at_once() -> None:
    harness = _harness()
    fleet = harness.fleet()
    applied = fleet.apply(IncrementSpec({"a": 2}), refusal_wait_seconds=1)
    assert applied.phase is Phase.CREATING
    assert len(harness.backend.executed_orders) == 2
    fleet.reconcile()
    assert len(harness.backend.order_calls) == 1


def test_an_unknown_answer_is_no_refusal() -> None:
    harness = _harness()
    fleet = harness.fleet()
    harness.backend.unreachable = True
    applied = fleet.apply(IncrementSpec({"a": 2}), refusal_wait_seconds=1)
    assert applied.phase is Phase.CREATING
    assert targets(fleet.snapshot) == {"a": 2}
    harness.backend.unreachable = False
    fleet.reconcile()
    assert len(harness.backend.executed_orders) == 2


def test_a_refusal_that_comes_too_late_is_a_failure_that_ca_sees() -> None:
    works = [run_inline]  # The first look; what is to be ordered later never gets a thread.
    harness = _harness(options={"submit": lambda work: works.pop()(work) if works else None})
    harness.backend.refused_groups = {"a"}
    fleet = harness.fleet()
    applied = fleet.apply(IncrementSpec({"a": 2}, Origin.AUTOSCALER), refusal_wait_seconds=0.001)
    assert applied.phase is Phase.PLANNED
    fleet.reconcile()
    assert fleet.increment(applied.id).phase is Phase.ROLLED_BACK
    assert states(fleet.snapshot, "a") == ["failed", "failed"]
    assert targets(fleet.snapshot) == {"a": 2}


def test_a_slow_backend_holds_up_neither_answers_nor_reads() -> None:
    """The default worker thread, a backend that takes long, and a caller that waits only a little."""
    harness = _harness()
    entered, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        assert go_on.wait(AMPLE_SECONDS)

    harness.backend.before_order = slow
    fleet = harness.threaded()
    applied = fleet.apply(IncrementSpec({"a": 2}), refusal_wait_seconds=0.01)
    assert entered.wait(AMPLE_SECONDS)
    assert applied.phase in (Phase.PLANNED, Phase.CREATING)
    assert targets(fleet.snapshot) == {"a": 2}
    second = fleet.apply(IncrementSpec({"b": 1}))
    assert second.phase is Phase.PLANNED
    harness.backend.before_order = None
    go_on.set()
    fleet.reconcile()
    assert fleet.increment(applied.id).phase is Phase.CREATING
    assert len(harness.backend.executed_orders) == 3
    fleet.close()


def test_a_refusal_reaches_the_waiting_caller_from_the_worker_thread() -> None:
    harness = _harness()
    harness.backend.refused_groups = {"a"}
    fleet = harness.threaded()
    with pytest.raises(errors.OutOfCapacity):
        fleet.apply(IncrementSpec({"a": 1}, Origin.AUTOSCALER), refusal_wait_seconds=10)
    assert targets(fleet.snapshot) == {}
    fleet.close()


# Out of reach.


def test_with_the_journal_out_of_reach_nothing_is_ordered() -> None:
    harness = _harness()
    fleet = harness.fleet()
    assert isinstance(harness.journal, MemoryJournal)
    harness.journal.broken = True
    with pytest.raises(errors.Unavailable):
        fleet.apply(IncrementSpec({"a": 1}), refusal_wait_seconds=1)
    harness.journal.broken = False
    fleet.reconcile()
    assert harness.backend.order_calls == []
    assert targets(fleet.snapshot) == {}


def test_a_journal_that_took_no_change_is_a_problem_until_it_can_be_written() -> None:
    harness = _harness()
    fleet = harness.fleet()
    assert isinstance(harness.journal, MemoryJournal)
    harness.journal.broken = True
    with pytest.raises(errors.Unavailable):
        fleet.apply(IncrementSpec({"a": 1}))
    assert fleet.problem == "journal: out of reach"
    with pytest.raises(errors.Unavailable, match="journal: out of reach"):
        fleet.refresh()
    assert fleet.problem == "journal: out of reach"
    harness.journal.broken = False
    fleet.refresh()
    assert fleet.problem is None


def test_a_journal_that_cannot_be_written_is_found_within_seconds_without_any_change() -> None:
    harness = _harness()
    fleet = harness.fleet()
    assert isinstance(harness.journal, MemoryJournal)
    harness.journal.broken = True
    harness.clock.advance(9)
    fleet.refresh()
    harness.clock.advance(1)
    with pytest.raises(errors.Unavailable, match="journal: out of reach"):
        fleet.refresh()
    assert fleet.problem == "journal: out of reach"
    harness.backend.boot(harness.backend.add("a", token="t"))
    with pytest.raises(errors.Unavailable):
        fleet.refresh()
    assert targets(fleet.snapshot) == {"a": 1}  # What stands is still seen.


def test_a_journal_lost_between_plan_and_order_holds_the_order_back() -> None:
    harness = _harness()
    fleet = harness.fleet()
    fleet.apply(IncrementSpec({"a": 1}))
    assert isinstance(harness.journal, MemoryJournal)
    harness.journal.broken = True
    with pytest.raises(errors.Unavailable):
        fleet.reconcile()
    assert harness.backend.order_calls == []
    harness.journal.broken = False
    fleet.reconcile()
    assert len(harness.backend.executed_orders) == 1


def test_a_backend_out_of_reach_loses_nothing() -> None:
    harness = _harness()
    fleet = harness.fleet()
    harness.backend.unreachable = True
    fleet.apply(IncrementSpec({"a": 1}))
    for step in (fleet.refresh, fleet.reconcile):
        with pytest.raises(errors.Unavailable):
            step()
    assert fleet.problem is not None
    harness.backend.unreachable = False
    fleet.refresh()
    assert fleet.problem is None
    assert states(fleet.snapshot, "a") == ["creating"]


def test_a_lost_answer_is_not_ordered_twice() -> None:
    harness = _harness()
    fleet = harness.fleet()
    fleet.apply(IncrementSpec({"a": 2}))
    harness.backend.lose_answers = True
    fleet.reconcile()
    harness.backend.lose_answers = False
    fleet.reconcile()
    assert len(harness.backend.order_calls) == 1
    assert len(harness.backend.executed_orders) == 2


def test_a_lost_answer_for_instances_that_are_not_listed_yet_is_asked_again_by_the_same_tokens() -> None:
    harness = _harness()
    fleet = harness.fleet()
    fleet.apply(IncrementSpec({"a": 2}))
    harness.backend.lose_answers = harness.backend.hide_new = True
    fleet.reconcile()
    harness.backend.lose_answers = False
    harness.backend.hidden = {harness.backend.executed_orders[1]}
    fleet.reconcile()
    assert harness.backend.order_calls[1:] == [(harness.backend.executed_orders[1],)]
    assert len(harness.backend.executed_orders) == 2
    assert targets(fleet.snapshot) == {"a": 2}


def test_an_order_that_finds_its_part_of_the_backend_out_of_reach_holds_up_no_other() -> None:
    harness = _harness()
    fleet = harness.fleet()
    first, second = fleet.apply(IncrementSpec({"a": 1})), fleet.apply(IncrementSpec({"b": 1}))
    harness.backend.unreachable_groups = {"a"}
    fleet.refresh()
    assert fleet.problem is None
    assert targets(fleet.snapshot) == {"a": 1, "b": 1}
    assert [len(harness.backend.ids(key)) for key in "ab"] == [0, 1]
    assert len(harness.backend.order_calls) == 2  # Each once a step.
    assert (fleet.increment(first.id).message, fleet.increment(second.id).message) == ("instances running: 0 of 1",) * 2
    harness.backend.unreachable_groups = set()
    fleet.refresh()
    assert [len(harness.backend.ids(key)) for key in "ab"] == [1, 1]


def test_an_order_out_of_reach_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    harness = _harness()
    fleet = harness.fleet()
    harness.backend.unreachable_groups = {"a"}
    fleet.apply(IncrementSpec({"a": 1}))
    for _ in range(3):
        fleet.reconcile()
    assert caplog.text.count("retrying") == 1


def test_nothing_is_changed_before_the_backend_was_seen_once() -> None:
    harness = _harness()
    harness.backend.unreachable = True
    fleet = harness.fleet()
    for change in (
        lambda: fleet.apply(IncrementSpec({"a": 1})),
        lambda: fleet.delete_instances("a", ["x"]),
        lambda: fleet.decrease_target("a", -1),
    ):
        with pytest.raises(errors.Unavailable, match="not reached yet"):
            change()
    harness.backend.unreachable = False
    fleet.refresh()
    fleet.apply(IncrementSpec({"a": 1}))


def test_a_closed_fleet_changes_nothing() -> None:
    harness = _harness()
    fleet = harness.fleet()
    fleet.close()
    fleet.close()
    with pytest.raises(errors.Unavailable):
        fleet.apply(IncrementSpec({"a": 1}))


def test_an_unknown_increment() -> None:
    with pytest.raises(errors.NotFound, match='"nope"'):
        _harness().fleet().increment("nope")


# Construction and snapshots.


@pytest.mark.parametrize(
    ("groups", "options", "problems"),
    [
        pytest.param([group("a"), group("a")], {}, ['"a": defined twice'], id="an id twice"),
        pytest.param([group("")], {}, ["empty id"], id="an empty id"),
        pytest.param([group("a", min_size=3, max_size=2)], {}, ["min size 3 and max size 2"], id="min above max"),
        pytest.param([group("a", min_size=-1)], {}, ["min size -1"], id="negative min"),
        pytest.param([], {"increment_deadline_seconds": 900.0}, ["900 s; it must be above 0 and below"], id="900"),
        pytest.param([], {"increment_deadline_seconds": 0.0}, ["above 0"], id="no deadline"),
        pytest.param(
            [group("a"), group("a"), group("b", min_size=-1)],
            {"increment_deadline_seconds": 1e6, "failed_listing_seconds": -1.0},
            ["defined twice", "min size -1", "increment deadline", "failed listing"],
            id="all at once",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(
    groups: list[object], options: dict[str, float], problems: list[str]
) -> None:
    with pytest.raises(errors.InvalidConfiguration) as raised:
        FleetHarness(groups=groups, options=dict(options)).fleet()  # type: ignore[arg-type]
    assert len(raised.value.problems) == len(problems)
    assert all(part in str(raised.value) for part in problems)


def test_a_snapshot_is_replaced_only_when_something_changed() -> None:
    harness = _harness()
    fleet = harness.fleet()
    first = fleet.snapshot
    fleet.reconcile()
    assert fleet.snapshot is first
    fleet.apply(IncrementSpec({"a": 1}))
    second = fleet.snapshot
    assert second.version == first.version + 1
    assert targets(first) == {}
    assert second.groups["b"] is first.groups["b"]
    assert second.groups["a"].group.target_size == second.groups["a"].target_size == 1


def test_a_group_with_nodes_is_always_shown() -> None:
    harness = _harness(options={"shown": lambda groups, targets: ["c"]})
    fleet = harness.fleet()
    assert list(fleet.snapshot.shown) == ["c"]
    fleet.apply(IncrementSpec({"a": 1}))
    assert list(fleet.snapshot.shown) == ["a", "c"]


def test_finished_increments_are_shown_for_a_while_and_forgotten_after_a_day() -> None:
    harness = FleetHarness(groups=[group("a", max_size=1000)], options={"submit": run_inline})
    fleet = harness.fleet()
    ids = []
    for _ in range(105):
        ids.append(fleet.apply(IncrementSpec({"a": 1})).id)
        fleet.reconcile()
        harness.backend.boot_all()
        fleet.reconcile()
        harness.clock.advance(1)
    assert [status.id for status in fleet.snapshot.increments] == ids[5:]
    assert fleet.increment(ids[0]).phase is Phase.DONE
    harness.clock.advance(86_401)
    fleet.reconcile()
    assert fleet.snapshot.increments == ()
    assert targets(fleet.snapshot) == {"a": 105}
    assert isinstance(harness.journal, MemoryJournal)
    assert not harness.journal.shelf[0].increments


def test_what_ended_together_is_shown_however_much_it_is() -> None:
    harness = FleetHarness(groups=[group("a", max_size=1000)], options={"submit": run_inline})
    fleet = harness.fleet()
    together = [fleet.apply(IncrementSpec({"a": 1})).id for _ in range(150)]
    fleet.reconcile()
    harness.backend.boot_all()
    fleet.reconcile()
    before = fleet.snapshot
    assert [(status.id, status.phase) for status in before.increments] == [(id_, Phase.DONE) for id_ in together]
    harness.clock.advance(60)
    fleet.reconcile()
    assert fleet.snapshot is before  # time alone is no news
    last = fleet.apply(IncrementSpec({"a": 1})).id
    fleet.reconcile()
    harness.backend.boot_all()
    fleet.reconcile()
    assert [status.id for status in fleet.snapshot.increments] == [*together[-99:], last]


def test_what_was_asked_for_long_ago_and_ended_as_the_last_is_among_the_most_recent() -> None:
    harness = FleetHarness(groups=[group("a", max_size=1000), group("b")], options={"submit": run_inline})
    fleet = harness.fleet()
    slow = fleet.apply(IncrementSpec({"b": 1})).id
    fleet.reconcile()
    for _ in range(105):
        fleet.apply(IncrementSpec({"a": 1}))
        fleet.reconcile()
        for instance_id in harness.backend.ids("a"):
            harness.backend.boot(instance_id)
        fleet.reconcile()
    harness.clock.advance(600)
    fleet.reconcile()
    harness.backend.finish_deletes()
    fleet.reconcile()
    (reported,) = [status for status in fleet.snapshot.increments if status.id == slow]
    assert (reported.phase, reported.short_groups) == (Phase.ROLLED_BACK, ("b",))


def test_a_member_knows_its_instance_once_it_is_listed() -> None:
    harness = _harness()
    fleet = harness.fleet()
    fleet.apply(IncrementSpec({"a": 1}))
    fleet.reconcile()
    assert isinstance(harness.journal, MemoryJournal)
    ((member,),) = [record.members for record in harness.journal.shelf[0].increments.values()]
    assert (member.state, [member.instance_id]) == (MemberState.ORDERED, harness.backend.ids())


def test_an_immediate_order_that_fails_unexpectedly_is_logged_and_made_by_the_next_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = FleetHarness(groups=[group("a")])
    fleet = harness.fleet()

    def fail() -> None:
        raise ZeroDivisionError("ours")

    harness.backend.before_order = fail
    key = fleet.apply(IncrementSpec({"a": 1}), refusal_wait_seconds=10.0).id
    assert "ZeroDivisionError" in caplog.text
    assert fleet.increment(key).phase is Phase.CREATING
    harness.backend.before_order = None
    fleet.reconcile()
    assert len(harness.backend.executed_orders) == 1
