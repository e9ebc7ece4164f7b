"""Which nodes required node affinity takes, as read from objects, against the scheduler's plug-in: values that no label
can have, or that are no integers, too."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from cagrpc.api.core.constraints import REQUIRED, required_nodes
from solver.model.eligibility import matches_term
from tests.oracle import KubeScheduler

VALUES = ("", "a", "5", "007", "+1", "-1", "a b", "a" * 64, str(2**63 - 1), str(2**63))
LABELS = [{}, *({"k": value} for value in ("", "a", "5", "6", "007", "x"))]
TERMS = [
    {"matchExpressions": [{"key": "k", "operator": operator, "values": [value]}]}
    for operator, value in product(("In", "NotIn", "Gt", "Lt"), VALUES)
]
PAIRS = [
    {"matchExpressions": [{"key": "k", "operator": "In", "values": ["a", "-1"]}]},
    {"matchExpressions": [{"key": "k", "operator": "Exists"}]},
]


def test_terms_match_the_nodes_that_the_scheduler_takes(oracle: Path) -> None:
    nodes = [
        {
            "metadata": {"name": f"n{number}", "labels": labels},
            "status": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
        }
        for number, labels in enumerate(LABELS)
    ]
    specs = [
        {"containers": [], "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}
        for terms in (*([term] for term in TERMS), PAIRS[:1], PAIRS)
    ]
    pods = [{"metadata": {"name": f"p{at}", "namespace": "d"}, "spec": spec} for at, spec in enumerate(specs)]
    with KubeScheduler(oracle) as scheduler:
        takes = scheduler.ask({"nodes": nodes, "unplaced": pods})["takes"]
    for at, spec in enumerate(specs):
        problems: list[str] = []
        terms = required_nodes(spec, "spec", problems) or ()
        found = [f"n{n}" for n, labels in enumerate(LABELS) if any(matches_term(term, labels) for term in terms)]
        assert (found, problems) == (takes[f"d/p{at}"], []), spec
