"""ProvisioningRequests in the control plane, as people and as Kueue make them, and what can be asked of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.controlplane.cluster import Cluster, pod_spec
from tests.support.controlplane.deployed import install_crds, remove_crds
from tests.support.controlplane.live import Live

API = "apis/autoscaling.x-k8s.io/v1"
CLASSES = "/apis/cagrpc.io/v1alpha1/provisioningclasses"
CHECK, ATOMIC = "check-capacity.kubernetes.io", "atomic-scale-up.kubernetes.io"
CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"
OF_CLASS = "autoscaling.x-k8s.io/provisioning-class-name"
FILE = "provisioning-crds.yaml"


class ClusterRequests:
    """Those of a test's namespace."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.admin = cluster.admin
        install_crds(self.admin, FILE)

    def template(self, name: str, requests: Mapping[str, str], **spec: Any) -> None:
        body = {"metadata": {"name": name}, "template": {"spec": pod_spec(requests, **spec)}}
        self.admin.create(self.cluster.path("podtemplates"), body)

    def path(self, name: str = "") -> str:
        return self.cluster.path("provisioningrequests", name, api=API)

    def create(self, name: str, pod_sets: Mapping[str, int], class_name: str = ATOMIC, **parameters: str) -> Any:
        """`pod_sets`: PodTemplate -> count."""
        sets = [{"podTemplateRef": {"name": template}, "count": count} for template, count in pod_sets.items()]
        spec = {"provisioningClassName": class_name, "podSets": sets, "parameters": parameters}
        kind = {"apiVersion": API.removeprefix("apis/"), "kind": "ProvisioningRequest"}
        return self.admin.create(self.path(), {**kind, "metadata": {"name": name}, "spec": spec})

    def get(self, name: str) -> Any:
        return self.admin.get(self.path(name))

    def delete(self, name: str) -> None:
        self.admin.delete(self.path(name))

    def conditions(self, name: str) -> dict[str, Any]:
        found = self.get(name).get("status", {}).get("conditions", ())
        return {condition["type"]: condition for condition in found}

    def details(self, name: str) -> dict[str, str]:
        return dict(self.get(name).get("status", {}).get("provisioningClassDetails") or {})

    def consume(self, name: str, pod: str, requests: Mapping[str, str], class_name: str = ATOMIC, **spec: Any) -> Any:
        """A pod that consumes the request."""
        metadata = {"annotations": {CONSUMES: name, OF_CLASS: class_name}}
        return self.cluster.create_pod(pod, requests, metadata=metadata, **spec)

    def selected(self, name: str) -> list[str]:
        """Names of the nodes that the selector in the request's details finds."""
        nodes = self.admin.items("/api/v1/nodes", labelSelector=self.details(name)["nodeSelector"])
        return sorted(node["metadata"]["name"] for node in nodes)

    def close(self) -> None:
        """The CRDs are gone when this returns, with all objects."""
        remove_crds(self.admin, FILE)


class PlaneRequests(ClusterRequests):
    """Those that one server decides on."""

    def __init__(self, live: Live) -> None:
        super().__init__(live.cluster)
        self.live = live

    def wait_for(self, name: str, condition: str, status: str = "True", seconds: float = 60.0) -> Any:
        """The condition, once it has this status."""
        self.live.wait_for(
            lambda: self.conditions(name).get(condition, {}).get("status") == status,
            f"{name} is {condition}={status}",
            seconds=seconds,
        )
        return self.conditions(name)[condition]
