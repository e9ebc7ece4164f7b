"""How much of the budget is left: wall seconds, or CP-SAT's own deterministic ones.

Under a deterministic budget the wall clock is never read: work outside CP-SAT is bounded by counts, and charged at a
flat rate, so that the same problem takes the same path on every machine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

PROPOSE_SECONDS = 0.02
"""What one round of column generation is charged under a deterministic budget."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How long planning may take. With `deterministic_seconds` the result does not depend on the machine's speed:
    CP-SAT counts its own operations (`max_deterministic_time`) and the wall clock is not read.

    Seconds are finite and not negative, workers at least 1; 0 seconds leave time for a first plan only.
    """

    seconds: float = 1.0
    deterministic_seconds: float | None = None
    workers: int = 1

    def part(self, share: float) -> Budget:
        """This fraction of the time, of either kind."""
        counted = self.deterministic_seconds
        return replace(
            self,
            seconds=share * self.seconds,
            deterministic_seconds=None if counted is None else share * counted,
        )


@dataclass
class Meter:
    budget: Budget
    _started: float = field(default_factory=time.perf_counter)
    _charged: float = 0.0

    @property
    def deterministic(self) -> bool:
        return self.budget.deterministic_seconds is not None

    @property
    def total_seconds(self) -> float:
        """Of the budget, of whichever kind it is."""
        deterministic = self.budget.deterministic_seconds
        return self.budget.seconds if deterministic is None else deterministic

    def elapsed_seconds(self) -> float:
        return time.perf_counter() - self._started

    def left_seconds(self, fraction: float = 1.0) -> float:
        """Seconds left of the first `fraction` of the budget; never negative."""
        if self.budget.deterministic_seconds is not None:
            return max(0.0, self.budget.deterministic_seconds * fraction - self._charged)
        return max(0.0, self.budget.seconds * fraction - self.elapsed_seconds())

    def charge(self, seconds: float) -> None:
        """Deterministic seconds that were used."""
        self._charged += seconds

    def wall_limit(self, fraction: float = 1.0) -> float | None:
        """For solvers that know wall time only: None under a deterministic budget."""
        return None if self.deterministic else self.left_seconds(fraction)
