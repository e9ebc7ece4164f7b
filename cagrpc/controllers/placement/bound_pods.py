"""Metrics of pods that wait: how long, until they are bound."""

from __future__ import annotations

from prometheus_client import Histogram
from prometheus_client.registry import Collector

from cagrpc.fleet.fleet import Fleet
from cagrpc.runtime import tracing
from cagrpc.runtime.clock import MonotonicClock, monotonic

_SECONDS_BUCKETS = (0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 180.0, 300.0, 600.0, 1800.0, 3600.0)
"""From a pod that has room at once, over the minutes of a new node, to one that waits for somebody's quota."""
_EXEMPLAR_SECONDS = 1.0
"""So far apart are exemplars: finding a pod's increment asks every increment that is in flight or has just ended."""


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
        """Count a pod that is bound, for `ClusterView.tell`."""
        now = self._clock()
        exemplar = None
        if now >= self._exemplar_at + _EXEMPLAR_SECONDS:
            increments = self._fleet.snapshot.increments
            served_by = next((each.id for each in reversed(increments) if uid in each.increment.pods), None)
            if served_by is not None:
                self._exemplar_at, exemplar = now, tracing.exemplar(served_by)
        self._seconds.observe(seconds, exemplar)

    def collectors(self) -> tuple[Collector, ...]:
        """Return them for a registry."""
        return (self._seconds,)
