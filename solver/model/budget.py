"""How long planning may take (`Budget`), and how much of that is left (`RunningBudget`, the only counter there is).

Seconds are wall seconds, or CP-SAT's own deterministic ones. Under a deterministic budget the wall clock is never read:
work outside CP-SAT is bounded by counts, and charged at a flat rate, so that the same problem takes the same path on
every machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock

PROPOSE_SECONDS = 0.02
"""What one round of column generation is charged under a deterministic budget."""
_MOST_PLANS = 2000
"""Plans that one running budget pays for under a deterministic budget."""


class Interruption:
    """What ends planning before its time is up, from whichever thread: from then on no time is left (`RunningBudget`),
    and solvers that run are stopped. What was found so far is the plan."""

    def __init__(self) -> None:
        self._happened = False
        self._stops: dict[int, Callable[[], None]] = {}
        self._lock = Lock()

    @property
    def happened(self) -> bool:
        return self._happened

    def interrupt(self) -> None:
        """End planning now."""
        with self._lock:
            self._happened = True
            running = tuple(self._stops.values())
        for stop in running:
            stop()

    @contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop` where the interruption comes while this is open, at once where it has come before."""
        with self._lock:
            self._stops[id(stop)] = stop
            late = self._happened
        if late:
            stop()
        try:
            yield
        finally:
            with self._lock:
                del self._stops[id(stop)]


@dataclass(frozen=True, slots=True)
class Budget:
    """How long planning may take. With `deterministic_seconds` the result does not depend on the machine's speed:
    CP-SAT counts its own operations (`max_deterministic_time`) and the wall clock is not read.

    Seconds are finite and not negative, workers at least 1; 0 seconds leave time for a first plan and its bound only.
    """

    seconds: float = 1.0
    deterministic_seconds: float | None = None
    workers: int = 1
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False, compare=False)
    """Seconds since any moment: what tells how much of `seconds` is used."""
    interruption: Interruption | None = field(default=None, repr=False, compare=False)
    """What may end planning earlier."""

    @property
    def interrupted(self) -> bool:
        """Whether planning is to end before its time is up."""
        return self.interruption is not None and self.interruption.happened

    def part(self, share: float) -> Budget:
        """Return this fraction of the time, of either kind."""
        deterministic = self.deterministic_seconds
        return replace(
            self,
            seconds=share * self.seconds,
            deterministic_seconds=None if deterministic is None else share * deterministic,
        )


@dataclass
class RunningBudget:
    """What is left of a budget, from the moment this is made.

    One plan charges the seconds that it uses (`charge`). Who makes many plans gives each a budget of its own
    (`next_plan`): seconds as far as there are any left, or, under a deterministic budget, a fixed share, up to a number
    of plans.
    """

    granted: Budget
    until: float = 1.0
    """The fraction of the granted time that may be used."""
    plans_left: int = _MOST_PLANS
    _started: float = math.nan
    _charged: float = 0.0

    def __post_init__(self) -> None:
        if math.isnan(self._started):
            self._started = self.granted.clock()

    @property
    def deterministic(self) -> bool:
        return self.granted.deterministic_seconds is not None

    @property
    def total_seconds(self) -> float:
        """The granted seconds, of whichever kind they are."""
        deterministic = self.granted.deterministic_seconds
        return self.granted.seconds if deterministic is None else deterministic

    @property
    def exhausted(self) -> bool:
        """Whether there is nothing left for another plan."""
        return self.plans_left <= 0 or self.granted.interrupted or (not self.deterministic and self.left_seconds() <= 0)

    def elapsed_seconds(self) -> float:
        return self.granted.clock() - self._started

    def left_seconds(self, fraction: float = 1.0) -> float:
        """Return the seconds left of the first `fraction` of the usable time; never negative."""
        if self.granted.interrupted:
            return 0.0
        used = self._charged if self.deterministic else self.elapsed_seconds()
        return max(0.0, self.total_seconds * self.until * fraction - used)

    def part_of_left(self, fraction: float, share: float) -> float:
        """Return the fraction of the usable time at which this share of what is left of the first `fraction` is
        used."""
        usable = self.total_seconds * self.until
        return fraction - (1 - share) * self.left_seconds(fraction) / usable if usable else fraction

    def charge(self, seconds: float) -> None:
        """Count deterministic seconds as used."""
        self._charged += seconds

    def wall_limit(self, fraction: float = 1.0) -> float | None:
        """Return the limit for solvers that know wall time only: None under a deterministic budget."""
        return None if self.deterministic and not self.granted.interrupted else self.left_seconds(fraction)

    def affords(self, plans: int, share: float) -> bool:
        """Return whether there is enough left for so many plans, each of this share of all that was granted."""
        if self.granted.interrupted or self.plans_left < plans:
            return False
        return self.deterministic or self.left_seconds() >= plans * share * self.total_seconds

    def next_plan(self, share: float) -> Budget:
        """Return the budget of one more plan: at most this share of all that was granted."""
        self.plans_left -= 1
        part = self.granted.part(share)
        return part if self.deterministic else replace(part, seconds=min(part.seconds, self.left_seconds()))
