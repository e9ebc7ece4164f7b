"""How long pods wait until they are bound: as a metric, and as the last part of an increment's trace, from its release
until its pods are bound. The trace runs only where there is a tracer (`cagrpc.runtime.tracing`)."""

from __future__ import annotations

from prometheus_client import Histogram
from prometheus_client.registry import Collector

from cagrpc.cluster.view.view import ClusterView
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import IncrementStatus, Phase
from cagrpc.runtime import tracing
from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.clock import EpochClock, MonotonicClock, monotonic
from cagrpc.runtime.controller import Controller
from solver.model.quantities import pluralize

_SECONDS_BUCKETS = (0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 180.0, 300.0, 600.0, 1800.0, 3600.0)
"""From a pod that has room at once, over the minutes of a new node, to one that waits for somebody's quota."""
_EXEMPLAR_SECONDS = 1.0
"""So far apart are exemplars: finding a pod's increment asks every increment that is in flight or has just ended."""


STEP_SECONDS = 0.5
PATIENCE_SECONDS = 600.0
"""Pods that are not bound so long after the release are left to others, and the span ends as failed."""
RELEASED = "released"


class WaitMetrics:
    """Pods that were seen pending by the leader and are bound. The first look at a cluster counts as seen."""

    def __init__(self, fleet: Fleet, clock: MonotonicClock = monotonic) -> None:
        self._fleet = fleet
        self._clock = clock
        self._exemplar_at = float("-inf")
        self._seconds = Histogram(
            "cagrpc_pod_bound_duration_seconds",
            "How long pods took from when they were seen first, pending, until they were bound.",
            buckets=_SECONDS_BUCKETS,
            registry=None,
        )

    def bound(self, uid: str, seconds: float) -> None:
        """Count a pod that is bound, for `ClusterView.subscribe`."""
        now = self._clock()
        exemplar = None
        if now >= self._exemplar_at + _EXEMPLAR_SECONDS:
            increments = self._fleet.snapshot.increments
            served_by = next((each.id for each in reversed(increments) if uid in each.increment.pods), None)
            if served_by is not None:
                self._exemplar_at, exemplar = now, tracing.exemplar(served_by)
        self._seconds.observe(seconds, exemplar)

    def collectors(self) -> tuple[Collector, ...]:
        return (self._seconds,)


class ReleasedTraces(Controller):
    """Ends the traces of increments once their pods are bound."""

    name = "tracing pods of increments"
    every_seconds = STEP_SECONDS
    back_off = BackOff(STEP_SECONDS, 1.0)

    def __init__(self, fleet: Fleet, cluster: ClusterView, clock: EpochClock) -> None:
        """`clock` is the fleet's."""
        self._fleet = fleet
        self._cluster = cluster
        self._clock = clock
        self._began = clock()
        """What was released before, and has no pods to be bound, was another process's."""
        self._watched: set[str] = set()
        """Increments that were in flight, or had pods to be bound, when they were seen last."""
        self._ended: set[str] = set()
        """Increments whose traces have ended."""

    def step(self) -> None:
        increments = self._fleet.snapshot.increments
        known = {each.id for each in increments}
        self._watched &= known
        self._ended &= known
        for each in increments:
            if each.phase.in_flight:
                self._watched.add(each.id)
            elif each.phase is Phase.DONE and each.id not in self._ended:
                self._released(each)

    def _released(self, status: IncrementStatus) -> None:
        pods = [pod for pod in status.increment.pods if isinstance(pod, str)]
        now = self._clock()
        released_at = status.finished_at_seconds or now
        ours = status.id in self._watched or released_at >= self._began
        if not pods or (not ours and now >= released_at + PATIENCE_SECONDS):
            return
        waiting = len(self._cluster.pending(pods))
        late = waiting > 0 and now >= released_at + PATIENCE_SECONDS
        if waiting and not late:
            self._watched.add(status.id)
        elif ours:
            self._watched.discard(status.id)
            self._ended.add(status.id)
            subject = tracing.increment(status.id)
            attributes = {**subject.attributes, "cagrpc.bound": len(self._cluster.nodes_of(pods))}
            error = f"{pluralize(waiting, 'pod')} not bound after {PATIENCE_SECONDS:g} s" if late else ""
            tracing.past(tracing.Past(subject, RELEASED, released_at, now, attributes, error=error))
