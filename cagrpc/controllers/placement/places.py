"""The place of every planned pod that is not bound yet. Those of increments in flight are in the journal; all others
(on nodes that stand, on nodes that are coming for somebody else, of increments that were released) are assumed here, as
the kube-scheduler assumes pods. What is assumed is lost with the process, at little cost: nominations that are ours are
taken up again, and pods without one are planned anew onto the same room.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from threading import Lock

from cagrpc.cluster.state import ClusterState, PendingPod, PodRef, oldest_first
from cagrpc.fleet.model import ExpectedPod, FleetSnapshot, PodKey


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which pod is to go where. Nodes are named by their Node, or by their `IncrementNode.name` while they are
    coming."""

    pods: Mapping[PodKey, str] = field(default_factory=dict)
    """By UID."""
    nominated: Mapping[str, str] = field(default_factory=dict)
    """The nodes to which pods are nominated by us, by UID. Who is nominated where it is wanted comes before others
    there."""
    open: tuple[str, ...] = ()
    """Nodes with places of pods that were expected, and came to be bound elsewhere or did not come."""


class Places:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._assumed: dict[PodKey, str] = {}
        self._lost: dict[PodKey, AbstractSet[str]] = {}
        """Pods without a place, and the increments that were in flight then: what these say of them does not count."""
        self._increments: AbstractSet[str] = frozenset()
        self.version = 0
        """Grows with each change."""

    def assume(self, pods: Mapping[PodKey, str]) -> None:
        """These pods (by UID) are to go to these nodes from now on, whatever was planned for them before."""
        with self._lock:
            if pods:
                self._assumed.update(pods)
                self._lost = {uid: of for uid, of in self._lost.items() if uid not in pods}
                self.version += 1

    def lose(self, uids: Iterable[PodKey]) -> None:
        """These pods have no place any more, whatever was planned for them, until something else is."""
        with self._lock:
            for uid in uids:
                self._assumed.pop(uid, None)
                self._lost[uid] = self._increments
                self.version += 1

    def keep(self, pending: Iterable[PodKey]) -> None:
        """All others are bound, or gone; or were expected, and came."""
        there = set(pending)
        with self._lock:
            self._assumed = {uid: node for uid, node in self._assumed.items() if uid in there}
            self._lost = {uid: of for uid, of in self._lost.items() if uid in there}

    def registered(self, names: Mapping[str, str], pods: Mapping[PodKey, str]) -> None:
        """An increment is about to leave the journal: what was assumed onto its nodes while they were coming is by the
        `names` of their Nodes from now on, and `pods` of its own that were not planned elsewhere since are assumed."""
        with self._lock:
            assumed = {uid: names.get(node, node) for uid, node in self._assumed.items()}
            own = {uid: node for uid, node in pods.items() if uid not in self._lost}
            self._assumed = {**own, **assumed}
            self.version += 1

    def known(self) -> frozenset[PodKey]:
        """UIDs of pods of which something is remembered."""
        with self._lock:
            return frozenset(self._assumed.keys() | self._lost.keys())

    def assumed(self, uid: PodKey) -> bool:
        return uid in self._assumed

    def wanted(self, snapshot: FleetSnapshot, ours: Mapping[str, PendingPod], state: ClusterState) -> Wanted:
        """`ours` are pods whose nomination is our own, by UID: where nothing else is planned for one it is kept. Pods
        that were expected take the places that were planned for them."""
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
            return Wanted(pods, nominated, tuple(left))

    def _planned(self, snapshot: FleetSnapshot) -> Iterator[tuple[PodKey, str]]:
        """Who is to go where by increments in flight, the latest word last."""
        for status in snapshot.increments:
            if status.increment.requests:
                continue
            pods = ((pod, node.name) for node in status.nodes for pod in node.pods)
            for pod, name in pods:
                if pod in snapshot.in_flight_pods and status.id not in self._lost.get(pod, ()):
                    yield pod, name


def successors(keys: Iterable[PodKey], placed: AbstractSet[PodKey], state: ClusterState) -> dict[ExpectedPod, PodRef]:
    """Those of these expected pods that are expected no longer, and the pods that have come in their stead: of the same
    workload, and none of the `placed`. Places of the highest numbers are taken first, by the oldest pods."""
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
