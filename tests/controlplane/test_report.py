"""`cagrpc report --kubeconfig` of a real cluster by somebody with the rights that its guide names, and no others."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.controlplane.accounts import RBAC, create_account, remove_bindings
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import apply
from tests.support.controlplane.processes import wait_for
from tests.support.serving import cagrpc

NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
LARGE, SMALL = "m7i.4xlarge", "m7i.xlarge"
NOT_VIEWED = {
    "persistentvolumes",
    "storageclasses",
    "csinodes",
    "volumeattachments",
    "priorityclasses",
    "runtimeclasses",
    "deviceclasses",
    "resourceslices",
    "resourceclaims",
    "resourceclaimtemplates",
    "capacityquotas",
}
"""Resources that the role `view` leaves out, as they are of the cluster, and one that it does not know."""


@pytest.fixture
def kubeconfig(cluster: Cluster) -> Iterator[Path]:
    """Of an account with the role `view`, which may list nodes."""
    name, api = f"{cluster.namespace}-views", f"/apis/{RBAC}/v1"
    of_nodes = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [NODES]}
    apply(cluster.admin, of_nodes)
    create_account(cluster, "views", "view", name)
    yield cluster.plane.kubeconfig_of_service_account(cluster.namespace, "views")
    remove_bindings(cluster)
    cluster.admin.delete(f"{api}/clusterroles/{name}")


def test_who_may_view_sees_what_the_cluster_costs(cluster: Cluster, kubeconfig: Path, tmp_path: Path) -> None:
    """A large node for pods that a small one has room for."""
    for name, kind, cpu in (("large", LARGE, "15"), ("small", SMALL, "3")):
        labels = {
            "node.kubernetes.io/instance-type": kind,
            "topology.kubernetes.io/zone": "rack-7",
            "kubernetes.io/os": "linux",
        }
        cluster.create_node(name, {"cpu": cpu, "memory": "12Gi"}, labels=labels)
    cluster.create_deployment("shop-front", 2, {"cpu": "1", "memory": "1Gi"})
    wait_for(lambda: sum(bool(pod["spec"].get("nodeName")) for pod in cluster.pods()) == 2, "the pods are bound")
    prices, page = tmp_path / "prices.csv", tmp_path / "report.html"
    prices.write_text(f"instance_type,usd_per_hour\n{LARGE},0.8\n{SMALL},0.2\n")
    before = {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in cluster.pods()}
    flags = ("--kubeconfig", kubeconfig, "--prices", prices, "--budget", "5s")
    tries: list[subprocess.CompletedProcess[str]] = []

    def reported() -> bool:
        tries.append(cagrpc("report", *flags, "-o", "json"))
        return tries[-1].returncode == 0

    wait_for(reported, "the rights are known")
    report = json.loads(tries[-1].stdout)
    assert report["source"] == "cluster"
    assert (report["nodes"], report["pods"]) == (2, 2)
    assert report["present_usd_per_hour"] == pytest.approx(1.0)
    assert report["planned"]["usd_per_hour"] == report["least_usd_per_hour"] == pytest.approx(0.2)
    assert sum(step["usd_per_hour"] for step in report["steps"]) == pytest.approx(0.8)
    assert {each["resource"].partition(" ")[0] for each in report["not_read"]} <= NOT_VIEWED

    done = cagrpc("report", *flags, "--anonymise", "--to", page)
    assert done.returncode == 0, done.stderr
    shown = page.read_text()
    assert [name for name in ("shop-front", cluster.namespace, "rack-7") if name in shown] == []
    assert before == {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in cluster.pods()}
