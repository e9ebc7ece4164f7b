"""The nodes of a disruption as they are now: which stand, which somebody needs, and whether targets can still take the
pods that are to go there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from cagrpc.cluster.node_info import ClusterCapacity, PodOwner, Reservations, requested
from cagrpc.cluster.state import ClusterState, PodsOnNode, ReschedulablePod
from cagrpc.controllers.consolidation.successors import Successors
from cagrpc.fleet.model import DisruptedNode, PodMove
from solver.model import Node


def standing_of(nodes: Iterable[DisruptedNode], state: ClusterState) -> list[DisruptedNode]:
    """Return those of these nodes that are there."""
    there = {each.node.name: each.provider_id for each in state.nodes}
    return [each for each in nodes if there.get(each.name) == each.instance_id]


def needed(state: ClusterState, assumed: Iterable[str], reserved: Reservations) -> AbstractSet[str]:
    """Return the names of nodes that somebody needs: a pod is there, ends or is to come, or room is reserved."""
    on = (name for name, pods in state.bound.items() if _has_pods(pods))
    return {*on, *assumed, *(name for name, kept in reserved.items() if kept)}


def _has_pods(pods: PodsOnNode) -> bool:
    return bool(pods.reschedulable or pods.coming or pods.ending)


class Targets:
    """Ready nodes with what is free beside the reservations of others."""

    def __init__(
        self,
        names: AbstractSet[str],
        state: ClusterState,
        others: Reservations,
        successors: Successors,
        pods: Mapping[str, ReschedulablePod],
    ) -> None:
        """`pods` are those that are not evicted yet, by UID: their room is free in the end, also on nodes that stay
        (pods of gangs that move whole)."""
        self._there = {each.node.name: each for each in state.nodes if each.node.name in names}
        ready = (self._as_it_will_be(each.node, state, pods) for each in self._there.values() if each.ready)
        self._capacity = ClusterCapacity(ready, others)
        self._successors = successors

    def _as_it_will_be(self, node: Node, state: ClusterState, pods: Mapping[str, ReschedulablePod]) -> Node:
        leaving = [pod.spec for pod in state.bound.get(node.name, PodsOnNode()).reschedulable if pod.ref.uid in pods]
        if not leaving:
            return node
        room = requested((spec, 1) for spec in leaving)
        return replace(node, free={name: node.free.get(name, 0) + room.get(name, 0) for name in {**node.free, **room}})

    def lost(self, pods: Iterable[PodMove]) -> str:
        """Return why one of these pods, which are not evicted yet, has no place any more beside those that are;
        empty where all have one."""
        for move in self._successors.waiting_for():
            info, spec = self._capacity.get(move.target), self._successors.spec(move.uid)
            if info is not None and spec is not None:
                info.assume(PodOwner(move.uid), spec)
        for move in pods:
            info, spec = self._capacity.get(move.target), self._successors.spec(move.uid)
            pod = f"pod {move.namespace}/{move.name}"
            if info is None:
                return f"{pod} was to go to node {move.target}, which is gone or not Ready"
            if spec is not None:
                if not info.has_room(spec):
                    return f"{pod} was to go to node {move.target}, which has no room for it any more"
                info.assume(PodOwner(move.uid), spec)
        return ""

    def is_open(self, move: PodMove) -> bool:
        """Return whether the scheduler may bind the pod there: the start-up taint is gone, and others that young nodes
        have for a while."""
        node, info = self._there.get(move.target), self._capacity.get(move.target)
        spec = self._successors.spec(move.uid)
        return node is not None and not node.held and info is not None and (spec is None or info.admits(spec))
