"""Plans in which the scheduler's own plug-ins leave a planned pod without a node say so, and are not called optimal."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from bench.hunted.cases import Case, planned, question
from solver.model import Status
from tests.oracle import KubeScheduler

ZONE, CAPACITY_TYPE, HOST = "topology.kubernetes.io/zone", "karpenter.sh/capacity-type", "kubernetes.io/hostname"


def _pods(count: int, *skews: int, cpu: str = "1") -> list[Any]:
    keys = (ZONE, CAPACITY_TYPE)
    spreads = [
        {
            "topologyKey": key,
            "maxSkew": skew,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "a"}},
        }
        for key, skew in zip(keys, skews, strict=True)
    ]
    containers = [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}]
    spec = {"containers": containers, "topologySpreadConstraints": spreads}
    return [
        {"metadata": {"name": f"a{number}", "namespace": "default", "labels": {"app": "a"}}, "spec": spec}
        for number in range(count)
    ]


def _case(pods: list[Any], cells: list[tuple[str, str, int, float]], standing: list[tuple[str, str, int]]) -> Case:
    """Return a case with a group for each cell: zone, capacity type, CPUs, price; and with nodes that stand."""
    groups = [
        {
            "id": f"g{number}",
            "zone": zone,
            "labels": {CAPACITY_TYPE: capacity_type},
            "allocatable": {"cpu": str(cpu), "memory": "8Gi", "pods": 20},
            "price_usd_per_hour": price,
        }
        for number, (zone, capacity_type, cpu, price) in enumerate(cells)
    ]
    nodes = []
    for number, (zone, capacity_type, cpu) in enumerate(standing):
        offered = {"cpu": str(cpu), "memory": "8Gi", "pods": "20"}
        labels = {HOST: f"n{number}", ZONE: zone, CAPACITY_TYPE: capacity_type}
        status = {"capacity": offered, "allocatable": offered, "conditions": [{"type": "Ready", "status": "True"}]}
        nodes.append({"metadata": {"name": f"n{number}", "labels": labels}, "spec": {}, "status": status})
    lists: dict[str, Any] = {"namespaces": [], "bound": [], "daemonsets": [], "objects": []}
    return {**lists, "nodes": nodes, "pending": pods, "provisioners": [{"name": "p", "node_groups": groups}]}


def _drawn(seed: int) -> Case:
    draw = random.Random(seed)
    every = [(zone, kind) for zone in ("za", "zb", "zc") for kind in ("spot", "on-demand")]
    chosen = draw.sample(every, draw.randint(3, 6))
    cells = [(*cell, draw.choice((1, 2, 3, 4)), round(draw.uniform(0.2, 1.0), 2)) for cell in chosen]
    standing = [(*draw.choice(every), draw.choice((1, 2, 4))) for _ in range(draw.choice((0, 0, 1, 2)))]
    return _case(_pods(draw.randint(3, 7), draw.choice((1, 1, 2)), draw.choice((1, 1, 2))), cells, standing)


SIX = _case(
    _pods(6, 1, 1),
    [("za", "spot", 4, 0.36), ("zb", "on-demand", 3, 0.34), ("zc", "on-demand", 1, 0.57)],
    [("zc", "spot", 4)],
)


def _gets_stuck(case: Case, oracle: Path, tmp_path: Path) -> tuple[bool, bool]:
    """Return whether a pod gets stuck in the scheduler, and whether the plan says that one may."""
    found = planned(case, tmp_path)
    with KubeScheduler(oracle) as scheduler:
        stuck = scheduler.ask(question(case, found, nominated=True))["stuck"]
    says = bool(found.plan.may_get_stuck)
    assert not (says and found.plan.certificate.status is Status.OPTIMAL)
    return len(stuck) > len(stuck[0]["instead"] if stuck else ()), says


def test_six_pods_over_zones_and_capacity_types(oracle: Path, tmp_path: Path) -> None:
    assert _gets_stuck(SIX, oracle, tmp_path) == (True, True)


@pytest.mark.parametrize("seed", range(40))
def test_whoever_gets_stuck_is_named(seed: int, oracle: Path, tmp_path: Path) -> None:
    stuck, says = _gets_stuck(_drawn(seed), oracle, tmp_path)
    assert says or not stuck
