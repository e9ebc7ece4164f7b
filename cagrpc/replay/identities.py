"""Maps recorded instance ids to those of the replay. A recording names instances of another provider
(`example://m7i-large-0014`). The n-th recorded instance of a node group, by the number in its id, is the n-th of that
group here, in order of creation."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cagrpc.api.encoding.messages import parse
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.replay.recording import Call, request_type
from solver.model import HOSTNAME


class Identities:
    """Recorded ids to ids of the replay. Ids without a counterpart stay as they are."""

    def __init__(self, calls: Iterable[Call]) -> None:
        recorded: defaultdict[str, set[str]] = defaultdict(set)
        for node_group, instance_id in _recorded_instances(calls):
            recorded[node_group].add(instance_id)
        self._recorded = {node_group: sorted(ids, key=_number) for node_group, ids in recorded.items()}
        self._ours: defaultdict[str, list[str]] = defaultdict(list)
        self._to_ours: dict[str, str] = {}

    def saw(self, node_group: str, instance_ids: Sequence[str], *, before: frozenset[str] = frozenset()) -> None:
        """Add a listing of a group, in order of creation; instances that existed `before` the replay are no
        counterparts."""
        ours = self._ours[node_group]
        ours.extend(each for each in instance_ids if each not in ours and each not in before)
        self._to_ours.update(zip(self._recorded.get(node_group, ()), ours, strict=False))

    def ours(self, recorded_id: str) -> str:
        """Return the counterpart of a recorded id, or the recorded id where there is none."""
        return self._to_ours.get(recorded_id, recorded_id)

    def knows(self, recorded_id: str) -> bool:
        """Return whether a recorded id has a counterpart."""
        return recorded_id in self._to_ours

    def rewrite(self, method: str, request: bytes) -> bytes:
        """Return the request with ids, names and host names of the replay; other bytes are unchanged."""
        if method not in ("NodeGroupDeleteNodes", "NodeGroupForNode", "PricingNodePrice"):
            return request
        message: Any = parse(request_type(method), request)
        for node in message.nodes if method == "NodeGroupDeleteNodes" else (message.node,):
            self._rewrite_node(node)
        return bytes(message.SerializeToString())

    def _rewrite_node(self, node: pb.ExternalGrpcNode) -> None:
        if not self.knows(node.providerID):
            return
        recorded, ours = node.providerID, self.ours(node.providerID)
        node.providerID = ours
        # nodes that CA makes up are named like the provider id, real ones like its last part
        node.name = ours if node.name == recorded else ours.rsplit("/", 1)[-1]
        if HOSTNAME in node.labels:
            node.labels[HOSTNAME] = node.name


def _recorded_instances(calls: Iterable[Call]) -> Iterator[tuple[str, str]]:
    """Yield (node group, instance id) for every instance whose group the recording shows."""
    for call in calls:
        if call.method == "NodeGroupNodes":
            node_group = parse(pb.NodeGroupNodesRequest, call.request).id
            for instance in parse(pb.NodeGroupNodesResponse, call.response).instances:
                yield node_group, instance.id
        elif call.method == "NodeGroupForNode":
            node_group = parse(pb.NodeGroupForNodeResponse, call.response).nodeGroup.id
            node = parse(pb.NodeGroupForNodeRequest, call.request).node
            if node_group and node.providerID:
                yield node_group, node.providerID
        elif call.method == "NodeGroupDeleteNodes":
            deletion = parse(pb.NodeGroupDeleteNodesRequest, call.request)
            for node in deletion.nodes:
                yield deletion.id, node.providerID


def _number(instance_id: str) -> tuple[int, str]:
    digits = re.search(r"(\d+)$", instance_id)
    return (int(digits[1]) if digits else 0, instance_id)
