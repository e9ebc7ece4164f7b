"""What the fleet makes of a backend's lists: pace, absence by time, ids that change, kinds of errors, orphans."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from cagrpc import errors
from cagrpc.errors import ErrorKind
from cagrpc.fleet.backend import BackendInstance, Pace
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import IncrementSpec, InstanceError, InstanceState, Origin, Phase
from tests.support.fleet import FleetHarness, MemoryJournal, ScriptedBackend, ScriptedNodes, group, states, targets


@dataclass
class PacedHarness:
    pace: Pace
    nodes: ScriptedNodes | None = None
    backend: ScriptedBackend = field(init=False)
    harness: FleetHarness = field(init=False)

    def __post_init__(self) -> None:
        self.backend = ScriptedBackend()
        self.backend.list_every_seconds = self.pace.list_every_seconds
        self.backend.absent_after_seconds = self.pace.absent_after_seconds
        options = {} if self.nodes is None else {"nodes": self.nodes}
        self.harness = FleetHarness([group("a"), group("b")], backend=self.backend, options=options)

    def ordered(self, deltas: dict[str, int], origin: Origin = Origin.CAGRPC) -> tuple[Fleet, str]:
        fleet = self.harness.fleet()
        key = fleet.apply(IncrementSpec(deltas, origin)).id
        fleet.reconcile()
        return fleet, key


# ---- pace


def test_a_slow_list_is_asked_for_at_its_pace_and_after_each_call() -> None:
    paced = PacedHarness(Pace(list_every_seconds=10))
    fleet, _ = paced.ordered({"a": 1})
    paced.backend.boot_all()
    lists: list[float] = []
    paced.backend.before_list = lambda: lists.append(paced.harness.clock())
    for _ in range(9):
        paced.harness.clock.advance(1)
        fleet.reconcile()
    assert lists == []
    assert states(fleet.snapshot, "a") == ["creating"]
    paced.harness.clock.advance(1)
    fleet.reconcile()
    assert len(lists) == 1
    assert states(fleet.snapshot, "a") == ["running"]
    fleet.delete_instances("a", paced.backend.ids())
    fleet.reconcile()
    assert states(fleet.snapshot, "a") == ["deleting"]


# ---- absence


def test_a_list_that_lacks_an_instance_for_a_moment_changes_nothing() -> None:
    paced = PacedHarness(Pace(absent_after_seconds=60))
    fleet, key = paced.ordered({"a": 2})
    paced.backend.missing = {paced.backend.executed_orders[0]}
    paced.harness.clock.advance(59)
    fleet.reconcile()
    assert states(fleet.snapshot, "a") == ["creating", "creating"]
    assert targets(fleet.snapshot) == {"a": 2}
    paced.backend.missing = set()
    paced.backend.boot_all()
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.DONE


def test_an_instance_that_no_list_had_for_so_long_is_gone() -> None:
    paced = PacedHarness(Pace(absent_after_seconds=60))
    fleet, key = paced.ordered({"a": 2})
    paced.backend.missing = {paced.backend.executed_orders[0]}
    fleet.reconcile()
    paced.harness.clock.advance(59)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.CREATING
    paced.harness.clock.advance(1)
    fleet.reconcile()
    status = fleet.increment(key)
    assert status.phase is Phase.ROLLING_BACK
    assert "vanished" in status.message
    assert status.short_groups == ("a",)


def test_where_lists_are_always_further_apart_absence_takes_a_second_one() -> None:
    """As when each step takes longer than a backend's `absent_after_seconds`."""
    paced = PacedHarness(Pace(absent_after_seconds=2))
    fleet, key = paced.ordered({"a": 1})
    paced.backend.missing = set(paced.backend.executed_orders)
    paced.harness.clock.advance(5)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.CREATING
    paced.harness.clock.advance(5)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.ROLLED_BACK


@pytest.mark.parametrize(("step_seconds", "listed_each"), [(30, True), (59, True), (59, False)])
def test_an_instance_that_comes_back_is_absent_anew(step_seconds: float, listed_each: bool) -> None:
    """Whatever time lies between the lists that lack it."""
    paced = PacedHarness(Pace(absent_after_seconds=60))
    fleet, key = paced.ordered({"a": 1})
    for missing in (set(paced.backend.executed_orders), set[str]()) * 4:
        paced.backend.missing = missing
        paced.harness.clock.advance(step_seconds)
        fleet.reconcile()
        if listed_each:
            fleet.reconcile()
    assert fleet.increment(key).phase is Phase.CREATING


