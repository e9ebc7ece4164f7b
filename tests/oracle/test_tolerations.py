"""What a toleration tolerates, as read from objects and judged by planner and checker, against the scheduler's plug-in:
its comparing operators with the feature gate and without."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cagrpc.api.core import feature_gates
from cagrpc.api.core.constraints import tolerations
from solver.model import Taint, TaintEffect
from solver.model.eligibility import untolerated
from solver.verify.filters import HARD, tolerated
from tests.oracle import KubeScheduler

GATE = feature_gates.TAINT_TOLERATION_COMPARISON_OPERATORS
VALUES = ("", "5", "7", "-5", "0", "-0", "007", "x", str(2**63 - 1), str(2**63), str(-(2**63)))
TAINTS = [Taint("k", TaintEffect.NO_SCHEDULE, value) for value in VALUES]
TAINTS += [Taint("k", TaintEffect.NO_EXECUTE, "7"), Taint("other", TaintEffect.NO_SCHEDULE, "7")]
TOLERATIONS = [
    {"key": "k", "operator": operator, "value": value, "effect": effect}
    for operator, value, effect in product(("Gt", "Lt", "Equal"), VALUES, ("", "NoSchedule"))
]


@pytest.fixture(autouse=True)
def _no_gates() -> Iterator[None]:
    yield
    feature_gates.enable(frozenset())


@pytest.mark.parametrize("gates", [frozenset[str](), frozenset({GATE})], ids=["off", "on"])
def test_tolerations_are_those_of_the_scheduler(oracle: Path, gates: frozenset[str]) -> None:
    nodes: list[dict[str, Any]] = [
        {
            "metadata": {"name": f"n{number}"},
            "spec": {"taints": [{"key": taint.key, "effect": taint.effect.value, "value": taint.value}]},
            "status": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
        }
        for number, taint in enumerate(TAINTS)
    ]
    pods = [
        {"metadata": {"name": f"p{number}", "namespace": "d"}, "spec": {"containers": [], "tolerations": [toleration]}}
        for number, toleration in enumerate(TOLERATIONS)
    ]
    with KubeScheduler(oracle, *(f"--feature-gates={each}=true" for each in gates)) as scheduler:
        takes = scheduler.ask({"nodes": nodes, "unplaced": pods})["takes"]
    feature_gates.enable(gates)
    for number, toleration in enumerate(TOLERATIONS):
        read = tolerations({"tolerations": [toleration]}, "spec", [])
        planner = [f"n{at}" for at, taint in enumerate(TAINTS) if untolerated([taint], read) is None]
        checker = [f"n{at}" for at, taint in enumerate(TAINTS) if tolerated(read, [taint], HARD)]
        assert takes[f"d/p{number}"] == planner == checker, toleration
    comparing = (f"d/p{number}" for number, each in enumerate(TOLERATIONS) if each["operator"] == "Gt")
    assert any(map(takes.get, comparing)) == bool(gates)
