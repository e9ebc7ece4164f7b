"""One choice for pods that arrive together. The cluster-autoscaler decides on what is pending in each of its loops,
every 10 s; an empty answer makes it wait for the next one. So Karpenter waits until no pod has come for a while."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from threading import Lock

from cagrpc.api.core.pods import Pod
from cagrpc.controllers.settings import BatchSettings
from cagrpc.runtime.clock import EpochClock
from solver.model.quantities import pluralize


@dataclass(frozen=True, slots=True)
class _Batch:
    began_at_seconds: float
    pods: AbstractSet[str] = frozenset()
    """Those that are decided on; empty as long as the batch is open."""


class Batching:
    """Thread-safe. Pods are by key."""

    def __init__(self, settings: BatchSettings, clock: EpochClock) -> None:
        self._settings = settings
        self._clock = clock
        self._batch: _Batch | None = None
        self._lock = Lock()

    def why_wait(self, pods: Iterable[Pod]) -> str:
        """Return why no choice is made yet among options for these pods, for people; empty where one is. While pods of
        a batch that is decided on are still offered, no other is waited for."""
        found = {pod.key: pod.created_at_seconds for pod in pods}
        now = self._clock()
        with self._lock:
            if self._batch is not None and self._batch.pods & found.keys():
                return ""
            if self._batch is None or self._batch.pods:
                self._batch = _Batch(now)
            left = self._batch.began_at_seconds + self._settings.window_seconds - now
            young = sum(now - created < self._settings.idle_seconds for created in found.values())
            if not young or left <= 0:
                self._batch = _Batch(now, frozenset(found))
                return ""
        return f"waits for more pods: {pluralize(young, 'pod')} came just now; for {left:.0f} s more at most"