def test_one_list_after_a_silence_makes_nothing_absent() -> None:
    paced = PacedHarness(Pace(absent_after_seconds=2))
    fleet, key = paced.ordered({"a": 1})
    for _ in range(3):
        paced.harness.clock.advance(1)
        fleet.reconcile()
    paced.backend.missing = set(paced.backend.executed_orders)
    paced.harness.clock.advance(500)
    fleet.reconcile()
    assert states(fleet.snapshot, "a") == ["creating"]
    paced.backend.missing = set()
    paced.backend.boot_all()
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.DONE


def test_a_running_node_flickers_and_no_target_moves() -> None:
    paced = PacedHarness(Pace(absent_after_seconds=60))
    fleet, _ = paced.ordered({"a": 2})
    paced.backend.boot_all()
    fleet.reconcile()
    version = fleet.snapshot.version
    paced.backend.missing = {paced.backend.executed_orders[0]}
    paced.harness.clock.advance(30)
    fleet.reconcile()
    assert fleet.snapshot.version == version


@pytest.mark.parametrize(("seconds", "phase"), [(1.9, Phase.CREATING), (2.0, Phase.ROLLING_BACK)])
def test_an_accepted_order_that_is_never_listed_was_lost(seconds: float, phase: Phase) -> None:
    """Seconds, not the deadline of an increment."""
    paced = PacedHarness(Pace(absent_after_seconds=2))
    fleet = paced.harness.fleet()
    key = fleet.apply(IncrementSpec({"a": 1, "b": 1})).id
    paced.backend.before_order = lambda: paced.backend.missing.update(f"{key}-a-{n}" for n in (1, 2))
    fleet.reconcile()
    paced.harness.clock.advance(seconds)
    fleet.reconcile()
    assert fleet.increment(key).phase is phase
    if phase is Phase.ROLLING_BACK:
        assert fleet.increment(key).short_groups == ("a",)
        assert states(fleet.snapshot, "b") == ["deleting"]


def test_absence_is_counted_anew_after_a_restart() -> None:
    paced = PacedHarness(Pace(absent_after_seconds=60))
    _, key = paced.ordered({"a": 1})
    paced.harness.clock.advance(1000)
    paced.backend.missing = set(paced.backend.executed_orders)
    fleet = paced.harness.restart()
    paced.harness.clock.advance(59)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.CREATING
    paced.harness.clock.advance(1)
    fleet.reconcile()
    assert fleet.increment(key).phase is not Phase.CREATING


def test_an_order_whose_answer_was_lost_is_sent_again_and_not_taken_for_gone() -> None:
    paced = PacedHarness(Pace())
    paced.backend.unreachable_groups = {"a"}
    fleet, key = paced.ordered({"a": 1})
    paced.harness.clock.advance(500)
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.CREATING
    paced.backend.unreachable_groups = set()
    fleet.reconcile()
    assert states(fleet.snapshot, "a") == ["creating"]


def test_what_is_deleted_is_gone_with_the_first_list_that_lacks_it() -> None:
    paced = PacedHarness(Pace(absent_after_seconds=60))
    fleet, _ = paced.ordered({"a": 1})
    paced.backend.boot_all()
    fleet.reconcile()
    fleet.delete_instances("a", paced.backend.ids())
    fleet.reconcile()
    paced.backend.finish_deletes()
    fleet.reconcile()
    assert states(fleet.snapshot, "a") == []


def test_a_list_from_before_the_order_says_nothing() -> None:
    paced = PacedHarness(Pace())
    fleet = paced.harness.fleet()
    key = fleet.apply(IncrementSpec({"a": 1})).id
    paced.backend.clock = lambda: paced.harness.clock() - 5
    paced.backend.before_order = lambda: paced.backend.missing.add(f"{key}-a-1")
    fleet.reconcile()
    fleet.reconcile()
    assert fleet.increment(key).phase is Phase.CREATING


# ---- ids


def _named(backend: ScriptedBackend, token: str, instance_id: str) -> None:
    (before,) = (each for each in backend.instances.values() if each.token == token)
    del backend.instances[before.id]
    backend.instances[instance_id] = replace(before, id=instance_id)


