"""What the slack needs in a cluster, and what of it can be seen there."""

from __future__ import annotations

from collections import Counter
from typing import Any

from cagrpc.api import capacity_buffers
from cagrpc.api.capacity_buffers import INJECTED
from cagrpc.api.core.slack import PLACEHOLDER, PRIORITY_CLASS, SHAPE
from tests.support.controlplane.api import Api
from tests.support.controlplane.deployed import apply, documents, install_crds, remove_crds

PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
BUFFER_CRDS, SLACK_CRDS = "buffer-crds.yaml", "slack-crds.yaml"
OURS = f"{PLACEHOLDER}=true"


def install(admin: Api) -> None:
    """Definitions and the priority of pause pods; the rights are tested with deploy/."""
    install_crds(admin, BUFFER_CRDS)
    install_crds(admin, SLACK_CRDS)
    (priority,) = [each for each in documents("slack.yaml") if each["kind"] == "PriorityClass"]
    apply(admin, priority)


def remove(admin: Api) -> None:
    for name in (BUFFER_CRDS, SLACK_CRDS):
        remove_crds(admin, name)
    admin.delete(f"{PRIORITY_CLASSES}/{PRIORITY_CLASS}")


class SeenSlack:
    """Of a namespace."""

    def __init__(self, admin: Api, namespace: str) -> None:
        self._admin = admin
        self._namespace = namespace

    def buffers(self) -> list[Any]:
        return self._admin.items(capacity_buffers.path(self._namespace))

    def templates(self) -> list[Any]:
        return self._admin.items(self._core("podtemplates"))

    def replica_sets(self) -> list[Any]:
        return self._admin.items(f"/apis/apps/v1/namespaces/{self._namespace}/replicasets", labelSelector=OURS)

    def pause_pods(self) -> list[Any]:
        return self._admin.items(self._core("pods"), labelSelector=OURS)

    def real_pods(self) -> list[Any]:
        return self._admin.items(self._core("pods"), labelSelector=f"!{PLACEHOLDER}")

    def pause_nodes(self) -> Counter[str]:
        """Bound pause pods by node."""
        return Counter(node for pod in self.pause_pods() if (node := pod["spec"].get("nodeName")))

    def injected(self) -> dict[str, tuple[int, Any]]:
        """What CA would inject, by its rules: by shape how many pods of which spec."""
        templates = {each["metadata"]["name"]: each for each in self.templates()}
        found = {}
        for buffer in self.buffers():
            status = buffer.get("status", {})
            template = templates.get(status.get("podTemplateRef", {}).get("name"))
            ready = any(
                each["type"] == "ReadyForProvisioning" and each["status"] == "True"
                for each in status.get("conditions", ())
            )
            if (
                ready
                and template
                and status["provisioningStrategy"] == INJECTED
                and status["podTemplateGeneration"] == template["metadata"]["generation"]
            ):
                shape = buffer["metadata"]["annotations"][SHAPE]
                found[shape] = (status["replicas"], template["template"]["spec"])
        return found

    def _core(self, resource: str) -> str:
        return f"/api/v1/namespaces/{self._namespace}/{resource}"

    def counts(self) -> dict[str, int]:
        return {shape: replicas for shape, (replicas, _) in self.injected().items()}
