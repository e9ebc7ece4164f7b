"""The time until something that went wrong is tried again."""

from __future__ import annotations

from collections.abc import Callable

LONGEST_SECONDS = 30.0


class BackOff:
    """Twice as long after each failure in a row, at most half a minute. For one thread."""

    def __init__(self, clock: Callable[[], float], first_seconds: float) -> None:
        self._clock = clock
        self._first_seconds = first_seconds
        self._seconds = 0.0
        self._until = float("-inf")

    @property
    def over(self) -> bool:
        """Whether it may be tried."""
        return self._clock() >= self._until

    def failed(self) -> None:
        self._seconds = min(LONGEST_SECONDS, max(self._first_seconds, 2 * self._seconds))
        self._until = self._clock() + self._seconds

    def worked(self) -> None:
        """The next failure is the first one again."""
        self._seconds = 0.0
