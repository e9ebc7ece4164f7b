"""Planning triggers: the namespaces with new demand, and since when. Not thread-safe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cagrpc.runtime.clock import MonotonicClock

_MOST_NAMESPACES = 1000
"""Beyond that the oldest trigger is dropped: a round that any trigger starts plans all waiting pods."""


class PlanningTriggers:
    def __init__(self, clock: MonotonicClock) -> None:
        self._clock = clock
        self._at: dict[str, float] = {}
        self._is_known = False
        self._told_until = float("-inf")

    def record(self, namespace: str, at: float | None = None) -> None:
        """Record new demand: a waiting pod that was not expected, or more expected pods than before. What is of no
        namespace has an empty one. It came now, or `at` a time (of the clock) before it could be told: that is news in
        any case, and counts as now where later news has been told before, of which a round may know."""
        if self._is_known and at is None:
            return
        self._at.pop(namespace, None)
        self._at[namespace] = at if at is not None and at > self._told_until else self._clock()
        if len(self._at) > _MOST_NAMESPACES:
            del self._at[next(iter(self._at))]

    @contextmanager
    def known(self, is_known: bool) -> Iterator[None]:
        """What is found within is part of the state that is being made, and no news, if `is_known`."""
        self._is_known = is_known
        try:
            yield
        finally:
            self._is_known = False

    def latest(self) -> dict[str, float]:
        """Return each namespace's latest trigger in the clock's seconds."""
        self._told_until = max(self._at.values(), default=self._told_until)
        return dict(self._at)
