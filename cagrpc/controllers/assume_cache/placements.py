"""The placement of every planned pod that is not bound yet. Those of increments in flight are in the journal; others
(on existing nodes, on nodes in flight for other pods, of increments that were released) are assumed here, as the
kube-scheduler assumes pods. They are lost with the process, at little cost: our own nominations are restored from the
pods, and pods without one are planned anew onto the same room.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from threading import Lock

from cagrpc.cluster.node_info import PodOwner, Reservation, Reservations
from cagrpc.cluster.state import ClusterState, PendingPod, PodRef, oldest_first
from cagrpc.fleet.model import ExpectedPod, FleetSnapshot, PodKey
from cagrpc.runtime.progress import Progress


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
