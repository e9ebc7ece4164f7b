"""Waiting for somebody who serves many, one after the other: a controller that creates pods, the scheduler that binds
them. How long one turn takes depends on how fast it is and on how many come first, so patience is counted from its last
progress, whoever it was made for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

DEADLINE_SECONDS = 60.0
"""By default, after so long without progress nobody is waited for."""
PASSED_OVER = 2
"""Who was not served while so many times as many as were before it were is passed over,"""
LONGEST_FACTOR = 10.0
"""but not earlier than after so many times the deadline: not everything that comes before is known."""


@dataclass(slots=True)
class Progress:
    """What somebody has done so far."""

    served: int = 0
    at: float = float("-inf")
    """When it served somebody last; of the clock of who asks."""

    def serve(self, now: float) -> None:
        """Note that one was served."""
        self.served, self.at = self.served + 1, now


@dataclass(slots=True)
class Turn:
    """The turn of one that waits to be served."""

    since: float
    """When it was served last, or began to wait."""
    served: int
    """How many had been served by then."""
    before: int = 0
    """How many, at most, have waited beside it since."""

    def is_over(self, progress: Progress, deadline_seconds: float, now: float, *, least_seconds: float = 0.0) -> bool:
        """Return whether it is not to be waited for any longer: nobody has been served for `deadline_seconds`, or it
        was passed over. With `least_seconds` it is waited for so long in any case, and never for much longer."""
        if now < self.since + least_seconds:
            return False
        if least_seconds and now >= self.since + LONGEST_FACTOR * least_seconds:
            return True
        if now < max(self.since, progress.at) + deadline_seconds:
            passed_over = progress.served - self.served > PASSED_OVER * self.before
            return passed_over and now >= self.since + LONGEST_FACTOR * deadline_seconds
        return True
