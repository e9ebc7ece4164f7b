"""Deleting instances, lowering target sizes, and starting over existing instances."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cagrpc import errors
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.journal import Journal, SqliteJournal
from cagrpc.fleet.model import IncrementSpec, InstanceState, Origin, Phase
from tests.support.fleet import FleetHarness, MemoryJournal, group, listed, states, targets


def _running(
    deltas: dict[str, int], *, min_size: int = 0, origin: Origin = Origin.CAGRPC
) -> tuple[FleetHarness, Fleet]:
    harness = FleetHarness(groups=[group("a", min_size=min_size), group("b")])
    fleet = harness.fleet()
    harness.backend.boot_all()
    fleet.reconcile()
    fleet.apply(IncrementSpec(deltas, origin))
    fleet.reconcile()
    harness.backend.boot_all()
    fleet.reconcile()
    return harness, fleet


def test_a_delete_is_journalled_first_and_leaves_the_target_at_once() -> None:
    harness, fleet = _running({"a": 3})
    first, second, third = harness.backend.ids()
    fleet.delete_instances("a", [second])
    assert isinstance(harness.journal, MemoryJournal)
    assert list(harness.journal.shelf[0].deletions) == [second]
    assert harness.backend.executed_deletes == []
    assert states(fleet.snapshot, "a") == ["running", "deleting", "running"]
    assert targets(fleet.snapshot) == {"a": 2}
    fleet.reconcile()
    assert harness.backend.executed_deletes == [second]
    harness.backend.finish_deletes()
    fleet.reconcile()
    assert [i.id for i in listed(fleet.snapshot, "a")] == [first, third]
    assert targets(fleet.snapshot) == {"a": 2}


def test_a_repeated_delete_lowers_nothing_twice() -> None:
    harness, fleet = _running({"a": 3})
    (gone, *_) = harness.backend.ids()
    fleet.delete_instances("a", [gone, gone])
    for _ in range(3):
        fleet.delete_instances("a", [gone])
        fleet.reconcile()
        harness.backend.finish_deletes()
        assert targets(fleet.snapshot) == {"a": 2}
        fleet = harness.restart()
    assert harness.backend.executed_deletes == [gone]


def test_nothing_to_delete_is_no_error() -> None:
    _, fleet = _running({"a": 1})
    before = fleet.snapshot
    fleet.delete_instances("a", [])
    assert fleet.snapshot is before


@pytest.mark.parametrize(
    ("group_id", "numbers", "extra", "error", "words"),
    [
        pytest.param("x", [0], [], errors.NotFound, ['"x" does not exist'], id="unknown group"),
        pytest.param("a", [0], ["nope"], errors.NotFound, ['"nope" does not exist'], id="unknown instance"),
        pytest.param("a", [0], [""], errors.NotFound, ['"" does not exist'], id="empty id"),
        pytest.param("b", [0], [], errors.InvalidInput, ["belongs to node group a"], id="another group"),
        pytest.param(
            "a",
            [0, 2],
            ["nope", "neither"],
            errors.InvalidInput,
            ["b-", "belongs to node group b", '"nope"', '"neither"'],
            id="all wrong ids at once",
        ),
    ],
)
def test_wrong_ids_are_named_and_nothing_is_deleted(
    group_id: str, numbers: Sequence[int], extra: Sequence[str], error: type[errors.CagrpcError], words: Sequence[str]
) -> None:
    harness, fleet = _running({"a": 2, "b": 1})
    before = fleet.snapshot
    with pytest.raises(error) as raised:
        fleet.delete_instances(group_id, [*(harness.backend.ids()[n] for n in numbers), *extra])
    assert all(word in str(raised.value) for word in words), str(raised.value)
    fleet.reconcile()
    assert fleet.snapshot is before
    assert harness.backend.executed_deletes == []


def test_the_minimum_is_kept() -> None:
    harness, fleet = _running({"a": 2}, min_size=1)
    ids = harness.backend.ids()
    with pytest.raises(errors.FailedPrecondition, match="would leave 0 nodes, fewer than its minimum of 1"):
        fleet.delete_instances("a", ids)
    assert targets(fleet.snapshot) == {"a": 3}
    fleet.delete_instances("a", [*ids[:2], ids[0]])
    assert targets(fleet.snapshot) == {"a": 1}
    with pytest.raises(errors.FailedPrecondition):
        fleet.delete_instances("a", ids[2:])
    fleet.delete_instances("a", ids[:2])


def test_an_instance_that_never_became_a_node_goes_at_the_minimum_and_is_replaced() -> None:
    harness, fleet = _running({"a": 1}, min_size=2)
    first, second, third = harness.backend.ids("a")
    fleet.delete_instances("a", [first])
    with pytest.raises(errors.FailedPrecondition, match="would leave 0 nodes, fewer than its minimum of 2"):
        fleet.delete_instances("a", [second, third], unregistered={third})
    fleet.delete_instances("a", [third], unregistered={third})
    fleet.reconcile()
    harness.backend.finish_deletes()
    fleet.reconcile()
    assert harness.backend.executed_deletes == [first, third]
    assert targets(fleet.snapshot) == {"a": 2}
    assert len(harness.backend.ids("a")) == 2


def test_failed_instances_do_not_stand_in_for_the_minimum_and_may_always_go() -> None:
    harness, fleet = _running({"b": 1}, min_size=2)
    (first, second, *_) = harness.backend.ids("a")
    fleet.apply(IncrementSpec({"a": 1}, Origin.AUTOSCALER))
    fleet.reconcile()
    failed = harness.backend.ids("a")[2]
    harness.backend.fail(failed)
    fleet.reconcile()
    assert states(fleet.snapshot, "a") == ["running", "running", "failed"]
    with pytest.raises(errors.FailedPrecondition, match="would leave 1 node"):
        fleet.delete_instances("a", [first])
    harness.backend.vanish(second)
    fleet.reconcile()
    fleet.delete_instances("a", [failed])
    assert fleet.snapshot.groups["a"].target_size == 1
    fleet.reconcile()
    assert fleet.snapshot.groups["a"].target_size == 2


def test_with_the_journal_out_of_reach_nothing_is_deleted() -> None:
    harness, fleet = _running({"a": 1})
    assert isinstance(harness.journal, MemoryJournal)
    harness.journal.broken = True
    with pytest.raises(errors.Unavailable):
        fleet.delete_instances("a", harness.backend.ids())
    harness.journal.broken = False
    fleet.reconcile()
    assert harness.backend.executed_deletes == []
    assert targets(fleet.snapshot) == {"a": 1}


def test_with_the_backend_out_of_reach_a_delete_is_kept_for_later() -> None:
    harness, fleet = _running({"a": 1})
    harness.backend.unreachable = True
    fleet.delete_instances("a", harness.backend.ids())
    with pytest.raises(errors.Unavailable):
        fleet.reconcile()
    harness.backend.unreachable = False
    fleet = harness.restart()
    assert len(harness.backend.executed_deletes) == 1
    assert targets(fleet.snapshot) == {}


def test_a_lost_answer_to_a_delete_deletes_once() -> None:
    harness, fleet = _running({"a": 2})
    fleet.delete_instances("a", harness.backend.ids()[:1])
    harness.backend.lose_answers = True
    fleet.reconcile()
    harness.backend.lose_answers = False
    fleet.reconcile()
    assert len(harness.backend.executed_deletes) == 1


def test_a_delete_that_finds_its_part_of_the_backend_out_of_reach_holds_up_no_other() -> None:
    harness, fleet = _running({"a": 1, "b": 1})
    (of_a,), (of_b,) = harness.backend.ids("a"), harness.backend.ids("b")
    harness.backend.unreachable_groups = {"a"}
    fleet.delete_instances("a", [of_a])
    fleet.delete_instances("b", [of_b])
    fleet.refresh()
    assert harness.backend.executed_deletes == [of_b]
    assert fleet.problem is None
    harness.backend.unreachable_groups = set()
    fleet.refresh()
    assert harness.backend.executed_deletes == [of_b, of_a]


def test_the_journal_is_checked_between_two_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cagrpc.fleet.orders._MOST_DELETES", 2)
    journal = MemoryJournal()
    harness = FleetHarness(groups=[group("a")], journal=journal)
    fleet = harness.fleet()
    fleet.apply(IncrementSpec({"a": 5}))
    fleet.reconcile()
    fleet.delete_instances("a", harness.backend.ids())

    def lose() -> None:
        journal.lost = True

    harness.backend.before_delete = lose
    with pytest.raises(errors.Unavailable, match="not the one writer"):
        fleet.reconcile()
    assert harness.backend.executed_deletes == harness.backend.ids()[:2]
    with pytest.raises(errors.Unavailable, match="not the one writer"):
        fleet.reconcile()
    journal.lost, harness.backend.before_delete = False, None
    fleet.reconcile()
    assert harness.backend.executed_deletes == harness.backend.ids()


def test_deleted_members_leave_their_increment_which_goes_on_with_the_others() -> None:
    harness = FleetHarness(groups=[group("a")])
    fleet = harness.fleet()
    key = fleet.apply(IncrementSpec({"a": 3}, Origin.AUTOSCALER)).id
    fleet.reconcile()
    first, *others = harness.backend.ids()
    fleet.delete_instances("a", [first])
    assert targets(fleet.snapshot) == {"a": 2}
    fleet.reconcile()
    harness.backend.finish_deletes()
    fleet = harness.restart()
    assert fleet.increment(key).phase is Phase.CREATING
    assert targets(fleet.snapshot) == {"a": 2}
    assert fleet.increment(key).message == "instances running: 0 of 2"
    for instance_id in others:
        harness.backend.boot(instance_id)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.DONE
    assert targets(fleet.snapshot) == {"a": 2}


def test_an_increment_all_of_whose_members_were_deleted_is_done() -> None:
    harness = FleetHarness(groups=[group("a")])
    fleet = harness.fleet()
    key = fleet.apply(IncrementSpec({"a": 2}, Origin.AUTOSCALER)).id
    fleet.reconcile()
    fleet.delete_instances("a", harness.backend.ids())
    fleet.reconcile()
    status = fleet.increment(key)
    assert (status.phase, status.message) == (Phase.DONE, "all of its instances were deleted")
    harness.backend.finish_deletes()
    fleet.reconcile()
    assert targets(fleet.snapshot) == {}
    assert listed(fleet.snapshot, "a") == []


def test_tombstones_are_kept_for_a_day() -> None:
    harness, fleet = _running({"a": 1})
    (gone,) = harness.backend.ids()
    fleet.delete_instances("a", [gone])
    fleet.reconcile()
    harness.backend.finish_deletes()
    fleet.reconcile()
    harness.clock.advance(86_000)
    fleet.reconcile()
    fleet.delete_instances("a", [gone])
    harness.clock.advance(500)
    fleet.reconcile()
    with pytest.raises(errors.NotFound):
        fleet.delete_instances("a", [gone])


# DecreaseTargetSize.


@pytest.mark.parametrize("delta", [0, 1, 7])
def test_a_decrease_must_be_negative(delta: int) -> None:
    _, fleet = _running({"a": 2})
    with pytest.raises(errors.InvalidInput, match=f"delta is {delta}, it must be negative"):
        fleet.decrease_target("a", delta)


def test_a_decrease_of_an_unknown_group() -> None:
    _, fleet = _running({"a": 2})
    with pytest.raises(errors.NotFound):
        fleet.decrease_target("x", -1)


def test_a_decrease_never_takes_existing_instances_nor_a_part_of_an_increment_in_flight() -> None:
    harness, fleet = _running({"a": 2})
    fleet.apply(IncrementSpec({"a": 2}, Origin.AUTOSCALER))
    fleet.decrease_target("a", -2)
    assert targets(fleet.snapshot) == {"a": 4}
    fleet.reconcile()
    fleet.decrease_target("a", -1000)
    fleet.reconcile()
    assert targets(fleet.snapshot) == {"a": 4}
    assert harness.backend.executed_deletes == []


def test_a_decrease_gives_failed_instances_back_oldest_first() -> None:
    harness, fleet = _running({"a": 2})
    fleet.apply(IncrementSpec({"a": 3}, Origin.AUTOSCALER))
    fleet.reconcile()
    failed = harness.backend.ids()[2:]
    harness.backend.fail(failed[0])
    fleet.reconcile()
    harness.backend.finish_deletes()
    fleet.reconcile()
    assert targets(fleet.snapshot) == {"a": 5}
    fleet.decrease_target("a", -1)
    assert [i.id for i in listed(fleet.snapshot, "a")][2:] == failed[1:]
    fleet = harness.restart()
    fleet.decrease_target("a", -3)
    assert states(fleet.snapshot, "a") == ["running", "running"]
    assert targets(fleet.snapshot) == {"a": 2}
    fleet.delete_instances("a", failed)
    assert targets(fleet.snapshot) == {"a": 2}


# Starting again.


def _reopen(path: Path) -> FleetHarness:
    def opened(last: Journal) -> Journal:
        return SqliteJournal(path)

    return FleetHarness(groups=[group("a"), group("b")], journal=SqliteJournal(path), open_journal=opened)


def test_everything_survives_a_restart_from_the_same_file(tmp_path: Path) -> None:
    harness = _reopen(tmp_path / "journal.db")
    fleet = harness.fleet()
    done = fleet.apply(IncrementSpec({"a": 2, "b": 1}, pods=frozenset({"x", "y"}), reason="gang")).id
    fleet.reconcile()
    harness.backend.boot_all()
    fleet.reconcile()
    failed = fleet.apply(IncrementSpec({"b": 2}, Origin.AUTOSCALER)).id
    fleet.reconcile()
    harness.backend.fail(harness.backend.ids("b")[2])
    fleet.reconcile()
    fleet.delete_instances("a", harness.backend.ids("a")[:1])
    planned = fleet.apply(IncrementSpec({"a": 1}, pods=frozenset({"z"}))).id
    before = fleet.snapshot
    harness.backend.unreachable = True
    fleet = harness.restart()
    assert [fleet.increment(key).phase for key in (done, failed, planned)] == [
        Phase.DONE,
        Phase.ROLLING_BACK,
        Phase.PLANNED,
    ]
    harness.backend.unreachable = False
    fleet.reconcile()
    assert targets(fleet.snapshot) == targets(before)
    assert fleet.snapshot.increments[:2] == before.increments[:2]
    assert fleet.snapshot.in_flight_pods == {"z"}
    assert states(fleet.snapshot, "a") == ["deleting", "running", "creating"]
    assert states(fleet.snapshot, "b") == ["running", "failed", "failed"]
    fleet.close()


def test_instances_of_unknown_origin_are_adopted() -> None:
    harness = FleetHarness(groups=[group("a", max_size=2)])
    first = harness.backend.add("a", token="", state=InstanceState.RUNNING)
    second = harness.backend.add("a", token="", state=InstanceState.CREATING)
    harness.backend.add("not ours", token="other", state=InstanceState.RUNNING)
    fleet = harness.fleet()
    assert states(fleet.snapshot, "a") == ["running", "creating"]
    assert targets(fleet.snapshot) == {"a": 2}
    assert fleet.snapshot.group_of_instance == {first: "a", second: "a"}
    with pytest.raises(errors.OutOfRange):
        fleet.apply(IncrementSpec({"a": 1}))
    fleet.delete_instances("a", [second])
    fleet.reconcile()
    assert harness.backend.executed_deletes == [second]
    assert states(fleet.snapshot, "a") == ["running", "deleting"]
    harness.backend.finish_deletes()
    fleet.reconcile()
    fleet.delete_instances("a", [second])
    assert targets(fleet.snapshot) == {"a": 1}


def test_with_a_lost_journal_everything_that_stands_is_adopted() -> None:
    harness, fleet = _running({"a": 2, "b": 1})
    fleet.close()
    harness.journal = MemoryJournal()
    fleet = harness.fleet()
    assert targets(fleet.snapshot) == {"a": 2, "b": 1}
    assert harness.backend.executed_deletes == []


def test_instances_are_listed_in_order_of_creation_whatever_the_backend_says_first() -> None:
    harness = FleetHarness(groups=[group("a")])
    adopted = harness.backend.add("a", token="t", state=InstanceState.RUNNING)
    fleet = harness.fleet()
    for _ in range(3):
        fleet.apply(IncrementSpec({"a": 1}))
        fleet.reconcile()
    ids = harness.backend.ids()
    assert ids[0] == adopted
    harness.backend.instances = dict(sorted(harness.backend.instances.items(), reverse=True))
    fleet.reconcile()
    assert [i.id for i in listed(fleet.snapshot, "a")] == ids
