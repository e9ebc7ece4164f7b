"""Pods whose increment has been let go and that the scheduler has not bound yet: for a short while their room is
theirs, and nothing else is opened for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from threading import Lock
from typing import Protocol

from cagrpc.controllers.scale_down_room import fits
from cagrpc.controllers.state import ClusterNode, ClusterState, PodRef
from cagrpc.errors import Unavailable
from cagrpc.fleet.model import FleetSnapshot, Increment, Phase

SETTLE_SECONDS = 30.0
"""So long after its increment was let go a pod that still waits is left to the scheduler, which tries it again at most
10 s after a node has changed."""


class SeesCluster(Protocol):
    """What `view.ClusterView` offers of it."""

    def pod_of(self, uid: str) -> PodRef | None: ...

    def state(self, *, without: AbstractSet[str] = ...) -> ClusterState: ...


class Settling:
    """Thread-safe."""

    def __init__(self, cluster: SeesCluster, clock: Callable[[], float]) -> None:
        """`clock` gives seconds that only grow."""
        self._cluster = cluster
        self._clock = clock
        self._seen_done: dict[str, float] = {}  # increment -> when it was first seen done
        self._lock = Lock()

    def __call__(self, snapshot: FleetSnapshot) -> AbstractSet[str]:
        """Keys of pods that are still pending, of an increment that was seen done less than `SETTLE_SECONDS` ago, and
        for which a node of one of its groups has room. Nobody while the cluster is not known."""
        groups: dict[str, set[str]] = {}  # pod -> groups of its increments
        for increment in self._just_done(snapshot):
            for pod in increment.pods:
                groups.setdefault(pod, set()).update(increment.deltas)
        try:
            pending = {pod for pod in groups if self._cluster.pod_of(pod) is not None}
            state = self._cluster.state() if pending else None
        except Unavailable:
            return frozenset()
        return frozenset(_with_room(state, snapshot, {pod: groups[pod] for pod in pending})) if state else frozenset()

    def _just_done(self, snapshot: FleetSnapshot) -> list[Increment]:
        now = self._clock()
        done = {status.id: status.increment for status in snapshot.increments if status.phase is Phase.DONE}
        with self._lock:
            self._seen_done = {id_: self._seen_done.get(id_, now) for id_ in done}
            return [each for id_, each in done.items() if now - self._seen_done[id_] < SETTLE_SECONDS]


def _with_room(state: ClusterState, snapshot: FleetSnapshot, groups: dict[str, set[str]]) -> Iterable[str]:
    nodes: dict[str, list[ClusterNode]] = {}
    for node in state.nodes:
        group = snapshot.group_of_instance.get(node.provider_id)
        if group is not None and node.ready:
            nodes.setdefault(group, []).append(node)
    for waiting in state.waiting:
        room: dict[str, bool] = {}
        for pod in waiting.pods:
            for group in groups.get(pod.uid, ()):
                if group not in room:
                    room[group] = any(fits(waiting.pod_set.spec, node.node) for node in nodes.get(group, ()))
                if room[group]:
                    yield pod.uid
                    break
