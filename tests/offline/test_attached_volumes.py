"""How many volumes a new node attaches, as a plan from files has it: the first that says a number counts, of nodes of
its instance type, the configuration and the catalogue."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cagrpc.offline.inputs import Inputs, read_problem
from solver import Budget, solve
from solver.verify.check import faults_of
from tests.support.storage import csi_node, storage_class

LIMIT = "attachable-volumes-csi-ebs.csi.aws.com"
PODS = 27
FIELDS = "instance_type,arch,category,family,generation,size,vcpu,memory_mib,gpu_name,allocatable_cpu_milli"
ROW = "m5.large,amd64,m,m5,5,large,2,8192,,1930,6903,29,0,0.096"


def pods() -> list[Any]:
    """Return pods that ask for next to nothing but a volume each."""
    source = {"ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "fast"}}}}
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1m"}}}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"p{n}", "namespace": "default", "uid": f"p{n}"},
            "spec": {"containers": [container], "volumes": [{"name": "scratch", **source}]},
            "status": {"phase": "Pending"},
        }
        for n in range(PODS)
    ]


def standing(count: int) -> list[Any]:
    """Return a node of the type that is full, and what its driver says."""
    labels = {"node.kubernetes.io/instance-type": "m5.large"}
    offered = {"cpu": "1", "memory": "1Gi", "pods": "0"}
    node = {"kind": "Node", "metadata": {"name": "n", "labels": labels}, "status": {"allocatable": offered}}
    return [{"apiVersion": "v1", **node}, csi_node("n", count=count)]


@pytest.mark.parametrize(
    ("seen", "configured", "documented", "most"),
    [
        pytest.param(None, None, None, 27, id="nobody says a number: none, as for the scheduler"),
        pytest.param(None, None, 25, 25, id="the catalogue's"),
        pytest.param(None, 26, 25, 26, id="configured above the catalogue's"),
        pytest.param(None, 9, 25, 9, id="configured below the catalogue's"),
        pytest.param(14, 9, 25, 14, id="nodes of the type say it"),
        pytest.param(14, None, 25, 14, id="nodes of the type say it, not the catalogue"),
    ],
)
def test_a_plan_attaches_no_more_than_is_known(
    seen: int | None, configured: int | None, documented: int | None, most: int, tmp_path: Path
) -> None:
    catalogue, dump, pools = tmp_path / "catalogue.csv", tmp_path / "dump.json", tmp_path / "pools.json"
    column, cell = ("", "") if documented is None else (f",{LIMIT}", f",{documented}")
    head = f"{FIELDS},allocatable_memory_mib,allocatable_pods,allocatable_gpu,usd_per_hour{column}"
    catalogue.write_text(f"{head}\n{ROW}{cell}\n")
    objects = [*pods(), storage_class(), *([] if seen is None else standing(seen))]
    dump.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))
    pool = {"name": "p", **({} if configured is None else {"allocatable": {LIMIT: configured}})}
    pools.write_text(json.dumps([pool]))
    read = read_problem(Inputs((dump,), (pools,), catalogue=catalogue))
    assert read.warnings == ()
    plan = solve(read.problem, Budget(deterministic_seconds=1.0))
    assert plan.unplaced == ()
    assert sum(nodes.count for nodes in plan.nodes) == -(-PODS // most)
    assert max(sum(nodes.pods.values()) for nodes in plan.nodes) <= most
    # The bad neighbour: the same plan where one volume less may be attached than a node of it attaches.
    fewer = max(sum(nodes.pods.values()) for nodes in plan.nodes) - 1
    (group,) = read.problem.node_groups
    tight = replace(group, allocatable={**group.allocatable, LIMIT: fewer})
    (fault,) = faults_of(replace(read.problem, node_groups=(tight,)), plan)
    assert LIMIT in fault
