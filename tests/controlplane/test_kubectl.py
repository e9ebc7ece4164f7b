"""`kubectl cagrpc`: the real kubectl finds the plug-in, forwards a port through the API server to what serves it in a
kubelet, and gets a token of the reader; with the rights that docs/guides/kubectl.md names, and no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.test_http_access import Secured, secured_server
from tests.support.controlplane.accounts import RBAC
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.kubectl import Kubectl, forwarding_kubelet
from tests.support.controlplane.processes import wait_for

RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["create"]},
    {
        "apiGroups": [""],
        "resources": ["serviceaccounts/token"],
        "resourceNames": ["reader"],
        "verbs": ["create"],
    },
]


class Reached:
    """A server behind a Service of the test's namespace, and who asks it."""

    def __init__(self, cluster: Cluster, kubectl: Kubectl, secured: Secured) -> None:
        self.cluster = cluster
        self.kubectl = kubectl
        self.secured = secured
        secured.account("reader", "cagrpc-reader")
        secured.account("operator")
        self.kubeconfig = cluster.plane.kubeconfig_of_service_account(cluster.namespace, "operator")

    def permit(self, rules: list[dict[str, Any]]) -> None:
        """Give the operator these rights in the namespace."""
        rbac = f"apis/{RBAC}/v1"
        self.cluster.admin.create(
            self.cluster.path("roles", api=rbac), {"metadata": {"name": "kubectl"}, "rules": rules}
        )
        subject = {"kind": "ServiceAccount", "name": "operator", "namespace": self.cluster.namespace}
        binding = {
            "metadata": {"name": "kubectl"},
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "kubectl"},
            "subjects": [subject],
        }
        self.cluster.admin.create(self.cluster.path("rolebindings", api=rbac), binding)

    def serve_in_pod(self, node: str) -> None:
        """Make the Service and its pod, which is ready."""
        labels = {"app.kubernetes.io/name": "cagrpc"}
        spec = {"selector": labels, "ports": [{"name": "http", "port": 8088}]}
        self.cluster.admin.create(self.cluster.path("services"), {"metadata": {"name": "cagrpc"}, "spec": spec})
        self.cluster.create_pod("cagrpc-0", {"cpu": "1"}, nodeName=node, metadata={"labels": labels})
        running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.cluster.admin.merge(f"{self.cluster.path('pods', 'cagrpc-0')}/status", {"status": running})

    def cagrpc(self, *arguments: object) -> Any:
        where = ("--kubeconfig", self.kubeconfig, "--context", "test")
        return self.kubectl.ask(
            Path("none"), "cagrpc", *arguments, *where, "--server-namespace", self.cluster.namespace
        )


@pytest.fixture
def reached(cluster: Cluster, kubectl: Kubectl, tmp_path: Path) -> Iterator[Reached]:
    with secured_server(cluster, tmp_path) as secured:
        yield Reached(cluster, kubectl, secured)


def test_a_kubeconfig_is_all_that_is_needed(reached: Reached, tmp_path: Path) -> None:
    refused = reached.cagrpc("status")
    assert refused.returncode == 1
    assert "no token of the ServiceAccount" in refused.stderr
    assert "forbidden" in refused.stderr

    reached.permit(RULES)
    where = (reached.cluster, reached.kubectl.programs, "worker", reached.secured.address, tmp_path)
    with forwarding_kubelet(*where):
        reached.serve_in_pod("worker")
        # RBAC's authorizer learns of new bindings by a watch.
        wait_for(lambda: reached.cagrpc("status").returncode == 0, "the plug-in reads the status")
        done = reached.cagrpc("status", "-o", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["status"]["ready"] is True
        verified = reached.cagrpc("slack", "-o", "yaml", "--http-ca", reached.secured.authority)
        assert (verified.returncode, verified.stdout) == (0, "{}\n"), verified.stderr
        stranger = reached.cagrpc("slack", "--http-ca", reached.cluster.plane.directory / "ca.crt")
        assert stranger.returncode == 1
        assert "its certificate is not trusted" in stranger.stderr
        nobody = reached.cagrpc("status", "--service-account", "operator")
        assert nobody.returncode == 1
        assert "forbidden" in nobody.stderr


def test_kubectl_finds_the_plug_in_and_completes_it(kubectl: Kubectl) -> None:
    none = Path("none")
    listed = kubectl.ask(none, "plugin", "list")
    assert str(kubectl.directory / "kubectl-cagrpc") in listed.stdout
    helped = kubectl.ask(none, "cagrpc", "status", "--help")
    assert helped.stdout.startswith("usage: kubectl cagrpc status")
    completed = kubectl.ask(none, "__complete", "cagrpc", "status", "--wa")
    assert completed.stdout.splitlines()[0] == "--watch", completed.stderr
