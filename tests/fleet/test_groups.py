"""Node groups that are no longer configured: their instances are served and counted until they are gone."""

from __future__ import annotations

import pytest

from cagrpc import errors
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import IncrementSpec, InstanceState
from solver.model import Limit, Taint, TaintEffect
from tests.support.fleet import FleetHarness, MemoryJournal, group, listed, states, targets

LIMITS = [
    Limit("cluster", {"nodes": 5}),
    Limit("provisioner gold", {"nodes": 4}, node_groups=frozenset({"a", "c"})),
    Limit("provisioner lead", {"nodes": 4}, node_groups=frozenset({"b"})),
]


def _without_c(count: int) -> tuple[FleetHarness, Fleet]:
    """A fleet after `c` was taken out of its configuration while so many nodes of it ran."""
    harness = FleetHarness(groups=[group("a"), group("b"), group("c", min_size=1)], limits=LIMITS)
    fleet = harness.fleet()
    if count > 1:
        fleet.apply(IncrementSpec({"c": count - 1}))
        fleet.reconcile()
    harness.backend.boot_all()
    fleet.reconcile()
    harness.groups = [group("a"), group("b")]
    harness.limits = [
        limit if limit.node_groups is None else Limit(limit.name, limit.maxima, node_groups=limit.node_groups - {"c"})
        for limit in LIMITS
    ]
    return harness, harness.restart()


def test_a_removed_group_is_served_with_what_stands_and_does_not_grow(caplog: pytest.LogCaptureFixture) -> None:
    harness, fleet = _without_c(3)
    assert states(fleet.snapshot, "c") == ["running"] * 3
    assert fleet.snapshot.shown == ("a", "b", "c")
    shown = fleet.snapshot.groups["c"].group
    assert (shown.min_size, shown.max_size, shown.target_size) == (0, 3, 3)
    assert shown.allocatable == group("c").allocatable
    assert fleet.snapshot.group_of_instance[harness.backend.ids()[0]] == "c"
    with pytest.raises(errors.OutOfRange):
        fleet.apply(IncrementSpec({"c": 1}))
    fleet.reconcile()
    assert caplog.text.count("node group c is no longer configured; it is served until its nodes are gone") == 1


def test_limits_count_what_stands_in_a_removed_group() -> None:
    _, fleet = _without_c(3)
    assert [limit.used.get("nodes", 0) for limit in fleet.snapshot.limits] == [3, 3, 0]
    with pytest.raises(errors.LimitExceeded, match="limit cluster: nodes is at 3 of 5, 3 more"):
        fleet.apply(IncrementSpec({"b": 3}))
    with pytest.raises(errors.LimitExceeded, match="limit provisioner gold: nodes is at 3 of 4, 2 more"):
        fleet.apply(IncrementSpec({"a": 2}))
    fleet.apply(IncrementSpec({"b": 2}))


def test_a_removed_group_is_forgotten_when_its_last_instance_is_gone() -> None:
    harness, fleet = _without_c(2)
    fleet.delete_instances("c", harness.backend.ids())  # The minimum went with the configuration.
    fleet.reconcile()
    assert states(fleet.snapshot, "c") == ["deleting"] * 2
    harness.backend.finish_deletes()
    fleet.reconcile()
    assert "c" not in fleet.snapshot.groups
    assert isinstance(harness.journal, MemoryJournal)
    assert set(harness.journal.shelf[0].groups) == {"a", "b"}
    fleet = harness.restart()
    assert "c" not in fleet.snapshot.groups


def test_it_is_remembered_over_starts_without_the_backend() -> None:
    harness, _ = _without_c(1)
    harness.backend.unreachable = True
    harness.restart()
    harness.backend.unreachable = False
    fleet = harness.restart()
    assert targets(fleet.snapshot) == {"c": 1}


def test_a_group_that_comes_back_is_what_is_configured_then() -> None:
    harness, _ = _without_c(2)
    harness.groups = [group("a"), group("b"), group("c", min_size=1, max_size=3, price=9.0)]
    fleet = harness.restart()
    back = fleet.snapshot.groups["c"].group
    assert (back.min_size, back.max_size, back.price_usd_per_hour) == (1, 3, 9.0)
    fleet.apply(IncrementSpec({"c": 1}))


def test_a_maximum_below_what_stands_is_shown_as_what_stands() -> None:
    harness = FleetHarness(groups=[group("a", max_size=5)])
    harness.fleet().apply(IncrementSpec({"a": 4}))
    harness.groups = [group("a", max_size=2)]
    fleet = harness.restart()
    assert fleet.snapshot.groups["a"].group.max_size == 4
    with pytest.raises(errors.OutOfRange, match="maximum of 2"):
        fleet.apply(IncrementSpec({"a": 1}))


def test_instances_of_an_unknown_group_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    harness = FleetHarness(groups=[group("a")])
    harness.backend.add("x", token="t", state=InstanceState.RUNNING)
    fleet = harness.fleet()
    fleet.reconcile()
    assert listed(fleet.snapshot, "a") == []
    assert caplog.text.count("orphans, whose node groups are not served, are not counted (1)") == 1


def test_definitions_are_journalled_once_and_when_they_change() -> None:
    tainted = group("a", taints=(Taint("k", TaintEffect.NO_SCHEDULE, "v"),), labels={"l": "x"}, capacity={"cpu": 1})
    harness = FleetHarness(groups=[tainted, group("b")], limits=LIMITS)
    harness.fleet()
    assert isinstance(harness.journal, MemoryJournal)
    known = harness.journal.shelf[0].groups
    assert {key: (record.group, record.limits) for key, record in known.items()} == {
        "a": (tainted, ("provisioner gold",)),
        "b": (group("b"), ("provisioner lead",)),
    }
    harness.restart()
    assert harness.journal.commits == []
    harness.groups = [tainted, group("b", max_size=7)]
    harness.restart()
    assert [[r.group.id for r in changes.groups] for changes in harness.journal.commits] == [["b"]]
