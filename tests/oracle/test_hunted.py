"""What random clusters have shown (`python -m bench.hunt`), as small as it gets: every pod that a node takes is
planned, and none gets stuck, by the scheduler's own plug-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.hunted.cases import Case, planned, question
from tests.oracle import KubeScheduler, pod
from tests.support.storage import claim, storage_class

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
B: dict[str, Any] = {"matchLabels": {"app": "b"}}


def _pods(count: int, name: str, cpu: str = "1", labels: dict[str, str] | None = None, **spec: Any) -> list[Any]:
    return [pod(f"{name}{number}", cpu, labels, **spec) for number in range(count)]


def _spread(key: str, selector: dict[str, Any] = B, skew: int = 1) -> dict[str, Any]:
    each = {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return {"topologySpreadConstraints": [each]}


def _node(name: str, cpu: str = "4", zone: str = "", **spec: Any) -> dict[str, Any]:
    offered = {"cpu": cpu, "memory": "8Gi", "pods": "20"}
    return {
        "metadata": {"name": name, "labels": {HOST: name, **({ZONE: zone} if zone else {})}},
        "spec": spec,
        "status": {
            "capacity": offered,
            "allocatable": offered,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def _group(name: str, cpu: str = "4", zone: str = "", price: float = 1.0, **more: Any) -> dict[str, Any]:
    shape = {"cpu": cpu, "memory": "8Gi", "pods": 20}
    return {"id": name, "allocatable": shape, "price_usd_per_hour": price, **({"zone": zone} if zone else {}), **more}


def _case(pending: list[Any], groups: list[Any], nodes: list[Any] | None = None, **more: Any) -> Case:
    lists: dict[str, Any] = {"namespaces": [], "bound": [], "daemonsets": [], "objects": []}
    pools = [{"name": "p", "node_groups": groups}]
    return {**lists, "nodes": nodes or [], "pending": pending, "provisioners": pools, **more}


TAINTED: dict[str, Any] = {"taints": [{"key": "spot", "effect": "NoSchedule"}]}
FIRST: dict[str, Any] = {**_spread(ZONE), "priority": 10}
CASES: dict[str, Case] = {
    "those of lower priority come later, and do not keep a spread's pod out": _case(
        [pod("first", **FIRST), *_pods(2, "b", labels={"app": "b"})],
        [_group("g", zone="zb")],
        [_node("n", zone="zc", **TAINTED)],
    ),
    "one that needs a pod of lower priority waits for it": _case(
        [
            pod("b", labels={"app": "b"}),
            pod(
                "first", priority=10, affinity={"podAffinity": {REQUIRED: [{"topologyKey": HOST, "labelSelector": B}]}}
            ),
        ],
        [_group("g")],
    ),
    "what others of the kind keep they give up for one more of them, in a zone that no node is in yet": _case(
        _pods(
            2,
            "a",
            "3",
            labels={"app": "b"},
            affinity={
                "podAffinity": {REQUIRED: [{"topologyKey": "rack", "labelSelector": B}]},
                "podAntiAffinity": {
                    PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": HOST, "labelSelector": B}}]
                },
            },
            **_spread(ZONE),
        ),
        [
            _group("ga", "8", zone="za", labels={"rack": "r2"}, max_size=1),
            _group("gb", "8", zone="zb", labels={"rack": "r3"}, max_size=1),
        ],
    ),
    "pods of one claim, where nodes have no zones": _case(
        _pods(3, "p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "shared"}}]),
        [_group("g", "2")],
        objects=[storage_class(), claim("shared", modes=["ReadWriteMany"])],
    ),
    "on the node that stands as well": _case(
        [pod("first", **FIRST), *_pods(2, "b", labels={"app": "b"})],
        [_group("g", max_size=0)],
        [_node("n", zone="zb"), _node("tainted", zone="zc", **TAINTED)],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_all_that_nodes_take_is_planned_and_nobody_gets_stuck(case: Case, oracle: Path, tmp_path: Path) -> None:
    found = planned(case, tmp_path)
    with KubeScheduler(oracle) as scheduler:
        answer = scheduler.ask(question(case, found, nominated=True))
    assert {pod: nodes for pod, nodes in answer["takes"].items() if nodes} == {}
    assert (answer["refused"], answer["undecided"], answer["stuck"]) == ([], 0, [])


def test_pods_of_lower_priority_may_be_first_where_they_need_no_new_node(oracle: Path, tmp_path: Path) -> None:
    """One more would keep the spread's pod out of the zone, if it came before that pod's node does."""
    carrier = pod("first", "6", **FIRST)
    case = _case(
        [carrier, *_pods(3, "b", labels={"app": "b"})],
        [_group("g", "8", zone="zb", max_size=1)],
        [_node("n", zone="zb"), _node("tainted", zone="zc", **TAINTED)],
    )
    found = planned(case, tmp_path)
    assert "first" in {ref.name for new in found.assigned.new for ref in new.pods}
    on_standing = [ref.name for pods in found.assigned.existing.values() for ref in pods]
    assert len(on_standing) <= 1
