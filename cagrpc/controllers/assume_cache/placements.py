"""The placement of every planned pod that is not bound yet, and which places are still valid on the capacity of the
fleet, which are lost, and what is left free (`PlacedPods`). Those of increments in flight are in the journal; others
(on existing nodes, on nodes in flight for other pods, of increments that were released) are assumed here, as the
kube-scheduler assumes pods. They are lost with the process, at little cost: our own nominations are restored from the
pods, and pods without one are planned anew onto the same room. What becomes of lost places is
`placement.handover`'s."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from threading import Lock

from cagrpc.cluster.fleet_capacity import FleetCapacity
from cagrpc.cluster.node_info import PodOwner, Reservation, Reservations
from cagrpc.cluster.spares import kept_free
from cagrpc.cluster.state import ClusterState, PendingPod, PodRef, oldest_first
from cagrpc.fleet.model import ExpectedPod, FleetSnapshot, PodKey
from cagrpc.runtime.progress import Progress
from solver.model import PODS, Node, NodeGroup, PodSpec
from solver.model.allocation import why_not_allocated


@dataclass(frozen=True, slots=True)
class DesiredPlacements:
    """Which pod is to go where. Nodes go by the name of their Node, or by `IncrementNode.name` while they are in
    flight."""

    pods: Mapping[PodKey, str] = field(default_factory=dict)
    """Node names by UID."""
    nominated: Mapping[str, str] = field(default_factory=dict)
    """The nodes that we have nominated pods to, by UID. Pods that are nominated to their place come before others
    there."""
    open: tuple[str, ...] = ()
    """Nodes with places of expected pods that were bound elsewhere or never created."""

    def reservations(self, state: ClusterState, nodes: AbstractSet[str]) -> Reservations:
        """Return the room on these nodes of those of the pods that wait in this state."""
        there = {key: name for key, name in self.pods.items() if name in nodes}
        found: defaultdict[str, list[Reservation]] = defaultdict(list)
        for each in state.waiting if there else ():
            for pod in each.pods:
                if pod.key in there:
                    found[there[pod.key]].append(Reservation(PodOwner(pod.key), each.pod_set.spec))
        return found


class Placements:
    """Where planned pods are assumed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._assumed: dict[PodKey, str] = {}
        self._lost: dict[PodKey, AbstractSet[str]] = {}
        """Pods without a place, and the increments that were in flight then, whose places for them no longer count."""
        self._increments: AbstractSet[str] = frozenset()
        self.version = 0
        """Grows with each change."""
        self.lost_count = 0
        """How many pods have lost their placement so far without getting another."""
        self.scheduler = Progress()
        """The pods that were bound, planned or not."""

    def assume(self, pods: Mapping[PodKey, str]) -> None:
        """Assume these pods (by UID) on these nodes, whatever was planned for them before."""
        with self._lock:
            if pods:
                self._assumed.update(pods)
                self._lost = {uid: of for uid, of in self._lost.items() if uid not in pods}
                self.version += 1

    def lose(self, uids: Iterable[PodKey]) -> None:
        """Drop the places of these pods, assumed or in flight, until they are planned anew."""
        with self._lock:
            for uid in uids:
                self._assumed.pop(uid, None)
                self._lost[uid] = self._increments
                self.lost_count += 1
                self.version += 1

    def keep(self, pending: Iterable[PodKey]) -> None:
        """Forget all pods but these: the others are bound or gone, or were expected and have been created."""
        there = set(pending)
        with self._lock:
            self._assumed = {uid: node for uid, node in self._assumed.items() if uid in there}
            self._lost = {uid: of for uid, of in self._lost.items() if uid in there}

    def registered(self, names: Mapping[str, str], pods: Mapping[PodKey, str]) -> None:
        """Take over the places of an increment that is about to leave the journal: what was assumed on its nodes in
        flight goes by the `names` of their Nodes from now on, and its own `pods` that were not planned elsewhere since
        are assumed."""
        with self._lock:
            assumed = {uid: names.get(node, node) for uid, node in self._assumed.items()}
            own = {uid: node for uid, node in pods.items() if uid not in self._lost}
            self._assumed = {**own, **assumed}
            self.version += 1

    def known(self) -> frozenset[PodKey]:
        """Return the keys of pods that are assumed or have lost their places."""
        with self._lock:
            return frozenset(self._assumed.keys() | self._lost.keys())

    def assumed(self, uid: PodKey) -> bool:
        """Return whether the pod is assumed on a node."""
        return uid in self._assumed

    def nodes(self) -> Mapping[PodKey, str]:
        """Return where pods are assumed."""
        with self._lock:
            return dict(self._assumed)

    def desired(
        self, snapshot: FleetSnapshot, ours: Mapping[str, PendingPod], state: ClusterState
    ) -> DesiredPlacements:
        """Return where every planned pod is to go. `ours` are pods that we have nominated, by UID: one without a place
        keeps its nomination. Pods that were expected take the places that were planned for them."""
        with self._lock:
            self._increments = frozenset(status.id for status in snapshot.increments)
            nominated = {uid: pod.nominated_node for uid, pod in ours.items()}
            pods: dict[PodKey, str] = {uid: node for uid, node in nominated.items() if uid not in self._lost}
            pods |= dict(self._planned(snapshot)) | self._assumed
            came = successors(pods, pods.keys() | self._lost.keys(), state)
            if came:
                taken = {pod.key: pods.pop(key) for key, pod in came.items()}
                self._assumed = {uid: node for uid, node in self._assumed.items() if uid not in came} | taken
                self._lost |= dict.fromkeys(came, self._increments)
                self.version += 1
                pods |= taken
            gone = [pod for pod in pods if isinstance(pod, ExpectedPod) and pod not in state.expected]
            left = {pods[pod]: None for pod in gone}
            return DesiredPlacements(pods, nominated, tuple(left))

    def _planned(self, snapshot: FleetSnapshot) -> Iterator[tuple[PodKey, str]]:
        """Yield the places of increments in flight, the latest increment last."""
        for status in snapshot.increments:
            if status.increment.requests:
                continue
            pods = ((pod, node.name) for node in status.nodes for pod in node.pods)
            for pod, name in pods:
                if pod in snapshot.in_flight_pods and status.id not in self._lost.get(pod, ()):
                    yield pod, name


