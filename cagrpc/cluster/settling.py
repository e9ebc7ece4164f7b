"""Pods whose increment has been let go and that the scheduler has not bound yet: for a short while their room is
theirs, and nothing else is opened for them. Until when that is is said here for all; the room of pods that have a
placement is the planner loop's business (`planner.room`), that of the autoscaler's pods, which have none, is found
here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Protocol

from cagrpc.cluster.node_info import fits
from cagrpc.cluster.state import ClusterState, PodRef
from cagrpc.errors import Unavailable
from cagrpc.fleet.model import FleetSnapshot, IncrementStatus, Phase
from solver.model import PODS, Node, PodSpec

SETTLE_SECONDS = 30.0
"""So long after its increment was let go a pod that still waits is left to the scheduler, which tries it again at most
10 s after a node has changed."""


def let_go_within(seconds: float, status: IncrementStatus, now: float) -> bool:
    """Whether the increment was let go less than so many seconds before `now`, in seconds since the epoch."""
    finished_at = status.finished_at_seconds
    return status.phase is Phase.DONE and finished_at is not None and now < finished_at + seconds


class SeesCluster(Protocol):
    """What `view.ClusterView` offers of it."""

    def pod_of(self, uid: str) -> PodRef | None: ...

    def state(self, *, without: AbstractSet[str] = ...) -> ClusterState: ...


class Settling:
    """Thread-safe."""

    def __init__(self, cluster: SeesCluster, clock: Callable[[], float]) -> None:
        """`clock` gives seconds since the epoch, as the fleet's does."""
        self._cluster = cluster
        self._clock = clock

    def __call__(self, snapshot: FleetSnapshot) -> AbstractSet[str]:
        """Keys of pods that are still pending, of an increment that was let go less than `SETTLE_SECONDS` ago, and that
        have room, all together, on nodes of its groups. Nobody while the cluster is not known."""
        now = self._clock()
        groups: dict[str, set[str]] = {}  # pod -> groups of its increments
        for status in snapshot.increments:
            if let_go_within(SETTLE_SECONDS, status, now):
                for pod in status.increment.pods:
                    groups.setdefault(pod, set()).update(status.increment.deltas)
        try:
            pending = {pod for pod in groups if self._cluster.pod_of(pod) is not None}
            state = self._cluster.state() if pending else None
        except Unavailable:
            return frozenset()
        return frozenset(_with_room(state, snapshot, {pod: groups[pod] for pod in pending})) if state else frozenset()


def _with_room(state: ClusterState, snapshot: FleetSnapshot, groups: dict[str, set[str]]) -> Iterator[str]:
    nodes: defaultdict[str, list[Node]] = defaultdict(list)  # with what is left on them, by group
    for each in state.nodes:
        group = snapshot.group_of_instance.get(each.provider_id)
        if group is not None and each.ready:
            nodes[group].append(each.node)
    for waiting in state.waiting:
        places: dict[str, Iterator[bool]] = {}
        for pod in waiting.pods:
            for group in sorted(groups.get(pod.uid, ())):
                if group not in places:
                    places[group] = _places(waiting.pod_set.spec, nodes[group])
                if next(places[group], False):
                    yield pod.uid
                    break


def _places(spec: PodSpec, nodes: list[Node]) -> Iterator[bool]:
    """Takes room for one such pod after the other, as long as there is some."""
    for number, node in enumerate(nodes):
        left = node
        while fits(spec, left):
            free = dict(left.free)
            for resource, amount in (*spec.requests, (PODS, 1)):
                free[resource] = free.get(resource, 0) - amount
            nodes[number] = left = replace(left, free=free)
            yield True
