"""Planned pods on the capacity of the fleet: which places are still valid, which are lost, and what is left free. Pure.
Where each pod is to go is `placements`'s, what becomes of lost places `placement.handover`'s."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet

from cagrpc.cluster.fleet_capacity import FleetCapacity
from cagrpc.cluster.node_info import PodOwner, Reservations
from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.assume_cache.placements import DesiredPlacements
from cagrpc.fleet.model import FleetSnapshot, PodKey
from solver.model import PODS, Node, NodeGroup, PodSpec
from solver.model.allocation import why_not_allocated


class PlacedPods:
    """`nodes_of_pods` has the node of every pod whose place is valid, by UID; `lost` are pods whose room was taken, or
    whose node is gone or no longer admits them; `in_flight` names nodes that the scheduler does not see yet."""

    def __init__(
        self,
        state: ClusterState,
        snapshot: FleetSnapshot,
        groups: Sequence[NodeGroup],
        desired: DesiredPlacements,
        reservations: Reservations | None = None,
    ) -> None:
        """`state` has all pods, `groups` have labels as their Nodes have them, `reservations` are those of others."""
        self._fleet = FleetCapacity(state, snapshot, groups, reservations or {})
        self._capacity = self._fleet.capacity
        self.in_flight = self._fleet.in_flight
        self.nodes_of_pods: dict[PodKey, str] = {}
        waiting = {pod.key: each.pod_set for each in state.waiting for pod in each.pods if pod.key in desired.pods}
        names = {uid: self.name_of(desired.pods[uid]) for uid in waiting}
        nominated = desired.nominated.items()
        # The highest priority first, then pods that are nominated to their node already.
        order = sorted(waiting, key=lambda uid: (-waiting[uid].priority, (uid, names[uid]) not in nominated))
        self.lost = frozenset(uid for uid in order if not self.take(uid, waiting[uid].spec, names[uid]))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes with what is free beside the pods that have places there."""
        return self._capacity.nodes

    @property
    def served(self) -> AbstractSet[PodKey]:
        """Keys of pods with a place."""
        return self.nodes_of_pods.keys()

    def name_of(self, name: str) -> str:
        """Return the name of the Node where it is Ready, given that of an increment's node."""
        return self._fleet.name_of(name)

    def node(self, name: str, *, without: Collection[PodKey] = ()) -> Node | None:
        """Return the node with what is free on it, or would be without these pods that have places there; None where
        there is no usable node of this name."""
        info = self._capacity.get(name)
        if info is None:
            return None
        if without:
            info = info.copy()
            for uid in without:
                info.forget(PodOwner(uid))
        return info.node()

    def room(self, spec: PodSpec, name: str) -> float:
        """Return which part of what the pod requests is free on this node, of what it has least of; below 0 where there
        is no usable node of this name, or it does not admit the pod."""
        info = self._capacity.get(name)
        if info is None or not info.admits(spec):
            return -1.0
        return min((info.free.get(each, 0) / amount for each, amount in spec.requests), default=1.0)

    def why_lost(self, spec: PodSpec, name: str) -> str:
        """Return why the pod has no place on this node, for log messages."""
        name = self.name_of(name)
        node = self.node(name)
        if node is None:
            return f"node {name} is gone or not Ready"
        short = {each: amount for each, amount in (*spec.requests, (PODS, 1)) if node.free.get(each, 0) < amount}
        free = ", ".join(f"{each}: {node.free.get(each, 0)} of {amount}" for each, amount in short.items())
        lacking = why_not_allocated(node.devices, spec.claims)
        if short or not lacking:
            return f"node {name} has not enough free: {free}" if short else f"node {name} no longer admits it"
        return f"node {name}: {lacking}"

    def take(self, uid: PodKey, spec: PodSpec, name: str) -> bool:
        """Give the pod a place on this node. Return whether there was room for it."""
        info = self._capacity.get(name)
        if info is None or not self._fleet.takes(spec, info):
            return False
        self.move(uid, spec, name)
        return True

    def move(self, uid: PodKey, spec: PodSpec, name: str) -> None:
        """Give the pod a place on this node instead of the one it had."""
        self.leave(uid)
        self._capacity[name].assume(PodOwner(uid), spec)
        self.nodes_of_pods[uid] = name

    def leave(self, uid: PodKey) -> None:
        """Release the pod's place, if it has one."""
        before = self.nodes_of_pods.pop(uid, None)
        if before is not None:
            self._capacity[before].forget(PodOwner(uid))
