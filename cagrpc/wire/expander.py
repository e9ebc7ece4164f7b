"""The expander's messages to and from what ranking reads: options, and each distinct pod once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cagrpc.errors import InvalidInput
from cagrpc.wire.gen import expander_pb2 as pb
from cagrpc.wire.messages import parse
from cagrpc.wire.pods import Pod, PodDecoder, told_apart, unread

_CLOCK_EVERY = 64
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class Option:
    """One way that CA could scale up: `node_count` nodes of a group, by its own estimate, for some pods."""

    node_group: str
    node_count: int
    debug: str = ""
    pods: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    options: tuple[Option, ...]
    out_of_time: str = ""
    """Why of some pods no more is known than who they are (`pods.unread`): so there is nothing to plan with. Empty
    where all were read."""
    unreadable: str = ""
    """Which pods cannot be understood, whatever the time. They are `pods.unread` too, so that to the planner only an
    option that CA has them in serves them. Empty where there are none."""


def decode(data: bytes, out_of_time: Callable[[], bool]) -> Request:
    """A BestOptionsRequest of either wire generation; equal pods are read once, those after `out_of_time()` only for
    who they are. Raises InvalidInput for malformed bytes around the pods; a pod that cannot be read is no reason to
    refuse the others."""
    message = parse(pb.BestOptionsRequest, data)
    decoder = PodDecoder()
    pods: dict[bytes, Pod] = {}
    late = ""
    unreadable: list[str] = []
    for pod_bytes in (each for option in message.options for each in option.podBytes or option.pod):
        if pod_bytes in pods:
            continue
        if not late and len(pods) % _CLOCK_EVERY == 0 and out_of_time():
            late = f"no time to decode more than {len(pods)} pods"
        if late:
            pods[pod_bytes] = unread(pod_bytes)
            continue
        try:
            pods[pod_bytes] = decoder.decode(pod_bytes)
        except InvalidInput as error:
            pods[pod_bytes] = unread(pod_bytes)
            unreadable.append(str(error))
    known = told_apart(pods)
    options = tuple(
        Option(o.nodeGroupId, o.nodeCount, o.debug, tuple(known[each] for each in o.podBytes or o.pod))
        for o in message.options
    )
    return Request(options, late, _told(unreadable))


def _told(unreadable: Sequence[str]) -> str:
    if not unreadable:
        return ""
    return f"{len(unreadable)} pods cannot be read, CA's word is taken for them: {unreadable[0][:_LONGEST_REASON]}"


def answer(node_group: str, node_count: int, reason: str) -> bytes:
    """The one option to take. CA reads only the id; the rest is for whoever listens in."""
    option = pb.Option(nodeGroupId=node_group, nodeCount=node_count, debug=reason)
    return pb.BestOptionsResponse(options=[option]).SerializeToString()


VETO = b""
"""An empty BestOptionsResponse: nothing scales up in this loop."""
