"""Requests of the cluster-autoscaler reduced to the fields that planning reads, safe to record. Pods carry secrets in
environment variables, in commands, and again in the annotation that `kubectl apply` leaves."""

from __future__ import annotations

from google.protobuf.message import Message

from cagrpc.api.autoscaler.expander import LARGEST_POD_BYTES, parse_request
from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS
from cagrpc.api.core.gangs import MIN_COUNT, VOLCANO_GROUP
from cagrpc.api.core.pods import PLACEHOLDER
from cagrpc.api.encoding.messages import discard_unknown_fields, parse
from cagrpc.api.gen import expander_pb2, externalgrpc_pb2, kubernetes_pb2
from cagrpc.errors import InvalidInput

_ANNOTATIONS = frozenset({*CONSUME_KEYS, *CLASS_KEYS, VOLCANO_GROUP, MIN_COUNT, PLACEHOLDER[0]})
_METADATA = frozenset({"name", "namespace", "uid", "creationTimestamp", "labels", "annotations"})


def reduced(message_type: type[Message], data: bytes) -> bytes:
    """Return the message reduced. Raises InvalidInput for malformed bytes."""
    if message_type is expander_pb2.BestOptionsRequest:
        return _reduced_options(parse_request(data))
    message = parse(message_type, data)
    discard_unknown_fields(message)
    if isinstance(message, externalgrpc_pb2.PricingPodPriceRequest):
        message.pod, message.pod_bytes = (each and reduced_pod(each) for each in (message.pod, message.pod_bytes))
    elif isinstance(message, externalgrpc_pb2.NodeGroupForNodeRequest | externalgrpc_pb2.PricingNodePriceRequest):
        message.node.ClearField("annotations")
    elif isinstance(message, externalgrpc_pb2.NodeGroupDeleteNodesRequest):
        for node in message.nodes:
            node.ClearField("annotations")
    return message.SerializeToString()


def reduced_pod(data: bytes) -> bytes:
    """Return a v1.Pod with only the fields that `pods.PodDecoder` reads; empty for malformed bytes."""
    try:
        pod = parse(kubernetes_pb2.Pod, data if len(data) <= LARGEST_POD_BYTES else b"")
    except InvalidInput:
        return b""
    discard_unknown_fields(pod)
    pod.ClearField("status")
    for field in pod.metadata.DESCRIPTOR.fields:
        if field.name not in _METADATA:
            pod.metadata.ClearField(field.name)
    for key in [key for key in pod.metadata.annotations if key not in _ANNOTATIONS]:
        del pod.metadata.annotations[key]
    return pod.SerializeToString()


def _reduced_options(message: expander_pb2.BestOptionsRequest) -> bytes:
    discard_unknown_fields(message)
    message.ClearField("nodeMap")
    message.ClearField("nodeBytesMap")
    pods: dict[bytes, bytes] = {}  # CA repeats every pod in every option
    for option in message.options:
        for field in (option.pod, option.podBytes):
            for index, data in enumerate(field):
                if data not in pods:
                    pods[data] = reduced_pod(data)
                field[index] = pods[data]
    return message.SerializeToString()
