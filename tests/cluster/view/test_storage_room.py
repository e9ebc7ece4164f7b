"""CSIStorageCapacity: pods go where their driver has room for the volumes that are still to be made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cagrpc.cluster.view.storage import CAPACITIES, CLAIMS, DRIVERS, VOLUMES
from solver.model import Budget, NodeGroup, Plan, PodSpec, Problem
from solver.model.eligibility import why_not_eligible
from solver.planning.solve import solve
from solver.verify.check import faults_of
from tests.cluster.view.test_storage import ATTACH, fed, reason, using, zones
from tests.support.controllers.cluster_objects import Fed
from tests.support.storage import ZONE, capacity, claim, csi_driver, storage_class, volume


def with_room(*capacities: Any, keeps_count: bool | None = True, **objects: Any) -> Fed:
    """Return a cluster with a pod `p` whose claim `c` of 10Gi waits for its first consumer."""
    there = fed(**{"claims": [claim("c", size="10Gi")], **objects})
    there.relist([csi_driver(storageCapacity=keeps_count)], DRIVERS)
    there.relist(list(capacities), CAPACITIES)
    there.put(using("p", "c"))
    return there


def where(there: Fed) -> str:
    return zones(there.specs()["default/p"])


@pytest.mark.parametrize(
    ("capacities", "expected"),
    [
        ([capacity("a", "5Gi"), capacity("b", "10Gi"), capacity("c", "11Gi")], "bc"),
        ([capacity("a", "100Gi", largest="9Gi"), capacity("b", "1Gi", largest="10Gi")], "b"),  # the more precise one
        ([capacity("a", "100Gi", class_name="other"), capacity("b", "100Gi")], "b"),
        ([capacity("a", "5Gi"), capacity("a", "20Gi", name="more")], "a"),  # one of them is enough
        ([capacity("a", None), capacity("b", "10Gi")], "b"),
        ([capacity("", "10Gi")], "abc"),  # an empty selector: every node
    ],
)
def test_pods_go_where_there_is_room(capacities: list[Any], expected: str) -> None:
    assert where(with_room(*capacities)) == expected


def test_two_claims_need_room_each_and_not_together() -> None:
    """As the scheduler: what was published last counts for each claim alone."""
    there = fed(claims=[claim("c", size="10Gi"), claim("d", size="20Gi")])
    there.relist([csi_driver()], DRIVERS)
    there.relist([capacity("a", "20Gi"), capacity("b", "15Gi")], CAPACITIES)
    there.put(using("p", "c", "d"), using("q", "c"))
    assert where(there) == "a"


def test_drivers_that_keep_no_count_and_claims_of_no_size_go_anywhere() -> None:
    assert where(with_room(capacity("a", "1Gi"), keeps_count=False)) == "abc"
    assert where(with_room(capacity("a", "1Gi"), keeps_count=None)) == "abc"
    assert where(with_room(capacity("a", "1Gi"), claims=[claim("c", size="0")])) == "abc"


def test_room_and_allowed_topologies_must_both_be_there() -> None:
    there = with_room(capacity("a", "10Gi"), capacity("b", "10Gi"), classes=[storage_class(zones=["b", "c"])])
    assert where(there) == "b"
    spec = there.specs()["default/p"]
    assert why_not_eligible(spec, {ZONE: "c"}, ()) is not None


def test_a_plan_goes_where_there_is_room_and_the_checker_finds_one_that_does_not() -> None:
    there = with_room(capacity("a", "9Gi"), capacity("b", "10Gi"))
    (waiting,) = there.state().waiting
    groups = tuple(
        NodeGroup(zone, {"cpu": 4000, "pods": 110, ATTACH: 25}, price, labels={ZONE: zone})
        for zone, price in (("a", 1.0), ("b", 2.0))
    )
    problem = Problem((waiting.pod_set,), groups)
    plan = solve(problem, Budget(deterministic_seconds=0.2))
    assert [each.node_group for each in plan.increments] == ["b"]
    there.put(capacity("b", "9Gi"), capacity("a", "10Gi"), path=CAPACITIES)
    (moved,) = there.state().waiting
    faults = list(faults_of(replace(problem, pod_sets=(moved.pod_set,)), _of(plan, moved.pod_set.spec)))
    assert any("holds class 0" in fault for fault in faults), faults


def _of(plan: Plan, spec: PodSpec) -> Plan:
    """Return the plan as one of pods with this spec."""
    return replace(plan, pod_classes=tuple(replace(each, spec=spec) for each in plan.pod_classes))


def test_without_room_anywhere_a_pod_waits_and_says_so() -> None:
    for there in (with_room(), with_room(capacity("a", "9Gi"))):
        assert reason(there) == (
            'persistentvolumeclaim "c" finds no storage: no CSIStorageCapacity of storageclass "fast" has 10Gi'
        )


def test_a_volume_that_is_there_already_does_instead() -> None:
    there = with_room(capacity("a", "9Gi"), volumes=[volume("v", "b")])
    assert where(there) == "b"
    there.drop(volume("v", "b"), path=VOLUMES)
    assert "finds no storage" in reason(there)


def test_bound_claims_need_no_room() -> None:
    there = with_room(claims=[claim("c", "v")], volumes=[volume("v", "a", of="c")])
    assert where(there) == "a"


def test_pods_are_read_again_when_room_comes_or_goes_and_only_then() -> None:
    there = with_room(capacity("a", "9Gi"), capacity("b", "100Gi"))
    assert where(there) == "b"
    before = there.model._pods._pods["uid-p"]
    there.put(capacity("b", "90Gi"), path=CAPACITIES)
    assert where(there) == "b"
    assert there.model._pods._pods["uid-p"] is before
    there.put(capacity("a", "10Gi"), path=CAPACITIES)
    assert where(there) == "ab"
    there.drop(capacity("b", "90Gi"), path=CAPACITIES)
    assert where(there) == "a"
    there.put(csi_driver(storageCapacity=False), path=DRIVERS)
    assert where(there) == "abc"


def test_where_capacities_cannot_be_listed_they_are_not_looked_at_and_a_warning_says_so() -> None:
    there = fed(claims=[claim("c", size="10Gi")], room=False)
    there.relist([csi_driver()], DRIVERS)
    there.put(using("p", "c"))
    assert where(there) == "abc"
    (warning,) = there.state().warnings
    assert warning == "whether storage has room for volumes is not looked at: csistoragecapacities cannot be listed"
    there.relist([capacity("a", "10Gi")], CAPACITIES)
    assert (where(there), there.state().warnings) == ("a", ())


def test_nothing_is_remembered_once_nobody_asks() -> None:
    there = with_room(capacity("a", "10Gi"))
    assert where(there) == "a"
    there.relist([])
    there.relist([], CLAIMS)
    there.relist([], CAPACITIES)
    there.state()
    assert there.model._storage.room._answers == {}
    assert not any(there.leftovers())
