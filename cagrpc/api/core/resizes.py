"""What the status of a v1.Pod message says of a resize in place, if anything. What it comes to is in `resources`."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from cagrpc.api.encoding.messages import discard_unknown_fields
from cagrpc.api.gen import kubernetes_pb2


def settled_statuses(spec: kubernetes_pb2.PodSpec) -> AbstractSet[bytes]:
    """Return the serialised statuses of containers of which nothing is resized: comparing bytes is much faster than
    comparing maps."""
    found = set()
    for each in (*spec.containers, *spec.initContainers):
        status = kubernetes_pb2.ContainerStatus(name=each.name, allocatedResources=each.resources.requests)
        status.resources.CopyFrom(each.resources)
        discard_unknown_fields(status)
        found.add(status.SerializeToString(deterministic=True))
    return found


def resize_of(
    message: kubernetes_pb2.Pod, settled: Callable[[], AbstractSet[bytes]]
) -> kubernetes_pb2.PodStatus | None:
    """Return what the status says of a resize in place; None where spec and status agree, as they mostly do. `settled`
    returns the `settled_statuses` of the spec."""
    spec, status = message.spec, message.status
    of_containers = [
        each
        for each in (*status.containerStatuses, *status.initContainerStatuses)
        if each.HasField("resources") and not _is_settled(each, settled())
    ]
    if not of_containers and not status.HasField("resources"):
        return None
    asked = {each.name: each.resources for each in (*spec.containers, *spec.initContainers)}
    if all(_agree(asked.get(each.name), each) for each in of_containers) and _agree(spec.resources, status):
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


def _is_settled(status: kubernetes_pb2.ContainerStatus, settled: AbstractSet[bytes]) -> bool:
    discard_unknown_fields(status)
    return status.SerializeToString(deterministic=True) in settled


def _agree(
    asked: kubernetes_pb2.ResourceRequirements | None,
    observed: kubernetes_pb2.ContainerStatus | kubernetes_pb2.PodStatus,
) -> bool:
    """Return whether what was allocated and set is what the spec requests, or nothing is said of it."""
    if asked is None or not observed.HasField("resources"):
        return True
    requests = asked.requests
    return bool(observed.resources.requests == requests and observed.allocatedResources == requests)