@pytest.mark.parametrize("origin", Origin)
def test_an_instance_is_deleted_by_the_id_that_the_autoscaler_remembers(origin: Origin) -> None:
    paced = PacedHarness(Pace())
    fleet = paced.harness.fleet()
    key = fleet.apply(IncrementSpec({"a": 2}, origin)).id
    fleet.reconcile()
    first, second = paced.backend.executed_orders
    _named(paced.backend, first, first)
    fleet.reconcile()
    assert first in fleet.snapshot.group_of_instance
    _named(paced.backend, first, "cloud:///i-1")
    fleet.reconcile()
    assert first not in fleet.snapshot.group_of_instance
    fleet.delete_instances("a", [first])
    fleet.reconcile()
    assert paced.backend.executed_deletes == ["cloud:///i-1"]
    assert targets(fleet.snapshot) == {"a": 1}
    assert fleet.increment(key).phase is Phase.CREATING
    assert paced.backend.instances[next(i for i in paced.backend.ids() if i != "cloud:///i-1")].token == second


def test_an_instance_is_deleted_by_either_id_where_the_journal_could_not_learn_the_new_one() -> None:
    for remembered in ("token", "id"):
        paced = PacedHarness(Pace())
        fleet = paced.harness.fleet()
        key = fleet.apply(IncrementSpec({"a": 2}, Origin.AUTOSCALER), refusal_wait_seconds=1).id
        first, _ = paced.backend.executed_orders
        _named(paced.backend, first, "cloud:///i-1")
        journal = paced.harness.journal
        assert isinstance(journal, MemoryJournal)
        journal.broken = True
        with pytest.raises(errors.Unavailable):
            fleet.reconcile()
        assert "cloud:///i-1" in fleet.snapshot.group_of_instance
        journal.broken = False
        fleet.delete_instances("a", [{"token": first, "id": "cloud:///i-1"}[remembered]])
        assert targets(fleet.snapshot) == {"a": 1}
        fleet.reconcile()
        assert paced.backend.executed_deletes == ["cloud:///i-1"]
        assert fleet.increment(key).phase is Phase.CREATING


def test_an_instance_that_was_listed_first_while_it_was_rolled_back_may_be_deleted_once_more_when_it_is_gone() -> None:
    paced = PacedHarness(Pace())
    fleet = paced.harness.fleet()
    key = fleet.apply(IncrementSpec({"a": 1}), refusal_wait_seconds=1).id
    fleet.withdraw(key, "no longer wanted")
    fleet.reconcile()
    (rolled_back,) = paced.backend.ids()
    paced.backend.finish_deletes()
    for _ in range(2):
        fleet.delete_instances("a", [rolled_back])
        fleet.reconcile()
    assert paced.backend.executed_deletes == [rolled_back]


def test_an_id_that_nobody_knows_deletes_nothing() -> None:
    paced = PacedHarness(Pace())
    fleet, _ = paced.ordered({"a": 1})
    with pytest.raises(errors.NotFound, match="nothing was deleted"):
        fleet.delete_instances("a", ["cloud:///i-never", *paced.backend.ids()])
    assert targets(fleet.snapshot) == {"a": 1}


# ---- kinds of errors


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (errors.OutOfCapacity, ErrorKind.CAPACITY),
        (errors.QuotaExceeded, ErrorKind.QUOTA),
        (errors.OrderMisconfigured, ErrorKind.CONFIGURATION),
        (errors.OrderRefused, ErrorKind.OTHER),
    ],
)
def test_a_refusal_keeps_its_kind(refusal: type[errors.OrderRefused], kind: ErrorKind) -> None:
    paced = PacedHarness(Pace())
    paced.backend.refused_groups, paced.backend.refusal = {"b"}, refusal
    fleet, key = paced.ordered({"a": 1, "b": 1}, Origin.AUTOSCALER)
    assert fleet.increment(key).short_groups == ("b",)
    (failed,) = fleet.snapshot.groups["a"].instances
    assert failed.error is not None
    assert failed.error.kind is kind
    assert failed.error.out_of_resources == (kind in (ErrorKind.CAPACITY, ErrorKind.QUOTA))


def test_the_longest_time_to_try_again_is_kept_over_a_restart() -> None:
    paced = PacedHarness(Pace())
    fleet, key = paced.ordered({"a": 2})
    for number, instance_id in enumerate(paced.backend.ids()):
        paced.backend.fail(instance_id, InstanceError("vcpu", "limit", ErrorKind.QUOTA, 60.0 * (1 + number)))
    fleet.reconcile()
    assert fleet.increment(key).retry_after_seconds == 120
    assert paced.harness.restart().increment(key).retry_after_seconds == 120


# ---- a backend that was away


