"""How much of the budget is left: wall seconds, or CP-SAT's own deterministic ones.

Under a deterministic budget the wall clock is never read: work outside CP-SAT is bounded by counts, and charged at a
flat rate, so that the same problem takes the same path on every machine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from solver.model import Budget

PROPOSE_SECONDS = 0.02
"""What one round of column generation is charged under a deterministic budget."""


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
