"""How long to wait before what failed is tried again: one rule for controllers, queues, watches and requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cagrpc.runtime.clock import MonotonicClock

LONGEST_SECONDS = 30.0
LONGEST_REST_SECONDS = 60.0
_SHARE_IN_VAIN = 0.2
"""Of the time, for work that comes to nothing."""
_MOST_DOUBLINGS = 16


def rest_seconds(worked_seconds: float) -> float:
    """Return how long work that took so long in vain rests, so that others have most of the time; no longer than a
    minute, since it may be of use by then."""
    return min(worked_seconds * (1 / _SHARE_IN_VAIN - 1), LONGEST_REST_SECONDS)


def no_jitter() -> float:
    """Wait for the full time: what one thread alone tries again needs no spreading."""
    return 1.0


@dataclass(frozen=True, slots=True)
class BackOff:
    """Twice as long after each failure in a row, up to a limit.

    `jitter()` is a number from 0 to 1 and chooses between half of the time and all of it, so that many who failed
    together (`random.random`) do not try again together.
    """

    first_seconds: float
    longest_seconds: float = LONGEST_SECONDS
    jitter: Callable[[], float] = no_jitter

    def seconds(self, failures: int) -> float:
        """Return the wait after so many failures in a row; after none it is half of the first."""
        full = min(self.longest_seconds, self.first_seconds * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
        return full * (0.5 + 0.5 * self.jitter())


class Retry:
    """When something may be tried again. For one thread."""

    def __init__(self, back_off: BackOff, clock: MonotonicClock) -> None:
        self._back_off = back_off
        self._clock = clock
        self._failures = 0
        self._not_before = float("-inf")

    @property
    def due(self) -> bool:
        """Return whether it may be tried now."""
        return self._clock() >= self._not_before

    def failed(self) -> None:
        """Wait longer than after the failure before this one."""
        self._failures += 1
        self._not_before = self._clock() + self._back_off.seconds(self._failures)

    def worked(self) -> None:
        """Count failures from none again."""
        self._failures = 0