def successors(keys: Iterable[PodKey], placed: AbstractSet[PodKey], state: ClusterState) -> dict[ExpectedPod, PodRef]:
    """Return the pods that were created for those of these expected pods that are no longer expected: of the same
    workload, and none of the `placed`. The oldest pods take the places of the highest numbers."""
    open_places: defaultdict[str, list[ExpectedPod]] = defaultdict(list)
    for key in keys:
        if isinstance(key, ExpectedPod) and key not in state.expected:
            open_places[key.workload].append(key)
    found: dict[ExpectedPod, PodRef] = {}
    if open_places:
        for places in open_places.values():
            places.sort(key=lambda pod: pod.number)
        pods = [pod for each in state.waiting for pod in each.pods if pod.key not in placed]
        for pod in sorted(pods, key=oldest_first):
            free = open_places.get(state.roots.get(pod.workload, pod.workload))
            if free and not pod.is_expected:
                found[free.pop()] = pod
    return found


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
        spares: AbstractSet[str] = frozenset(),
    ) -> None:
        """`state` has all pods, `groups` have labels as their Nodes have them, `reservations` are those of others,
        `spares` the names of spares of topology domains, which only gangs of their domain have."""
        self._fleet = FleetCapacity(state, snapshot, groups, reservations or {})
        self._capacity = self._fleet.capacity
        if spares:
            self._capacity.assume(kept_free(spares, self._capacity.nodes, state))
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
        """Return the keys of pods with a place."""
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
            return f"node {name} does not have enough free: {free}" if short else f"node {name} no longer admits it"
        return f"node {name}: {lacking}"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all nodes."""
        return self._capacity.names

    def admits(self, spec: PodSpec, name: str) -> bool:
        """Return whether there is room for one such pod on this node."""
        info = self._capacity.get(name)
        return info is not None and self._fleet.takes(spec, info)

    def take(self, uid: PodKey, spec: PodSpec, name: str) -> bool:
        """Give the pod a place on this node. Return whether there was room for it."""
        if not self.admits(spec, name):
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
