"""`cagrpc config init` of a real cluster, by somebody who may only list it: what it writes is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.controlplane.accounts import RBAC, create_account, remove_bindings
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import apply
from tests.support.controlplane.processes import wait_for
from tests.support.serving import cagrpc

READ = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["list", "watch"]}


@pytest.fixture
def kubeconfig(cluster: Cluster) -> Iterator[Path]:
    """Of an account that may list and watch, and nothing else."""
    name = f"{cluster.namespace}-first"
    role: Any = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [READ]}
    apply(cluster.admin, role)
    create_account(cluster, "first", name)
    yield cluster.plane.kubeconfig_of_service_account(cluster.namespace, "first")
    remove_bindings(cluster)
    cluster.admin.delete(f"/apis/{RBAC}/v1/clusterroles/{name}")


def autoscaler(namespace: str) -> dict[str, Any]:
    labels = {"app": "cluster-autoscaler"}
    command = ["./cluster-autoscaler", "--cloud-provider=aws", f"--namespace={namespace}", "--expander=least-waste"]
    container = {
        "name": "ca",
        "image": "registry.k8s.io/autoscaling/cluster-autoscaler:v1.34.0",
        "command": command,
        "resources": {"requests": {"cpu": "100m"}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "cluster-autoscaler", "namespace": namespace},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def test_a_first_configuration_is_served(cluster: Cluster, kubeconfig: Path, tmp_path: Path, started: Any) -> None:
    apply(cluster.admin, autoscaler(cluster.namespace))
    status: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cluster-autoscaler-status", "namespace": cluster.namespace},
        "data": {"status": "nodeGroups:\n- {name: a, health: {cloudProviderTarget: 1, maxSize: 3}}\n"},
    }
    apply(cluster.admin, status)
    file = tmp_path / "first.yaml"

    def written() -> bool:
        """Whether the right to list is known by now."""
        file.unlink(missing_ok=True)
        done = cagrpc("config", "init", "--kubeconfig", kubeconfig, "--output", file)
        assert done.returncode == 0, done.stderr
        return "--cloud-provider=aws" in file.read_text()

    wait_for(written, "the cluster-autoscaler is found")
    text = file.read_text()
    assert f"namespace: {cluster.namespace}  # Deployment {cluster.namespace}/cluster-autoscaler: --namespace=" in text
    assert f"ConfigMap {cluster.namespace}/cluster-autoscaler-status: 1 node in 1 node group: a (1)" in text
    assert "mode: shadow" in text
    checked = cagrpc("config", "check", file)
    assert checked.returncode == 0, checked.stderr
    serving = started("--config", file)
    assert serving.get("/nodegroups") == []
    assert serving.stop() == 0, serving.log()
