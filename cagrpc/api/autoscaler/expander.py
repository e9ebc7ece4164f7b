"""The expander's gRPC messages: BestOptionsRequest to options with each distinct pod once, and the response. Ranking
the options is in `services.grpc.expander`.

Requests are reduced here to the fields that planning reads, safe to record: pods carry secrets in environment
variables, in commands, and again in the annotation that `kubectl apply` leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from google.protobuf.message import Message

from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS
from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL, MIN_COUNT, VOLCANO_GROUP
from cagrpc.api.core.pods import FAKE_POD, NOWHERE, Pod, PodDecoder, malformed, unread
from cagrpc.api.core.selectors import LabelProjection, selectors_of
from cagrpc.api.encoding.messages import discard_unknown_fields, has_more_fields, parse
from cagrpc.api.gen import expander_pb2, externalgrpc_pb2, kubernetes_pb2
from cagrpc.api.gen import expander_pb2 as pb
from cagrpc.errors import InvalidInput
from solver.model import PodSet, PodSpec
from solver.model.quantities import pluralize

K = TypeVar("K")


def with_visible_labels(pods: Mapping[K, Pod]) -> Mapping[K, Pod]:
    """Return the pods with those of their labels and namespaces in their specs that a selector of one of them can see.
    They must be all pods of the input."""
    specs = {id(pod.spec): pod.spec for pod in pods.values()}
    selectors = {selector for spec in specs.values() for selector in selectors_of(spec)}
    if not selectors:
        return pods
    projection = LabelProjection(selectors)
    return {
        key: pod if pod.spec is NOWHERE else replace(pod, spec=projection.identified(pod.spec, pod.identity))
        for key, pod in pods.items()
    }


def group(pods: Iterable[Pod], now_seconds: float = 0.0) -> tuple[tuple[PodSet, ...], dict[str, int]]:
    """Group pods into pod sets of equal spec, priority, gang and kind, in order of first appearance, and return them
    with each pod key's index of its set. A set has waited as long as its oldest pod (0 where `now_seconds` or the pods'
    age is unknown). Duplicate keys count once."""
    indices: dict[tuple[PodSpec, int, str | None, bool], int] = {}
    members_of: list[list[Pod]] = []
    set_of_pod: dict[str, int] = {}
    for pod in pods:
        if pod.key in set_of_pod:
            continue
        gang = pod.gang.name if pod.gang else None
        index = indices.setdefault((pod.spec, pod.priority, gang, pod.placeholder), len(members_of))
        if index == len(members_of):
            members_of.append([])
        members_of[index].append(pod)
        set_of_pod[pod.key] = index
    return tuple(_pod_set(alike, now_seconds) for alike in members_of), set_of_pod


def _pod_set(alike: Sequence[Pod], now_seconds: float) -> PodSet:
    first = alike[0]
    oldest = min((pod.created_at_seconds for pod in alike if pod.created_at_seconds), default=0)
    return PodSet(
        name=first.name,
        spec=first.spec,
        count=len(alike),
        priority=first.priority,
        waiting_seconds=max(0, int(now_seconds) - oldest) if oldest else 0,
        gang=first.gang.name if first.gang else None,
        placeholder=first.placeholder,
    )


_LONGEST_REASON = 300
_MOST_FIELDS = 400_000  # of a request and its options: each pod of an option is a field of at least some hundred bytes
_MOST_PODS = 100_000  # distinct pods of a request: the identity of each is read, which takes 3 s
LARGEST_POD_BYTES = 2 * 1024 * 1024  # etcd has none above 1.5 MiB


@dataclass(frozen=True, slots=True)
class Option:
    """A scale-up option of CA: `node_count` nodes of a group, by CA's own estimate, for these pods."""

    node_group: str
    node_count: int
    pods: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    options: tuple[Option, ...]
    templates: Mapping[str, bytes] = field(default_factory=dict)
    """Of every node group that the autoscaler knows, offered or not, a serialised v1.Node."""
    is_of_1_35: bool = False
    """Whether it has templates as releases from 1.35 on send them."""
    out_of_time: str = ""
    """Why some pods were not decoded beyond their identity (`pods.unread`), so that planning is impossible; empty where
    all were decoded."""
    unreadable: str = ""
    """Which pods cannot be decoded, regardless of time. They are `pods.unread` too, so the planner serves them only by
    an option in which CA lists them. Empty where there are none."""
    ignored: str = ""
    """Which pods have invalid fields that do not affect where they fit; empty where there are none."""


