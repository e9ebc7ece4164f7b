"""The small clusters of `tests/offline/test_scheduler_cases.py`, by the scheduler's own word: their plans are bound as
they are planned, and what they leave out is taken by no node, but for what is told there as not proven."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.hunted.cases import Case, planned, question
from tests.offline.test_scheduler_cases import CASES
from tests.offline.test_scheduler_cases import Case as SmallCluster
from tests.oracle import KubeScheduler

_GO_BY_THEMSELVES = ("of the provisioner", "with CA's prefix", "with its older one")
"""Taints that are there to the scheduler asked now."""


def _as_hunted(case: SmallCluster) -> Case:
    parts: dict[str, list[Any]] = {
        "namespaces": [], "nodes": [], "bound": [], "pending": [], "daemonsets": [], "objects": [],
    }  # fmt: skip
    names = {"Namespace": "namespaces", "Node": "nodes", "DaemonSet": "daemonsets"}
    for each in case.objects:
        if each["kind"] != "Pod":
            parts[names.get(each["kind"], "objects")].append(each)
        elif each["spec"].get("nodeName"):
            parts["bound"].append(each)
        elif "deletionTimestamp" not in each["metadata"]:
            parts["pending"].append(each)
    return {**parts, "provisioners": [{"name": "p", "node_groups": [*case.groups], **case.provisioner}]}


SHOWN = {name: case for name, case in CASES.items() if name.removeprefix("starting nodes: ") not in _GO_BY_THEMSELVES}


@pytest.mark.parametrize("case", SHOWN.values(), ids=SHOWN)
def test_plans_are_bound_and_nothing_is_left_out_beside_a_proof(
    case: SmallCluster, oracle: Path, tmp_path: Path
) -> None:
    hunted = _as_hunted(case)
    found = planned(hunted, tmp_path)
    with KubeScheduler(oracle) as scheduler:
        answer = scheduler.ask(question(hunted, found, nominated=True))
    assert (answer["refused"], answer["undecided"]) == ([], 0)
    if case.proven:
        assert answer["stuck"] == []
        assert {pod: nodes for pod, nodes in answer["takes"].items() if nodes} == {}
