"""Plans for new nodes with DaemonSets' pods, as the scheduler's own plug-ins judge them."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from bench.hunted.cases import Case, planned, question
from tests.oracle import KubeScheduler

ZONE = "topology.kubernetes.io/zone"


def pod(name: str, cpu: str = "1", labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}]
    metadata = {"name": name, "namespace": "default", "labels": labels or {}}
    return {"metadata": metadata, "spec": {"containers": containers, **spec}}


def daemon_set(name: str, cpu: str, *ports: int, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    mine = {"d": name, **(labels or {})}
    template = pod("", cpu, mine, **spec)
    template["spec"]["containers"][0]["ports"] = [{"containerPort": port, "hostPort": port} for port in ports]
    return {
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"d": name}},
            "template": {"metadata": {"labels": mine}, "spec": template["spec"]},
        },
    }  # fmt: skip


def group(name: str, zone: str = "za", **more: Any) -> dict[str, Any]:
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": 10}
    return {"id": name, "allocatable": allocatable, "price_usd_per_hour": 1.0, "zone": zone, "max_size": 5, **more}


def case(*pods: dict[str, Any], groups: Any = (), **parts: Any) -> Case:
    lists: dict[str, Any] = {"namespaces": [], "nodes": [], "bound": [], "daemonsets": [], "objects": []}
    return {
        **lists,
        "pending": list(pods),
        "provisioners": [{"name": "p", "node_groups": list(groups or [group("g")])}],
        **parts,
    }


def nodes_and_left(of: Case, oracle: Path, directory: Path) -> tuple[int, int]:
    """How many nodes the plan opens, which the scheduler fills as planned, and how many pods it leaves out."""
    found = planned(of, directory)
    with KubeScheduler(oracle) as scheduler:
        answer = scheduler.ask(question(of, found, nominated=True))
    assert (answer["refused"], answer["stuck"], answer["undecided"]) == ([], [], 0)
    assert not any(answer["takes"].values())
    return len(found.assigned.new), sum(each.count for each in found.plan.unplaced)


@pytest.mark.parametrize(
    ("sets", "pods", "nodes"),
    [
        ([("1", (80,)), ("1", (80,))], 3, 1),
        ([("1", (80,)), ("2", (80,))], 2, 1),
        ([("1", (80,)), ("2", (80,))], 3, 2),
        ([("1", (80,)), ("1", (81,))], 2, 1),
        ([("1", (80,)), ("1", (81,))], 3, 2),
        ([("1", (80,)), ("1", (80,)), ("1", (80, 81))], 3, 1),
    ],
)
def test_of_daemon_sets_with_one_host_port_a_new_node_has_one(
    sets: list[tuple[str, tuple[int, ...]]], pods: int, nodes: int, oracle: Path, tmp_path: Path
) -> None:
    daemons = [daemon_set(f"d{number}", cpu, *ports) for number, (cpu, ports) in enumerate(sets)]
    for order in permutations(daemons):
        of = case(*(pod(f"p{number}") for number in range(pods)), daemonsets=list(order))
        assert nodes_and_left(of, oracle, tmp_path) == (nodes, 0)
