"""A test's share of the control plane: a namespace, and objects of a few words in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.processes import wait_for

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
LEASES_OF_NODES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
MOST_SHOWN = 30
"""Pods of a test that has failed."""


class Cluster:
    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.admin = plane.admin
        self.namespace = namespace
        self.admin.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        # Pods are refused without it. A controller would make it too, but after a restart it takes its time.
        self.admin.ensure(self.path("serviceaccounts"), {"metadata": {"name": "default"}})

    def path(self, resource: str, name: str = "", *, api: str = "api/v1") -> str:
        """Return the path of a collection in this namespace, or of one object: `path("deployments", "web",
        api="apis/apps/v1")`."""
        return f"/{api}/namespaces/{self.namespace}/{resource}" + (f"/{name}" if name else "")

    def pods(self) -> list[Any]:
        return self.admin.items(self.path("pods"))

    def nodes(self) -> list[Any]:
        return self.admin.items(NODES)

    def create_pod(self, name: str, requests: Mapping[str, str], **more: Any) -> Any:
        """`more` are fields of its spec; `metadata` is the one that is not."""
        metadata = {"name": name, **more.pop("metadata", {})}
        return self.admin.create(self.path("pods"), {"metadata": metadata, "spec": pod_spec(requests, **more)})

    def create_deployment(self, name: str, replicas: int, requests: Mapping[str, str], **more: Any) -> Any:
        """`more` are fields of its pods' spec; `metadata` is the one that is not."""
        labels = {"app": name}
        metadata = dict(more.pop("metadata", {}))
        metadata["labels"] = {**metadata.get("labels", {}), **labels}
        template = {"metadata": metadata, "spec": pod_spec(requests, **more)}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        path = self.path("deployments", api="apis/apps/v1")
        return self.admin.create(path, {"metadata": {"name": name}, "spec": spec})

    def create_node(self, name: str, capacity: Mapping[str, str], *, labels: Mapping[str, str] | None = None) -> None:
        """Ready, and so it stays for as long as tests take: nobody renews a Lease that it does not have."""
        resources = {"pods": "110", **capacity}
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "ready"}
        body = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "status": {"capacity": resources, "allocatable": resources, "conditions": [ready]},
        }
        self.admin.create(NODES, body)
        self.admin.merge(f"{NODES}/{name}", {"spec": {"taints": None}})  # admission taints every new Node

    def tidy(self) -> None:
        """In this order: in a namespace that ends nothing is made anew, and a pod without a kubelet goes only when told
        to go at once."""
        self.admin.delete(f"/api/v1/namespaces/{self.namespace}")
        self.admin.delete(self.path("pods"), gracePeriodSeconds=0)
        self.admin.delete(NODES)
        self.admin.delete(LEASES_OF_NODES)
        wait_for(self._has_no_pods, "no pods are left, in whichever namespace")
        wait_for(lambda: not self.admin.any(NODES), "no nodes are left")

    def _has_no_pods(self) -> bool:
        left = self.admin.items(PODS)
        for pod in left:  # of other namespaces, and those that were created meanwhile
            metadata = pod["metadata"]
            self.admin.delete(
                f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}", gracePeriodSeconds=0
            )
        return not left

    def summary(self) -> str:
        """Return what is there, for a test that has failed."""
        lines = []
        for node in self.nodes():
            ready = [each["status"] for each in node["status"].get("conditions", ()) if each["type"] == "Ready"]
            lines.append(f"node {node['metadata']['name']}: ready {ready}, taints {node['spec'].get('taints', [])}")
        for pod in self.admin.items(PODS)[:MOST_SHOWN]:
            metadata, status = pod["metadata"], pod["status"]
            said = [
                f"{each['type']}={each['status']}: {each.get('message', '')}" for each in status.get("conditions") or ()
            ]
            lines.append(
                f"pod {metadata['namespace']}/{metadata['name']}: {status['phase']}, node"
                f" {pod['spec'].get('nodeName')}, nominated {status.get('nominatedNodeName')}, {'; '.join(said)}"
            )
        programs = ("kube-scheduler", "kube-controller-manager")
        return "\n".join((*lines, *map(self.plane.last_words, programs)))


def pod_spec(requests: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """One container that requests this; limits as well for extended resources, which must have equal ones."""
    limits = {name: amount for name, amount in requests.items() if "/" in name}
    resources = {"requests": dict(requests), "limits": limits}
    container = {"name": "main", "image": "example.com/none", "resources": resources}
    return {"containers": [container], "terminationGracePeriodSeconds": 1, **more}
