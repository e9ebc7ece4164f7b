"""Pods whose increment has been released and that the scheduler has not bound yet: for a short while their room is
theirs, and nothing else is opened for them. How long that is is decided here for all. The places of pods that were
planned are `controllers.placement`'s; room for the autoscaler's pods, which have none, is found here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from threading import Lock
from typing import TYPE_CHECKING

from cagrpc.cluster.node_info import NodeInfo, PodOwner
from cagrpc.cluster.state import ClusterState
from cagrpc.errors import Unavailable
from cagrpc.fleet.model import FleetSnapshot, IncrementStatus, Phase, PodKey
from cagrpc.runtime.clock import EpochClock
from cagrpc.runtime.progress import LONGEST_FACTOR
from solver.model import PodSpec

if TYPE_CHECKING:  # not needed without a cluster
    from cagrpc.cluster.view.view import ClusterView

BINDING_SECONDS = 30.0
"""So long after its increment was released, and after any such pod was seen to be bound, a pod that still waits is left
to the scheduler, which tries it again at most 10 s after a node has changed."""


class ReleasedPods:
    """Finds the pods that are left to the scheduler. Thread-safe."""

    def __init__(self, cluster: ClusterView, clock: EpochClock) -> None:
        """`clock` gives seconds since the epoch, as the fleet's does."""
        self._cluster = cluster
        self._clock = clock
        self._lock = Lock()
        self._pending: AbstractSet[PodKey] = frozenset()
        """Such pods when they were asked for last."""
        self._bound_at = float("-inf")
        """When one of them was last seen to be bound."""

    def __call__(self, snapshot: FleetSnapshot) -> AbstractSet[PodKey]:
        """Return the pods that are still pending, of an increment that was released less than `BINDING_SECONDS` ago, or
        longer where the scheduler is seen to be busy, and that have room, all together, on nodes of its groups; of
        nobody while the cluster is not known."""
        now = self._clock()
        groups: dict[PodKey, set[str]] = {}  # pod -> groups of its increments
        for status in snapshot.increments:
            if self._is_being_bound(status, now):
                for pod in status.increment.pods:
                    groups.setdefault(pod, set()).update(status.increment.deltas)
        try:
            pending = {pod for pod in groups if self._cluster.pod_of(pod) is not None}
            with self._lock:
                if any(self._cluster.pod_of(pod) is None for pod in self._pending):
                    self._bound_at = now
                self._pending = pending
            state = self._cluster.state() if pending else None
        except Unavailable:
            return frozenset()
        return frozenset(_with_room(state, snapshot, {pod: groups[pod] for pod in pending})) if state else frozenset()

    def _is_being_bound(self, status: IncrementStatus, now: float) -> bool:
        released_at = status.finished_at_seconds
        if status.phase is not Phase.DONE or released_at is None:
            return False
        longest = released_at + LONGEST_FACTOR * BINDING_SECONDS
        return now < min(longest, max(released_at, self._bound_at) + BINDING_SECONDS)


def _with_room(state: ClusterState, snapshot: FleetSnapshot, groups: dict[PodKey, set[str]]) -> Iterator[PodKey]:
    nodes: defaultdict[str, list[NodeInfo]] = defaultdict(list)  # by group
    for each in state.nodes:
        group = snapshot.group_of_instance.get(each.provider_id)
        if group is not None and each.ready:
            nodes[group].append(NodeInfo(each.node))
    for waiting in state.waiting:
        spec = waiting.pod_set.spec
        places: dict[str, Iterator[NodeInfo]] = {}
        for pod in waiting.pods:
            for group in sorted(groups.get(pod.key, ())):
                if group not in places:
                    places[group] = _places(spec, nodes[group])
                info = next(places[group], None)
                if info is not None:
                    info.assume(PodOwner(pod.key), spec)
                    yield pod.key
                    break


def _places(spec: PodSpec, infos: Iterable[NodeInfo]) -> Iterator[NodeInfo]:
    """Yield a node for one such pod after the other, as long as there is room; the pod is assumed there between."""
    for info in infos:
        if info.admits(spec):
            while info.has_room(spec):
                yield info
