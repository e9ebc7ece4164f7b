"""How far planning is, for whoever waits for a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from solver.model.proof import gap


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """The best plan so far, before it is checked, and what is proven of all plans."""

    unserved: int
    """Pods without a place."""
    cost_usd_per_hour: float
    lower_bound_usd_per_hour: float
    """No plan that serves as much costs less; 0 as long as nothing is proven."""

    @property
    def gap(self) -> float | None:
        """The relative gap, as in a certificate: None as long as pods have no place, or nothing is proven."""
        return None if self.unserved else gap(self.cost_usd_per_hour, self.lower_bound_usd_per_hour)


TellProgress = Callable[[PlanProgress], None]
"""Called from whichever thread of the planner has found something; what it does is no part of the plan."""
