"""A node group's instances in CA's messages."""

from __future__ import annotations

from collections.abc import Iterable

from cagrpc.api.autoscaler.provider import LARGEST_ANSWER_BYTES, LONGEST_WORDS
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.fleet.model import Instance, InstanceState

_OUT_OF_RESOURCES, _OTHER_ERROR = 1, 99  # cloudprovider.InstanceErrorClass

_STATES = {
    InstanceState.CREATING: pb.InstanceStatus.instanceCreating,
    InstanceState.RUNNING: pb.InstanceStatus.instanceRunning,
    InstanceState.DELETING: pb.InstanceStatus.instanceDeleting,
}


def instances(listed: Iterable[Instance]) -> pb.NodeGroupNodesResponse:
    """Return the instances as a message. A failed creation is Creating with an errorCode: CA deletes it and backs
    off."""
    listed = tuple(listed)
    answer = pb.NodeGroupNodesResponse(instances=(_instance(instance, LONGEST_WORDS) for instance in listed))
    if answer.ByteSize() > LARGEST_ANSWER_BYTES:
        answer = pb.NodeGroupNodesResponse(instances=(_instance(instance, 0) for instance in listed))
    return answer


def _instance(instance: Instance, longest_words: int) -> pb.Instance:
    answer = pb.Instance(id=instance.id)
    answer.status.instanceState = _STATES[instance.state]
    if instance.error is not None and instance.state is InstanceState.CREATING:
        answer.status.errorInfo.errorCode = (instance.error.code or "CREATION_FAILED")[:LONGEST_WORDS]
        answer.status.errorInfo.errorMessage = instance.error.message[:longest_words]
        answer.status.errorInfo.instanceErrorClass = (
            _OUT_OF_RESOURCES if instance.error.out_of_resources else _OTHER_ERROR
        )
    return answer
