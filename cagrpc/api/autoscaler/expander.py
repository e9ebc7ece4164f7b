"""The expander's gRPC messages: BestOptionsRequest to options with each distinct pod once, and the response. Ranking
the options is in `services.grpc.expander`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.pod_sets import with_visible_labels
from cagrpc.api.core.pods import NOWHERE, Pod, PodDecoder, malformed, unread
from cagrpc.api.encoding.messages import parse
from cagrpc.api.encoding.raw import has_more_fields
from cagrpc.api.gen import expander_pb2 as pb
from cagrpc.errors import InvalidInput
from solver.model.quantities import pluralize

_LONGEST_REASON = 300
_MOST_FIELDS = 400_000  # of a request and its options: each pod of an option is a field of at least some hundred bytes
_MOST_PODS = 100_000  # distinct pods of a request: the identity of each is read, which takes 3 s
LARGEST_POD_BYTES = 2 * 1024 * 1024  # etcd has none above 1.5 MiB


@dataclass(frozen=True, slots=True)
class Option:
    """A scale-up option of CA: `node_count` nodes of a group, by CA's own estimate, for these pods."""

    node_group: str
    node_count: int
    debug: str = ""
    pods: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    options: tuple[Option, ...]
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
            raise InvalidInput(f"the options have more than {_MOST_PODS} different pods, which is the most")
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
        Option(o.nodeGroupId, o.nodeCount, o.debug, tuple(known[each] for each in o.podBytes or o.pod))
        for o in message.options
    )
    ignored = [pod.warning for pod in known.values() if pod.warning]
    return Request(
        options,
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
        raise InvalidInput(f"the options have more than {_MOST_FIELDS} pods and other fields, which is the most")
    return parse(pb.BestOptionsRequest, data)


def _summary(messages: Sequence[str], what: str) -> str:
    return f"{pluralize(len(messages), 'pod')} with {what}: {messages[0][:_LONGEST_REASON]}" if messages else ""


def answer(node_group: str, node_count: int, reason: str) -> bytes:
    """Serialise the response with the one option to take. CA reads only its id; `reason` is for people."""
    option = pb.Option(nodeGroupId=node_group, nodeCount=node_count, debug=reason)
    return pb.BestOptionsResponse(options=[option]).SerializeToString()


VETO = b""
"""An empty BestOptionsResponse: nothing scales up in this loop."""