def test_a_backend_that_was_away_for_an_hour_is_taken_as_it_is_found() -> None:
    """What became ready meanwhile is whole; what did not has missed its deadline and goes as a whole."""
    paced = PacedHarness(Pace(absent_after_seconds=60))
    fleet, whole = paced.ordered({"a": 1})
    half = fleet.apply(IncrementSpec({"b": 2})).id
    fleet.reconcile()
    paced.backend.unreachable = True
    for _ in range(60):
        paced.harness.clock.advance(60)
        with pytest.raises(errors.Unavailable):
            fleet.reconcile()
    assert targets(fleet.snapshot) == {"a": 1, "b": 2}, "nothing is concluded from silence"
    paced.backend.unreachable = False
    paced.backend.boot(paced.backend.ids("a")[0])
    paced.backend.boot(paced.backend.ids("b")[0])
    fleet.reconcile()
    assert fleet.increment(whole).phase is Phase.DONE
    assert fleet.increment(half).phase is Phase.ROLLING_BACK
    assert states(fleet.snapshot, "b") == ["deleting", "deleting"]


# ---- orphans

OURS, NODE = "0123456789ab-old-1", "scripted://node"


def _with_orphan(token: str = OURS) -> tuple[PacedHarness, Fleet, ScriptedNodes]:
    nodes = ScriptedNodes()
    paced = PacedHarness(Pace(), nodes)
    orphan = BackendInstance(NODE, token, "old", InstanceState.RUNNING)
    paced.backend.instances[NODE] = orphan
    return paced, paced.harness.fleet(), nodes


def test_an_orphan_is_reported_and_counts_nowhere() -> None:
    _, fleet, _ = _with_orphan()
    assert [each.id for each in fleet.snapshot.orphans] == [NODE]
    assert targets(fleet.snapshot) == {}
    assert NODE not in fleet.snapshot.group_of_instance


def test_an_orphan_with_our_token_that_never_registers_is_deleted() -> None:
    paced, fleet, _ = _with_orphan()
    paced.harness.clock.advance(599)
    fleet.reconcile()
    assert paced.backend.executed_deletes == []
    paced.harness.clock.advance(1)
    fleet.reconcile()
    assert paced.backend.executed_deletes == [NODE]
    assert fleet.snapshot.orphans == ()


@pytest.mark.parametrize("token", ["karpenter-made-it", "0123456789ab-other-1", "0123456789ab-old-0"])
def test_an_orphan_with_another_token_is_only_reported(token: str) -> None:
    paced, fleet, _ = _with_orphan(token)
    paced.harness.clock.advance(10_000)
    fleet.reconcile()
    assert paced.backend.executed_deletes == []
    assert [each.id for each in fleet.snapshot.orphans] == [NODE]


@pytest.mark.parametrize("ready", [True, False])
def test_an_orphan_that_ever_had_a_node_is_only_reported(ready: bool) -> None:
    paced, fleet, nodes = _with_orphan()
    (nodes.ready if ready else nodes.not_ready).add(NODE)
    fleet.reconcile()
    nodes.ready.clear()
    nodes.not_ready.clear()
    paced.harness.clock.advance(10_000)
    fleet.reconcile()
    assert paced.backend.executed_deletes == []


def test_while_the_cluster_is_unreachable_no_orphan_is_deleted() -> None:
    paced, fleet, nodes = _with_orphan()
    nodes.unknown = True
    paced.harness.clock.advance(10_000)
    fleet.reconcile()
    assert paced.backend.executed_deletes == []
    nodes.unknown = False
    fleet.reconcile()
    assert paced.backend.executed_deletes == []
    paced.harness.clock.advance(600)
    fleet.reconcile()
    assert paced.backend.executed_deletes == [NODE]


def test_without_a_cluster_no_orphan_is_deleted() -> None:
    paced = PacedHarness(Pace())
    paced.backend.instances[NODE] = BackendInstance(NODE, OURS, "old", InstanceState.RUNNING)
    fleet = paced.harness.fleet()
    paced.harness.clock.advance(10_000)
    fleet.reconcile()
    assert paced.backend.executed_deletes == []
    assert isinstance(paced.harness.journal, MemoryJournal)


def test_an_instance_of_a_served_group_that_the_journal_does_not_know_counts() -> None:
    paced = PacedHarness(Pace())
    paced.backend.add("a", token="0123456789ab-a-1", state=InstanceState.RUNNING)
    fleet = paced.harness.fleet()
    assert targets(fleet.snapshot) == {"a": 1}
    assert fleet.snapshot.orphans == ()
