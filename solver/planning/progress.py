"""What a search tells while it runs: its best selection, and the bound on the cost. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from solver.columns.pool import Pool
from solver.integral.master import Selection
from solver.model.objective import Goal, ObjectiveStage
from solver.model.plan import PlanProgress, TellProgress
from solver.reduction.objective import stages
from solver.reduction.reduced import MICROS


class SearchProgress:
    """Tells each improvement once, and nothing that is worse than what was told before."""

    def __init__(self, tell: TellProgress | None = None) -> None:
        self._tell = tell
        self._best: tuple[int, int] | None = None
        self._bound_micros = 0

    def found(self, pool: Pool, selection: Selection) -> None:
        """A selection that may be the best so far."""
        if self._tell is None:
            return
        order = stages(pool.reduced)
        values = dict(zip(order, selection.objective(pool, order), strict=True))
        reached = _sum(values, Goal.UNSERVED), _sum(values, Goal.COST)
        if self._best is None or reached < self._best:
            self._best = reached
            self._say()

    def listener(self, pool: Pool) -> Callable[[Selection], None] | None:
        """Return what is told selections over this pool; None where nobody listens."""
        return None if self._tell is None else lambda selection: self.found(pool, selection)

    def proven(self, bounds: Mapping[ObjectiveStage, int]) -> None:
        """Bounds that hold for the problem itself."""
        self.costs_at_least(_sum(bounds, Goal.COST))

    def costs_at_least(self, micros: float) -> None:
        """A bound on the cost, in millionths of $/h."""
        if self._tell is not None and int(micros) > self._bound_micros:
            self._bound_micros = int(micros)
            self._say()

    def _say(self) -> None:
        if self._best is not None and self._tell is not None:
            unserved, cost = self._best
            self._tell(PlanProgress(unserved, cost / MICROS, min(cost, self._bound_micros) / MICROS))


SILENT = SearchProgress()
"""For searches whose plans are not the answer."""


def _sum(values: Mapping[ObjectiveStage, int], goal: Goal) -> int:
    return sum(value for stage, value in values.items() if stage.goal is goal)
