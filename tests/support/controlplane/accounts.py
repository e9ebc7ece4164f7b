"""ServiceAccounts of a test's namespace, and ClusterRoles that are theirs."""

from __future__ import annotations

from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import apply

RBAC = "rbac.authorization.k8s.io"
_BINDINGS = f"/apis/{RBAC}/v1/clusterrolebindings"


def create_account(cluster: Cluster, name: str, *roles: str) -> None:
    """Create one with these ClusterRoles."""
    cluster.admin.create(cluster.path("serviceaccounts"), {"metadata": {"name": name}})
    for role in roles:
        bind(cluster, name, role)


def bind(cluster: Cluster, account: str, role: str) -> None:
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{cluster.namespace}-{account}-{role}"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": cluster.namespace}],
    }
    apply(cluster.admin, binding)


def remove_bindings(cluster: Cluster) -> None:
    """Remove those of this namespace's accounts."""
    for each in cluster.admin.items(_BINDINGS):
        if each["metadata"]["name"].startswith(f"{cluster.namespace}-"):
            cluster.admin.delete(f"{_BINDINGS}/{each['metadata']['name']}")
