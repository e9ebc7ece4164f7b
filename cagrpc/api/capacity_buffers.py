"""CapacityBuffers in Kubernetes' JSON shape: the status that CA reads, and the condition that CA writes.

Source: CA's API autoscaling.x-k8s.io/v1beta1 and its processors/capacitybuffer. CA injects pods by the status alone,
and only with the strategy `INJECTED`, the condition `READY`, and the current generation of the PodTemplate. A strategy
in `spec` that CA does not know keeps CA's own controller from writing that status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cagrpc.api.encoding.json_documents import LARGEST, mapping, members, whole
from cagrpc.api.provisioning.objects import Condition, condition_body, conditions

GROUP = "autoscaling.x-k8s.io"
API_VERSION, KIND = f"{GROUP}/v1beta1", "CapacityBuffer"
RESOURCE = "capacitybuffers"
INJECTED = "buffer.x-k8s.io/active-capacity"
"""The strategy in `status` of buffers whose pods CA injects."""
READY = "ReadyForProvisioning"
"""The condition that the buffer's controller writes."""

_SET, _MESSAGE = "AttributesSetSuccessfully", "ready"


@dataclass(frozen=True, slots=True)
class BufferStatus:
    """The status fields that CA reads."""

    template: str
    """Name of a PodTemplate of the buffer's namespace."""
    generation: int
    """The generation of that PodTemplate."""
    replicas: int
    strategy: str = INJECTED
    ready: bool = True


def path(namespace: str, name: str = "", subresource: str = "") -> str:
    """Return the path of a namespace's buffers, of one buffer, or of its subresource `status`."""
    parts = (f"/apis/{API_VERSION}/namespaces/{namespace}/{RESOURCE}", name, subresource)
    return "/".join(part for part in parts if part)


def status(document: Mapping[str, Any]) -> BufferStatus:
    """Read the status of a buffer."""
    found = mapping(document, "status")
    return BufferStatus(
        str(mapping(found, "podTemplateRef").get("name") or ""),
        whole(found, "podTemplateGeneration", "status", [], 0, LARGEST),
        whole(found, "replicas", "status", [], 0, LARGEST),
        str(found.get("provisioningStrategy") or ""),
        any(each.type == READY and each.status for each in conditions(found)),
    )


def status_patch(document: Mapping[str, Any], wanted: BufferStatus, now_seconds: float) -> dict[str, Any]:
    """Return a merge patch of the subresource `status`, which the server refuses (a conflict) if the buffer has changed
    since it was read. Conditions of other writers are unchanged."""
    found = mapping(document, "status")
    before = next((each for each in conditions(found) if each.type == READY), None)
    others = [dict(each) for each, _ in members(found, "conditions", "status", []) if each.get("type") != READY]
    ready = Condition(READY, wanted.ready, _SET, _MESSAGE, now_seconds)
    if before is not None and before.status == wanted.ready:
        ready = ready._replace(since_seconds=before.since_seconds)
    return {
        "metadata": {"resourceVersion": str(document["metadata"]["resourceVersion"])},
        "status": {
            "provisioningStrategy": wanted.strategy,
            "podTemplateRef": {"name": wanted.template},
            "podTemplateGeneration": wanted.generation,
            "replicas": wanted.replicas,
            "conditions": [*others, condition_body(ready)],
        },
    }
