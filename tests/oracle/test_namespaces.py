"""Whom anti-affinity keeps out by the labels of namespaces: of a pod that waits and of one that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.hunted.cases import planned, question
from tests.oracle import KubeScheduler, pod
from tests.oracle.test_daemon_sets import ZONE, case, node


def _namespace(name: str, **labels: str) -> dict[str, Any]:
    own = {"kubernetes.io/metadata.name": name}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {**own, **labels}}}


def _apart(operator: str) -> dict[str, Any]:
    values = {"values": ["y"]} if operator == "NotIn" else {}
    selector = {"matchExpressions": [{"key": "l", "operator": operator, **values}]}
    term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "x"}}, "namespaceSelector": selector}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _in(namespace: str, of: dict[str, Any]) -> dict[str, Any]:
    return {**of, "metadata": {**of["metadata"], "namespace": namespace}}


@pytest.mark.parametrize("operator", ["DoesNotExist", "NotIn", "Exists"])
@pytest.mark.parametrize("namespace", ["with", "without"])
@pytest.mark.parametrize("carrier_runs", [False, True])
def test_namespaces_are_those_of_the_scheduler(
    operator: str, namespace: str, *, carrier_runs: bool, oracle: Path, tmp_path: Path
) -> None:
    carrier = _in("with", pod("carrier", "100m", affinity=_apart(operator)))
    other = _in(namespace, pod("other", "100m", {"app": "x"}))
    runs, waits = (carrier, other) if carrier_runs else (other, carrier)
    runs = {**runs, "spec": {**runs["spec"], "nodeName": "n"}, "status": {"phase": "Running"}}
    namespaces = [_namespace("with", l="y"), _namespace("without"), _namespace("default", l="y")]
    of = case(waits, bound=[runs], nodes=[node("n")], namespaces=namespaces)
    of = {
        **of,
        "provisioners": [{"name": "p", "node_groups": [{**of["provisioners"][0]["node_groups"][0], "max_size": 0}]}],
    }
    found = planned(of, tmp_path)
    name = f"{waits['metadata']['namespace']}/{waits['metadata']['name']}"
    asked = {**question(of, found, nominated=False), "placements": [], "unplaced": [waits]}
    with KubeScheduler(oracle) as scheduler:
        takes = scheduler.ask(asked)["takes"]
    assert [each for each, pods in found.assigned.existing.items() if pods] == takes[name]


@pytest.mark.long("another release")
@pytest.mark.parametrize(("operator", "newest", "oldest"), [("DoesNotExist", [], ["n"]), ("NotIn", [], ["n"])])
def test_in_1_30_a_pod_that_waits_is_apart_from_namespaces_by_their_labels(
    operator: str, newest: list[str], oldest: list[str], oracle: Path, oldest_oracle: Path
) -> None:
    """What docs/reference/constraints.md says of releases; planning is by the newest, which lets in less."""
    runs = _in("with", pod("other", "100m", {"app": "x"}))
    runs = {**runs, "spec": {**runs["spec"], "nodeName": "n"}, "status": {"phase": "Running"}}
    asked = {
        "nodes": [node("n")], "bound": [runs], "objects": [_namespace("with", l="y"), _namespace("without")],
        "unplaced": [_in("with", pod("carrier", "100m", affinity=_apart(operator)))],
    }  # fmt: skip
    found = []
    for program in (oracle, oldest_oracle):
        with KubeScheduler(program) as scheduler:
            found.append(scheduler.ask(asked)["takes"]["with/carrier"])
    assert found == [newest, oldest]
