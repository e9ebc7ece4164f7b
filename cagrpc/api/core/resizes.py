"""What the status of a v1.Pod message says of a resize in place, if anything. What it
comes to is in `resources`."""

from __future__ import annotations

from cagrpc.api.encoding.messages import discard_unknown_fields
from cagrpc.api.gen import kubernetes_pb2


def resize_of(message: kubernetes_pb2.Pod) -> kubernetes_pb2.PodStatus | None:
    """Return what the status says of a resize in place; None where spec and status agree, as they mostly do."""
    spec, status = message.spec, message.status
    asked = {each.name: each.resources for each in (*spec.containers, *spec.initContainers)}
    agree = all(
        _agree(asked.get(each.name), each) for each in (*status.containerStatuses, *status.initContainerStatuses)
    )
    if agree and _agree(spec.resources, status):
        return None
    found = kubernetes_pb2.PodStatus(
        containerStatuses=status.containerStatuses,
        initContainerStatuses=status.initContainerStatuses,
        conditions=[each for each in status.conditions if each.type == "PodResizePending"],
        allocatedResources=status.allocatedResources,
    )
    for each in found.conditions:
        each.ClearField("message")
        for name in ("lastProbeTime", "lastTransitionTime"):
            each.ClearField(name)
    if status.HasField("resources"):
        found.resources.CopyFrom(status.resources)
    discard_unknown_fields(found)
    return found


def _agree(
    asked: kubernetes_pb2.ResourceRequirements | None,
    observed: kubernetes_pb2.ContainerStatus | kubernetes_pb2.PodStatus,
) -> bool:
    """Return whether what was allocated and set is what the spec requests, or nothing is said of it."""
    if asked is None or not observed.HasField("resources"):
        return True
    requests = asked.requests
    return bool(observed.resources.requests == requests and observed.allocatedResources == requests)
