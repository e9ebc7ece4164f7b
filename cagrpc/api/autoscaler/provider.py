"""Conversion between the messages of `externalgrpc` and the planner's values. Messages of instances are built in
`services.instances`; what each call does is in `services.provider`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from google.protobuf.message import Message

from cagrpc.api.autoscaler.options import AutoscalingOptions
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.errors import InvalidInput
from solver.model import Limit, NodeGroup
from solver.model.capacity import most_nodes

LARGEST_ANSWER_BYTES = 4 * 1024 * 1024 - 64 * 1024
"""CA's provider client receives 4 MiB at most; longer responses first lose their debug texts, never data."""

LONGEST_WORDS = 200
_SECOND_NANOS = 10**9

_PLAIN_OPTIONS = (
    ("scale_down_utilization_threshold", "scaleDownUtilizationThreshold"),
    ("scale_down_gpu_utilization_threshold", "scaleDownGpuUtilizationThreshold"),
    ("zero_or_max_node_scaling", "zeroOrMaxNodeScaling"),
    ("ignore_daemon_sets_utilization", "ignoreDaemonSetsUtilization"),
)
_DURATION_OPTIONS = (  # ours, field of the newer wire, field of the older
    ("scale_down_unneeded_seconds", "scaleDownUnneededDuration", "scaleDownUnneededTime"),
    ("scale_down_unready_seconds", "scaleDownUnreadyDuration", "scaleDownUnreadyTime"),
    ("max_node_provision_seconds", "MaxNodeProvisionDuration", "MaxNodeProvisionTime"),
)


LARGEST_MAX_SIZE = 1_000_000
"""The most that CA is told as a group's maximum. It has 32 bits on the wire, CA sums it over all groups (and
`zeroOrMaxNodeScaling` asks for the whole of it), and no cluster has as many nodes."""


def node_group(group: NodeGroup, limits: Iterable[Limit] = (), *, words: bool = True) -> pb.NodeGroup:
    """Return the group as CA is told of it. CA knows no limits: its maximum is what they would allow of this group
    alone, and no less than it has."""
    most = min(most_nodes(group, limits), LARGEST_MAX_SIZE)
    return pb.NodeGroup(
        id=group.id,
        minSize=group.min_size,
        maxSize=max(most, group.min_size, group.target_size),
        debug=_debug(group) if words else "",
    )


def _debug(group: NodeGroup) -> str:
    parts = (group.provisioner, f"weight {group.weight}", group.instance_type, group.zone, group.capacity_type)
    return " ".join(part for part in parts if part)[:LONGEST_WORDS]


def node_groups(groups: Iterable[NodeGroup], limits: Sequence[Limit] = ()) -> pb.NodeGroupsResponse:
    groups = tuple(groups)
    answer = pb.NodeGroupsResponse(nodeGroups=(node_group(group, limits) for group in groups))
    if answer.ByteSize() > LARGEST_ANSWER_BYTES:
        answer = pb.NodeGroupsResponse(nodeGroups=(node_group(group, limits, words=False) for group in groups))
    return answer


def instance_id(node: pb.ExternalGrpcNode) -> str:
    """Return the id of a node's instance: its providerID. For instances that have not registered, CA makes up nodes
    with the instance id as both name and providerID."""
    return node.providerID or node.name


def options(defaults: pb.NodeGroupAutoscalingOptions, changed: AutoscalingOptions) -> pb.NodeGroupAutoscalingOptions:
    """Return CA's `defaults` with the configured fields replaced, each duration in both wire generations. CA uses the
    response verbatim and reads a missing field as 0."""
    answer = pb.NodeGroupAutoscalingOptions()
    answer.CopyFrom(defaults)
    for ours, theirs in _PLAIN_OPTIONS:
        value = getattr(changed, ours)
        if value is not None:
            setattr(answer, theirs, value)
    for ours, newer, older in _DURATION_OPTIONS:
        seconds = getattr(changed, ours)
        if seconds is not None:
            _set_duration(answer, newer, older, round(seconds * _SECOND_NANOS))
        elif answer.HasField(newer):
            _set_duration(answer, newer, older, getattr(answer, newer).ToNanoseconds())
        elif answer.HasField(older):
            _set_duration(answer, newer, older, getattr(answer, older).duration)
    return answer


def _set_duration(answer: pb.NodeGroupAutoscalingOptions, newer: str, older: str, nanos: int) -> None:
    getattr(answer, newer).FromNanoseconds(nanos)
    getattr(answer, older).duration = nanos


def interval_hours(request: pb.PricingNodePriceRequest | pb.PricingPodPriceRequest) -> float:
    """Return the hours between start and end, of either wire generation. Raises InvalidInput where the end is before
    the start."""
    start = _seconds(request, "startTimestamp", "startTime")
    end = _seconds(request, "endTimestamp", "endTime")
    if end < start:
        raise InvalidInput(f"the interval ends {start - end:g} s before it starts; endTimestamp must not be earlier")
    return (end - start) / 3600


def _seconds(request: Message, newer: str, older: str) -> float:
    time = getattr(request, newer if request.HasField(newer) else older)
    return float(time.seconds) + float(time.nanos) / _SECOND_NANOS


def gpu_types(values: Iterable[str]) -> pb.GetAvailableGPUTypesResponse:
    answer = pb.GetAvailableGPUTypesResponse()
    for value in values:
        answer.gpuTypes[value].SetInParent()  # only the keys mean something
    return answer
