"""Increments that cannot be whole: all of their instances are deleted, once, and CA sees what it must see; and minimum
sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from cagrpc import errors
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import IncrementSpec, InstanceState, Origin, Phase
from solver.model import Limit
from tests.support.fleet import FleetHarness, MemoryJournal, ScriptedBackend, group, listed, states, targets


def _harness(**more: object) -> FleetHarness:
    return FleetHarness(groups=[group("a"), group("b")], **more)  # type: ignore[arg-type]


def _ordered(harness: FleetHarness, deltas: dict[str, int], origin: Origin) -> tuple[Fleet, str]:
    fleet = harness.fleet()
    applied = fleet.apply(IncrementSpec(deltas, origin, pods=frozenset({"p"})))
    fleet.reconcile()
    return fleet, applied.id


def _fail_one(harness: FleetHarness) -> None:
    harness.backend.boot(harness.backend.ids()[0])
    harness.backend.fail(harness.backend.ids()[1])


def _vanish_one(harness: FleetHarness) -> None:
    harness.backend.vanish(harness.backend.ids()[1])


def _delete_one_elsewhere(harness: FleetHarness) -> None:
    harness.backend.delete([harness.backend.instances[harness.backend.ids()[1]]])
    harness.backend.executed_deletes.clear()


def _miss_the_deadline(harness: FleetHarness) -> None:
    harness.backend.boot(harness.backend.ids()[0])
    harness.clock.advance(600)


TROUBLES = [
    pytest.param(_fail_one, "no capacity", id="one fails"),
    pytest.param(_vanish_one, "vanished before its increment was whole", id="one vanishes"),
    pytest.param(_delete_one_elsewhere, "is being deleted by somebody else", id="one is deleted elsewhere"),
    pytest.param(_miss_the_deadline, "not whole after 600 s: instances running: 1 of 3", id="deadline"),
]


@pytest.mark.parametrize(("trouble", "words"), TROUBLES)
def test_our_own_increment_restores_targets_at_once(trouble: Callable[[FleetHarness], None], words: str) -> None:
    harness = _harness()
    fleet, key = _ordered(harness, {"a": 2, "b": 1}, Origin.CAGRPC)
    trouble(harness)
    fleet.reconcile()
    assert targets(fleet.snapshot) == {}
    assert set(states(fleet.snapshot, "a") + states(fleet.snapshot, "b")) == {"deleting"}
    assert fleet.increment(key).phase is Phase.ROLLING_BACK
    assert words in fleet.increment(key).message
    assert fleet.snapshot.in_flight_pods == frozenset()
    harness.backend.finish_deletes()
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.ROLLED_BACK
    assert words in fleet.increment(key).message
    assert listed(fleet.snapshot, "a") == listed(fleet.snapshot, "b") == []
    assert len(harness.backend.executed_deletes) == len(set(harness.backend.executed_deletes))


@pytest.mark.parametrize(("trouble", "words"), TROUBLES)
def test_what_ca_asked_for_goes_at_once_and_stays_listed_as_failed(
    trouble: Callable[[FleetHarness], None], words: str
) -> None:
    harness = _harness()
    fleet, key = _ordered(harness, {"a": 3}, Origin.AUTOSCALER)
    ids = harness.backend.ids()
    trouble(harness)
    fleet.reconcile()
    harness.backend.finish_deletes()
    fleet.reconcile()
    assert harness.backend.ids() == []
    assert fleet.increment(key).phase is Phase.ROLLED_BACK
    instances = listed(fleet.snapshot, "a")
    assert [i.id for i in instances] == ids
    assert {i.state for i in instances} == {InstanceState.CREATING}
    assert all(i.error is not None and i.error.out_of_resources and words in i.error.message for i in instances)
    assert targets(fleet.snapshot) == {"a": 3}


def test_each_delete_of_a_failed_instance_lowers_the_target_once() -> None:
    harness = _harness()
    fleet, _ = _ordered(harness, {"a": 3}, Origin.AUTOSCALER)
    ids = harness.backend.ids()
    _fail_one(harness)
    fleet.reconcile()
    for left, instance_id in zip((2, 1, 0), ids, strict=True):
        for _ in range(2):
            fleet.delete_instances("a", [instance_id])
            assert fleet.snapshot.groups["a"].target_size == left
            fleet.reconcile()
        fleet = harness.restart()
        assert fleet.snapshot.groups["a"].target_size == left
    harness.backend.finish_deletes()
    fleet.reconcile()
    assert listed(fleet.snapshot, "a") == []
    assert sorted(harness.backend.executed_deletes) == sorted(ids)


def test_failed_instances_that_ca_never_deletes_are_given_up_after_ten_minutes_also_across_restarts() -> None:
    harness = _harness()
    fleet, key = _ordered(harness, {"a": 2}, Origin.AUTOSCALER)
    _vanish_one(harness)
    fleet.reconcile()
    harness.backend.finish_deletes()
    harness.clock.advance(200)
    fleet = harness.restart()
    harness.clock.advance(399)
    fleet.reconcile()
    assert states(fleet.snapshot, "a") == ["failed", "failed"]
    harness.clock.advance(1)
    fleet.reconcile()
    assert listed(fleet.snapshot, "a") == []
    assert targets(fleet.snapshot) == {}
    assert fleet.increment(key).phase is Phase.ROLLED_BACK


def test_a_member_without_an_instance_is_listed_under_a_stable_made_up_id() -> None:
    harness = _harness()
    harness.backend.hidden = {"everything"}
    fleet = harness.fleet()
    harness.backend.unreachable = True
    fleet.apply(IncrementSpec({"a": 2}, Origin.AUTOSCALER))
    with pytest.raises(errors.Unavailable):
        fleet.reconcile()
    harness.clock.advance(600)
    harness.backend.unreachable = False
    fleet.reconcile()
    assert harness.backend.order_calls == []
    made_up = [i.id for i in listed(fleet.snapshot, "a")]
    assert len(set(made_up)) == 2
    fleet = harness.restart()
    assert [i.id for i in listed(fleet.snapshot, "a")] == made_up
    fleet.delete_instances("a", made_up)
    fleet.reconcile()
    assert targets(fleet.snapshot) == {}
    assert harness.backend.executed_deletes == []


def test_a_machine_that_turns_up_after_the_roll_back_is_deleted_and_never_counted() -> None:
    harness = _harness()
    fleet = harness.fleet()
    fleet.apply(IncrementSpec({"a": 1}, Origin.AUTOSCALER))
    harness.backend.lose_answers = harness.backend.hide_new = True
    fleet.reconcile()
    harness.backend.lose_answers = False
    harness.clock.advance(600)
    fleet.reconcile()
    (made_up,) = (i.id for i in listed(fleet.snapshot, "a"))
    harness.backend.hidden = set()
    fleet = harness.restart()
    assert [i.id for i in listed(fleet.snapshot, "a")] == [made_up]
    assert targets(fleet.snapshot) == {"a": 1}
    assert len(harness.backend.executed_deletes) == 1
    fleet.delete_instances("a", [made_up])
    assert states(fleet.snapshot, "a") == ["deleting"]
    assert targets(fleet.snapshot) == {}
    harness.backend.finish_deletes()
    fleet.reconcile()
    assert listed(fleet.snapshot, "a") == []


def test_a_late_machine_is_remembered_beyond_a_day_while_it_is_listed() -> None:
    harness = _harness()
    fleet, key = _ordered(harness, {"a": 1}, Origin.CAGRPC)
    late = harness.backend.instances.copy()
    harness.backend.instances.clear()
    fleet.reconcile()
    harness.backend.instances = late
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.ROLLED_BACK
    harness.clock.advance(86_401)
    fleet.reconcile()
    assert states(fleet.snapshot, "a") == ["deleting"]
    assert fleet.increment(key).phase is Phase.ROLLED_BACK
    harness.backend.finish_deletes()
    fleet.reconcile()
    with pytest.raises(errors.NotFound):
        fleet.increment(key)


def test_one_increment_fails_and_the_others_of_its_group_go_on() -> None:
    harness = _harness()
    fleet, first = _ordered(harness, {"a": 2}, Origin.AUTOSCALER)
    second = fleet.apply(IncrementSpec({"a": 1}, Origin.AUTOSCALER)).id
    fleet.reconcile()
    harness.backend.fail(harness.backend.ids()[0])
    harness.backend.boot(harness.backend.ids()[2])
    fleet.reconcile()
    assert fleet.increment(first).phase is Phase.ROLLING_BACK
    assert fleet.increment(second).phase is Phase.DONE
    assert states(fleet.snapshot, "a") == ["failed", "failed", "running"]


def test_a_roll_back_waits_for_a_backend_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = _harness()
    fleet, key = _ordered(harness, {"a": 2}, Origin.CAGRPC)
    harness.backend.fail(harness.backend.ids()[0])

    def no_delete(instance_ids: Sequence[str]) -> None:
        raise errors.Unavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(harness.backend, "delete", no_delete)
        fleet.reconcile()
    assert fleet.increment(key).phase is Phase.ROLLING_BACK
    assert targets(fleet.snapshot) == {}
    fleet = harness.restart()
    harness.backend.finish_deletes()
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.ROLLED_BACK


def test_a_refused_order_whose_first_answer_was_lost_takes_back_what_exists() -> None:
    """The first call was carried out, its answer lost, one instance not listed yet; the second call is refused."""
    harness = _harness()
    fleet = harness.fleet()
    key = fleet.apply(IncrementSpec({"a": 1, "b": 1})).id
    harness.backend.lose_answers = harness.backend.hide_new = True
    fleet.reconcile()
    harness.backend.lose_answers = False
    token = harness.backend.executed_orders[1]
    harness.backend.hidden = {token}
    harness.backend.tokens.discard(token)  # A cloud that forgets tokens before it lists instances.
    harness.backend.refused_groups = {"b"}
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.ROLLING_BACK
    harness.backend.hidden = set()
    fleet.reconcile()
    harness.backend.finish_deletes()
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.ROLLED_BACK
    assert harness.backend.ids() == []


def test_a_group_that_is_no_longer_configured_fails_its_increments() -> None:
    harness = _harness()
    fleet, key = _ordered(harness, {"a": 1, "b": 1}, Origin.CAGRPC)
    harness.groups = [group("a")]
    fleet = harness.restart()
    assert "node group b is no longer configured" in fleet.increment(key).message
    harness.backend.finish_deletes()
    fleet.reconcile()
    assert harness.backend.ids() == []


def test_the_message_says_how_far_it_is() -> None:
    harness = _harness()
    fleet, key = _ordered(harness, {"a": 3}, Origin.CAGRPC)
    harness.backend.boot(harness.backend.ids()[1])
    fleet.reconcile()
    assert fleet.increment(key).message == "instances running: 1 of 3"
    assert fleet.snapshot.increments[0].message == "instances running: 1 of 3"


def test_nodes_that_vanish_after_their_increment_was_done_leave_listing_and_target() -> None:
    harness = _harness()
    fleet, key = _ordered(harness, {"a": 2}, Origin.AUTOSCALER)
    harness.backend.boot_all()
    fleet.reconcile()
    gone = harness.backend.ids()[0]
    harness.backend.vanish(gone)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.DONE
    assert targets(fleet.snapshot) == {"a": 1}
    fleet.delete_instances("a", [gone])
    assert targets(fleet.snapshot) == {"a": 1}


# Minimum sizes.


def test_a_group_below_its_minimum_is_filled() -> None:
    harness = FleetHarness(groups=[group("a", min_size=2), group("b")])
    fleet = harness.fleet()
    assert targets(fleet.snapshot) == {"a": 2}
    assert len(harness.backend.executed_orders) == 2
    (status,) = fleet.snapshot.increments
    assert (status.increment.origin, status.increment.reason) == (Origin.CAGRPC, "minimum size")
    harness.backend.boot_all()
    fleet.reconcile()
    harness.backend.vanish(harness.backend.ids()[0])
    fleet.reconcile()
    assert targets(fleet.snapshot) == {"a": 2}
    assert len(harness.backend.executed_orders) == 3


def test_a_large_minimum_is_filled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cagrpc.fleet.groups.LARGEST_INCREMENT", 4)
    harness = FleetHarness(groups=[group("a", min_size=10)])
    fleet = harness.fleet()
    fleet.reconcile()
    assert targets(fleet.snapshot) == {"a": 10}
    assert sorted(i.increment.deltas["a"] for i in fleet.snapshot.increments) == [2, 4, 4]


def test_filling_backs_off_after_failures_also_across_restarts() -> None:
    backend = ScriptedBackend()
    backend.refused_groups = {"a"}
    harness = FleetHarness(groups=[group("a", min_size=1)], backend=backend)
    fleet = harness.fleet()
    tries = []
    for _ in range(20):
        harness.clock.advance(30)
        fleet.reconcile()
        tries.append(len(backend.order_calls))
    # At 0 s, 60 s, 180 s, 420 s.
    assert tries == [1] + [2] * 4 + [3] * 8 + [4] * 7
    fleet = harness.restart()
    assert len(backend.order_calls) == 4
    backend.refused_groups = set()
    harness.clock.advance(480)
    fleet.reconcile()
    assert targets(fleet.snapshot) == {"a": 1}


def test_a_success_ends_the_back_off() -> None:
    harness = FleetHarness(groups=[group("a", min_size=1)])
    harness.backend.refused_groups = {"a"}
    fleet = harness.fleet()
    for seconds in (60, 120):
        harness.clock.advance(seconds)
        fleet.reconcile()
    harness.backend.refused_groups = set()
    harness.clock.advance(240)
    fleet.reconcile()
    harness.backend.boot_all()
    fleet.reconcile()
    harness.backend.vanish(harness.backend.ids()[0])
    harness.backend.refused_groups = {"a"}
    fleet.reconcile()
    assert len(harness.backend.order_calls) == 5
    harness.clock.advance(60)
    fleet.reconcile()
    assert len(harness.backend.order_calls) == 6


def test_a_minimum_that_a_limit_forbids_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    harness = FleetHarness(groups=[group("a", min_size=2)], limits=[Limit("cluster", {"nodes": 1})])
    fleet = harness.fleet()
    fleet.reconcile()
    fleet.reconcile()
    assert targets(fleet.snapshot) == {}
    assert caplog.text.count("stays below its minimum size: limit cluster") == 1


def test_a_failed_fill_of_one_group_does_not_hold_up_another() -> None:
    harness = FleetHarness(groups=[group("a", min_size=1), group("b", min_size=1)])
    harness.backend.refused_groups = {"a"}
    fleet = harness.fleet()
    assert targets(fleet.snapshot) == {"b": 1}
    assert isinstance(harness.journal, MemoryJournal)
