"""`cagrpc plan --kubeconfig` of a real cluster by somebody who may only read: what would be ordered for the pods that
wait, why nothing for the others, and that nothing is touched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.controlplane.accounts import RBAC, create_account, remove_bindings
from tests.support.controlplane.cluster import NODES, Cluster
from tests.support.controlplane.deployed import apply
from tests.support.controlplane.processes import wait_for
from tests.support.serving import SMALL, cagrpc

READ = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["list"]}


@pytest.fixture
def kubeconfig(cluster: Cluster) -> Iterator[Path]:
    """Of an account that may list, and nothing else."""
    name, api = f"{cluster.namespace}-lists", f"/apis/{RBAC}/v1"
    apply(
        cluster.admin, {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [READ]}
    )
    create_account(cluster, "lists", name)
    yield cluster.plane.kubeconfig_of_service_account(cluster.namespace, "lists")
    remove_bindings(cluster)
    cluster.admin.delete(f"{api}/clusterroles/{name}")


def versions(cluster: Cluster) -> dict[str, str]:
    """Of all that could be touched."""
    objects = [*cluster.pods(), *cluster.nodes(), *cluster.admin.items(cluster.path("events"))]
    return {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in objects}


def test_a_reader_sees_what_would_be_ordered(cluster: Cluster, kubeconfig: Path, tmp_path: Path) -> None:
    cluster.create_node("stands", {"cpu": "1", "memory": "4Gi"}, labels={"kubernetes.io/os": "linux"})
    cluster.create_deployment("web", 5, {"cpu": "900m", "memory": "1Gi"})
    cluster.create_pod("large", {"cpu": "64", "memory": "1Gi"})
    cluster.create_pod("gated", {"cpu": "1"}, schedulingGates=[{"name": "example.com/later"}])

    def settled() -> bool:
        """Whether the scheduler has bound one pod, and has said of the others why not."""
        found = {pod["metadata"]["name"]: pod for pod in cluster.pods()}
        bound = [name for name, pod in found.items() if pod["spec"].get("nodeName")]
        said = [name for name, pod in found.items() if pod["status"].get("conditions")]
        return len(found) == len(said) == 7 and len(bound) == 1

    wait_for(settled, "four pods of the Deployment wait")
    provisioners = tmp_path / "provisioners.yaml"
    provisioners.write_text(json.dumps({"name": "one", "weight": 10, "node_groups": [dict(SMALL)]}))
    flags = ("--kubeconfig", kubeconfig, "--provisioners", provisioners)

    def planned() -> Any:
        return cagrpc("plan", *flags, "-o", "json")

    wait_for(lambda: planned().returncode == 0, "the right to list is known")
    before = versions(cluster)
    done = planned()
    assert versions(cluster) == before
    plan = json.loads(done.stdout)
    assert [(each["node_group"], each["delta"]) for each in plan["increments"]] == [("small", 2)]
    (left_out,) = plan["unplaced"]
    assert left_out["count"] == 1
    assert "cpu" in left_out["reasons"][0]
    assert "1 pod with schedulingGates" in done.stderr

    told = cagrpc("explain", *flags)
    assert told.returncode == 0, told.stderr
    assert "small" in told.stdout
    assert versions(cluster) == before
    assert len(cluster.admin.items(NODES)) == 1


def test_who_may_not_list_nodes_is_told(cluster: Cluster, tmp_path: Path) -> None:
    cluster.admin.create(cluster.path("serviceaccounts"), {"metadata": {"name": "nobody"}})
    kubeconfig = cluster.plane.kubeconfig_of_service_account(cluster.namespace, "nobody")
    done = cagrpc("plan", "--kubeconfig", kubeconfig)
    assert done.returncode == 1
    assert "nodes of all namespaces need to be listed" in done.stderr
