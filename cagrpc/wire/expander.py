"""The expander's messages to and from what ranking reads: options, and each distinct pod once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cagrpc.wire.gen import expander_pb2 as pb
from cagrpc.wire.messages import parse
from cagrpc.wire.pods import Pod, PodDecoder, UnreadablePod

_CLOCK_EVERY = 64


@dataclass(frozen=True, slots=True)
class Option:
    """One way that CA could scale up: `node_count` nodes of a group, by its own estimate, for `pod_count` pods."""

    node_group: str
    node_count: int
    pod_count: int
    debug: str = ""
    pods: tuple[Pod, ...] = ()
    """Empty where the pods were not decoded; see `Request.undecoded`."""


@dataclass(frozen=True, slots=True)
class Request:
    options: tuple[Option, ...]
    undecoded: str = ""
    """Why only the counts of pods are known; empty where the pods were decoded."""


def decode(data: bytes, out_of_time: Callable[[], bool]) -> Request:
    """A BestOptionsRequest of either wire generation. When `out_of_time()` or for a pod that is well-formed but
    cannot be understood, the options come with counts only. Raises InvalidInput for malformed bytes, outside or
    inside of the pods."""
    message = parse(pb.BestOptionsRequest, data)
    decoder = PodDecoder()
    decoded = 0
    undecoded = ""
    options = []
    for option in message.options:
        pods: list[Pod] = []
        count = len(option.podBytes) or len(option.pod)
        for pod_bytes in option.podBytes or option.pod:
            if undecoded or (decoded % _CLOCK_EVERY == 0 and out_of_time()):
                undecoded = undecoded or f"no time to decode more than {decoded} pods"
                break
            try:
                pods.append(decoder.decode(pod_bytes))
            except UnreadablePod as error:
                undecoded = str(error)
            decoded += 1
        options.append(Option(option.nodeGroupId, option.nodeCount, count, option.debug, tuple(pods)))
    if undecoded:
        options = [Option(o.node_group, o.node_count, o.pod_count, o.debug) for o in options]
    return Request(tuple(options), undecoded)


def answer(node_group: str, node_count: int, reason: str) -> bytes:
    """The one option to take. CA reads only the id; the rest is for whoever listens in."""
    option = pb.Option(nodeGroupId=node_group, nodeCount=node_count, debug=reason)
    return pb.BestOptionsResponse(options=[option]).SerializeToString()


VETO = b""
"""An empty BestOptionsResponse: nothing scales up in this loop."""
