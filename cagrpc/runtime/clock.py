"""The time that deadlines are counted by: it only grows, and a wall clock that is set moves nothing."""

from __future__ import annotations

import time
from collections.abc import Callable


def monotonic() -> float:
    """Seconds that also pass while the machine sleeps, where there is such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class SteadyClock:
    """Seconds since the epoch, as the wall clock had them when this was made; from then on they grow as the monotonic
    clock does. What another process has written is by its own wall clock: see `increments.taken_over`."""

    def __init__(self, wall: Callable[[], float] = time.time, timer: Callable[[], float] = monotonic) -> None:  # noqa: TID251
        self._timer = timer
        self._zero = wall() - timer()

    def __call__(self) -> float:
        return self._zero + self._timer()
