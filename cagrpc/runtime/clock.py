"""Two clocks that are never mixed up: seconds since the epoch, for what is written for others, and seconds that only
grow, for deadlines, pauses and back-off. mypy tells them apart where they are handed over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NewType

EpochSeconds = NewType("EpochSeconds", float)
"""Since 1970, UTC: times in statuses, Events, the journal and JSON."""

MonotonicSeconds = NewType("MonotonicSeconds", float)
"""Since some moment of this machine: only differences mean something, and only in this process."""

EpochClock = Callable[[], EpochSeconds]
MonotonicClock = Callable[[], MonotonicSeconds]


def epoch() -> EpochSeconds:
    """Return the wall clock's time. It may be set, also backwards."""
    return EpochSeconds(time.time())  # noqa: TID251 - the one place


def monotonic() -> MonotonicSeconds:
    """Return seconds that also pass while the machine sleeps, where there is such a clock."""
    return MonotonicSeconds(
        time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
    )


class SteadyClock:
    """Seconds since the epoch, as the wall clock had them when this was made; from then on they grow as the monotonic
    clock does. What another process has written is by its own wall clock: see `fleet.lifecycle.taken_over`."""

    def __init__(self, wall: EpochClock = epoch, timer: MonotonicClock = monotonic) -> None:
        self._timer = timer
        self._zero = wall() - timer()

    def pass_time(self, seconds: float) -> None:
        """Be so much later from now on, as if it had been waited: where all that happens follows from this clock."""
        self._zero += seconds

    def __call__(self) -> EpochSeconds:
        return EpochSeconds(self._zero + self._timer())