def decode(
    data: bytes, out_of_time: Callable[[], bool], gang_label: str = DEFAULT_GANG_LABEL, *, consuming: bool = True
) -> Request:
    """Decode a BestOptionsRequest of either wire generation. Equal pods are decoded once; once `out_of_time()` is true,
    only the identity of further pods is read. `gang_label` and `consuming` are passed to `PodDecoder`.

    Raises InvalidInput for malformed bytes around the pods; an unreadable pod does not fail the others.
    """
    message = parse_request(data)
    decoder = PodDecoder(gang_label, consuming=consuming)
    pods: dict[bytes, Pod] = {}
    late = ""
    unreadable: list[str] = []
    claiming: list[str] = []
    for pod_bytes in (each for option in message.options for each in option.podBytes or option.pod):
        if pod_bytes in pods:
            continue
        if len(pods) >= _MOST_PODS:
            raise InvalidInput(f"the options have more than {_MOST_PODS} different pods, the most that is read")
        if not late and out_of_time():
            late = f"no time to decode more than {pluralize(len(pods), 'pod')}"
        if len(pod_bytes) > LARGEST_POD_BYTES:
            pods[pod_bytes] = malformed(pod_bytes)
            unreadable.append(f"a pod has {len(pod_bytes)} bytes, more than {LARGEST_POD_BYTES}")
            continue
        if late:
            pods[pod_bytes] = unread(pod_bytes, gang_label, consuming=consuming)
            continue
        try:
            pods[pod_bytes] = pod = decoder.decode(pod_bytes)
            if pod.resource_claims.claims:  # neither claims nor devices are in the request
                pods[pod_bytes] = replace(pod, spec=replace(NOWHERE, requests=pod.spec.requests))
                claiming.append(f"pod {pod.name}")
        except InvalidInput as error:
            pods[pod_bytes] = unread(pod_bytes, gang_label, consuming=consuming)
            unreadable.append(str(error))
    known = with_visible_labels(pods)
    options = tuple(
        Option(o.nodeGroupId, o.nodeCount, tuple(known[each] for each in o.podBytes or o.pod)) for o in message.options
    )
    ignored = [pod.warning for pod in known.values() if pod.warning]
    return Request(
        options,
        message.nodeBytesMap or message.nodeMap,
        bool(message.nodeBytesMap),
        late,
        "; ".join(
            filter(
                None,
                (
                    _summary(unreadable, "errors of decoding, for which CA's own fit check is used"),
                    _summary(claiming, "resource claims, for which CA's own fit check is used"),
                ),
            )
        ),
        _summary(ignored, "invalid fields, which were ignored"),
    )


def parse_request(data: bytes) -> pb.BestOptionsRequest:
    """Parse a BestOptionsRequest of either wire generation. Raises InvalidInput for malformed bytes and for too many
    fields."""
    if has_more_fields(data, _MOST_FIELDS):
        raise InvalidInput(f"the options have more than {_MOST_FIELDS} pods and other fields, the most that is read")
    return parse(pb.BestOptionsRequest, data)


def _summary(messages: Sequence[str], what: str) -> str:
    return f"{pluralize(len(messages), 'pod')} with {what}: {messages[0][:_LONGEST_REASON]}" if messages else ""


def answer(options: Iterable[Option], reason: str) -> bytes:
    """Serialise the response with the one option to take, or with those among which CA's next expander is to choose. CA
    reads only their ids; `reason` is for people."""
    found = (pb.Option(nodeGroupId=each.node_group, nodeCount=each.node_count, debug=reason) for each in options)
    return pb.BestOptionsResponse(options=found).SerializeToString()


def unchanged(data: bytes) -> bytes:
    """Serialise the response with every option of a serialised BestOptionsRequest, in its order. Raises InvalidInput
    for malformed bytes."""
    options = parse_request(data).options
    return answer((Option(each.nodeGroupId, each.nodeCount) for each in options), "")


VETO = b""
"""An empty BestOptionsResponse: nothing scales up in this loop."""


_ANNOTATIONS = frozenset({*CONSUME_KEYS, *CLASS_KEYS, VOLCANO_GROUP, MIN_COUNT, FAKE_POD[0]})
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
    for each in pod.metadata.DESCRIPTOR.fields:
        if each.name not in _METADATA:
            pod.metadata.ClearField(each.name)
    for key in [key for key in pod.metadata.annotations if key not in _ANNOTATIONS]:
        del pod.metadata.annotations[key]
    return pod.SerializeToString()


def reduced_template(data: bytes) -> bytes:
    """Return a v1.Node with only its labels, taints and resources; empty for malformed bytes."""
    try:
        node = parse(kubernetes_pb2.Node, data)
    except InvalidInput:
        return b""
    kept = kubernetes_pb2.Node()
    kept.metadata.labels.update(node.metadata.labels)
    kept.spec.taints.extend(node.spec.taints)
    for name in ("capacity", "allocatable"):
        for resource, amount in getattr(node.status, name).items():
            getattr(kept.status, name)[resource].CopyFrom(amount)
    discard_unknown_fields(kept)
    return kept.SerializeToString(deterministic=True)


def _reduced_options(message: expander_pb2.BestOptionsRequest) -> bytes:
    discard_unknown_fields(message)
    offered = {option.nodeGroupId for option in message.options}
    for templates in (message.nodeMap, message.nodeBytesMap):
        for name in list(templates):
            if name in offered:
                templates[name] = reduced_template(templates[name])
            else:
                del templates[name]
    pods: dict[bytes, bytes] = {}  # CA repeats every pod in every option
    for option in message.options:
        for sent in (option.pod, option.podBytes):
            for index, data in enumerate(sent):
                if data not in pods:
                    pods[data] = reduced_pod(data)
                sent[index] = pods[data]
    return message.SerializeToString()
