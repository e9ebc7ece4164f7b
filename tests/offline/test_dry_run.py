"""Planning for a running cluster: what is read of it, what counts, and that one object cannot stop it. The whole
command is run on the control plane (tests/controlplane/test_dry_run.py)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cagrpc.cli.main import main
from cagrpc.cluster.documents import followed_kinds
from cagrpc.cluster.state import ClusterNode
from cagrpc.offline.inputs import Inputs, read_problem, with_nodes
from cagrpc.offline.live import OF_MOVING_PODS
from solver.model import NODES, Limit
from tests.support.scripted_api import FakeApi, ScriptedAnswer, fake_api
from tests.support.serving import kubeconfig_of

NOT_SERVED = ScriptedAnswer(json.dumps({"kind": "Status", "code": 404, "message": "none"}).encode(), 404)
FORBIDDEN = ScriptedAnswer(json.dumps({"kind": "Status", "code": 403, "message": "no"}).encode(), 403)
Document = dict[str, Any]


def pod(name: str, cpu: str, node: str = "", **more: Any) -> Document:
    container = {"name": "it", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}, "env": [{"name": "A"}]}
    spec = {"containers": [container], **({"nodeName": node} if node else {}), **more}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": spec, "status": {"phase": "Pending"}}


def node(name: str, pool: str) -> Document:
    resources = {"cpu": "2", "memory": "8Gi", "pods": "29"}
    labels = {"karpenter.sh/nodepool": pool, "kubernetes.io/hostname": name}
    return {"metadata": {"name": name, "labels": labels}, "status": {"capacity": resources, "allocatable": resources}}


POOL: Document = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "general"},
    "spec": {
        "limits": {"nodes": "3"},
        "template": {
            "spec": {
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                "requirements": [
                    {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m5.large"]},
                    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
                ],
            }
        },
    },
}


def serve_cluster(api: FakeApi, objects: dict[str, list[Document]], refused: tuple[str, ...] = ()) -> None:
    """Answer the lists in their order; resources of which there are no objects are not served."""
    for _, kind in followed_kinds():
        if kind in refused:
            api.answers.append(FORBIDDEN)
        elif kind in objects:
            api.answers.append(ScriptedAnswer(json.dumps({"items": objects[kind]}).encode()))
        elif kind not in OF_MOVING_PODS:
            api.answers.append(NOT_SERVED)
    pools = objects.get("NodePool")
    api.answers.append(NOT_SERVED)  # Cluster API
    api.answers.append(NOT_SERVED if pools is None else ScriptedAnswer(json.dumps({"items": pools}).encode()))
    api.answers.extend([NOT_SERVED] * 4)


def test_waiting_pods_are_planned_on_the_clusters_own_pools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods = [pod("runs", "1", "first"), pod("fits", "900m"), *(pod(f"waits-{index}", "1500m") for index in range(3))]
    with fake_api() as api:
        serve_cluster(api, {"Node": [node("first", "general")], "Pod": pods, "NodePool": [POOL]})
        flags = ["--kubeconfig", str(kubeconfig_of(tmp_path, api.client().server))]
        assert main(["plan", *flags, "--output", "json"]) == 0
        asked = {each.method for each in api.requests}
    said = capsys.readouterr()
    plan = json.loads(said.out)
    assert asked == {"GET"}
    # Of three nodes one stands.
    assert [(each["provisioner"], each["instance_type"], each["delta"]) for each in plan["increments"]] == [
        ("general", "m5.large", 2)
    ]
    assert plan["existing"][0]["node"] == "first"
    (left_out,) = plan["unplaced"]
    assert left_out["count"] == 1
    assert "general" in left_out["reasons"][0]


def test_a_bad_object_and_a_missing_right_stop_nothing(tmp_path: Path) -> None:
    bad = pod("bad", "lots")
    with fake_api() as api:
        objects = {"Node": [node("first", "general")], "Pod": [pod("fits", "1"), bad], "NodePool": [POOL]}
        serve_cluster(api, objects, refused=("PersistentVolume", "CSIDriver"))
        read = read_problem(Inputs((), (), kubeconfig=kubeconfig_of(tmp_path, api.client().server)))
    assert [each.name for each in read.problem.pod_sets] == ["team/fits"]
    warnings = "\n".join(read.warnings)
    assert "left out: /api/v1/pods (team/bad): spec.containers[0].resources.requests.cpu" in warnings
    assert "persistentvolumes (not allowed): where volumes are is not known" in warnings
    assert "csidrivers (not allowed): the room of storage drivers is not looked at" in warnings


def test_without_pools_provisioners_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_api() as api:
        serve_cluster(api, {"Node": [], "Pod": [pod("waits", "1")]})
        flags = ["--kubeconfig", str(kubeconfig_of(tmp_path, api.client().server))]
        assert main(["plan", *flags]) == 2
    assert "--provisioners is needed: the cluster has none that could be read" in capsys.readouterr().err


def test_files_and_a_cluster_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--pods", "pods.yaml", "--kubeconfig", "it"]) == 2
    assert "give either --pods and --nodes (files), or --kubeconfig" in capsys.readouterr().err
    assert main(["plan", "--pods", "pods.yaml"]) == 2
    assert "give --pods and --provisioners (files), or --kubeconfig" in capsys.readouterr().err


def test_nodes_that_stand_take_of_limits(tmp_path: Path) -> None:
    with fake_api() as api:
        objects = {"Node": [node("a", "general"), node("b", "other")], "Pod": [], "NodePool": [POOL]}
        serve_cluster(api, objects)
        read = read_problem(Inputs((), (), kubeconfig=kubeconfig_of(tmp_path, api.client().server)))
    (limit,) = read.problem.limits
    assert limit.used[NODES] == 1
    whole = with_nodes(
        [Limit("cluster", {NODES: 9})],
        (),
        [ClusterNode(each, "", ready=True, held=False) for each in read.problem.nodes],
    )
    assert Counter(whole[0].used)[NODES] == 2
