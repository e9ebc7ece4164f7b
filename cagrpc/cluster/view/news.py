"""Which namespaces want something new of planning, and since when. Not for several threads."""

from __future__ import annotations

from collections.abc import Callable

_MOST_NAMESPACES = 1000
"""Beyond that the oldest news is forgotten: whatever waits is planned with the news of any."""


class PlanningTriggers:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at: dict[str, float] = {}

    def of(self, namespace: str) -> None:
        """A pod waits there that was not expected, or more pods are expected than before."""
        self._at.pop(namespace, None)
        self._at[namespace] = self._clock()
        if len(self._at) > _MOST_NAMESPACES:
            del self._at[next(iter(self._at))]

    def latest(self) -> dict[str, float]:
        """Of each namespace the latest, in the clock's seconds; the newest last."""
        return dict(self._at)
