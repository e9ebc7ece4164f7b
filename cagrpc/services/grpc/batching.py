"""One choice for pods that arrive together. The cluster-autoscaler decides on what is pending in each of its loops,
every 10 s; an empty answer makes it wait for the next one. So Karpenter waits until no pod has come for a while."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

from cagrpc.api.core.pods import Pod
from cagrpc.controllers.settings import BatchSettings
from cagrpc.runtime.clock import EpochClock
from solver.model.quantities import pluralize

_FINISHED_SECONDS = 600.0
"""A pod that is still offered so long after it was decided on is of no batch any more."""
_MOST_PODS = 200_000


class Batching:
    """Pods are by key, and each waits for itself, whoever else asks meanwhile. Thread-safe."""

    def __init__(self, settings: BatchSettings, clock: EpochClock) -> None:
        self._settings = settings
        self._clock = clock
        self._vetoed: dict[str, float] = {}
        """When they were vetoed first,"""
        self._decided: dict[str, float] = {}
        """and when they were decided on, oldest first."""
        self._lock = Lock()

    def why_wait(self, pods: Iterable[Pod]) -> str:
        """Return why no choice is made yet among options for these pods, for people; empty where one is. While pods of
        a batch that is decided on are still offered, no other is waited for."""
        found = {pod.key: pod.created_at_seconds for pod in pods}
        now, window = self._clock(), self._settings.window_seconds
        with self._lock:
            _forget(self._vetoed, now - window - _FINISHED_SECONDS)
            _forget(self._decided, now - _FINISHED_SECONDS)
            if self._decided.keys() & found.keys():
                return ""
            since = min((self._vetoed[key] for key in found if key in self._vetoed), default=now)
            young = sum(now - created < self._settings.idle_seconds for created in found.values())
            if not young or now - since >= window:
                for key in found:
                    self._vetoed.pop(key, None)
                    self._decided[key] = now
                return ""
            for key in found:
                self._vetoed.setdefault(key, now)
        return f"waits for more pods: {pluralize(young, 'pod')} came just now; for {since + window - now:.0f} s at most"

    def why_later(self, served: int, wanted: Iterable[Pod]) -> str:
        """Return why an option comes later that counts so many pods again for which nodes are on their way; empty where
        it does not. Until these nodes are there and the pods are nominated to them, the autoscaler packs all anew, and
        its estimate is for those as well that find no room then. No pod waits for that once it is as old as the
        window."""
        if not served:
            return ""
        oldest = min((pod.created_at_seconds for pod in wanted), default=0)
        left = oldest + self._settings.window_seconds - self._clock()
        if left <= 0:
            return ""
        counted = f"counts {pluralize(served, 'pod')} for which nodes are already on their way"
        return f"{counted}; it waits for them, for {left:.0f} s at most"


def _forget(times: dict[str, float], before: float) -> None:
    while times and (next(iter(times.values())) < before or len(times) > _MOST_PODS):
        del times[next(iter(times))]
