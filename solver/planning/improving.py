"""All columns that a plan cheaper than the best one found could use, where they are few: CP-SAT's optimum over them is
the problem's, as if all patterns were known. After Baldacci, Christofides and Mingozzi, An exact algorithm for the
vehicle routing problem based on the set partitioning formulation with additional cuts (2008).

Duals prove that every plan costs at least b. What a plan costs more than b is at least the sum, over its nodes, of what
each costs more than its pods are worth. So no plan that costs less than c has a node that costs c - b more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from solver.columns.generation import CostProof, Generated
from solver.columns.patterns import LeastWorth, Pattern, enumerate_worthy
from solver.columns.pool import Pool, weighting
from solver.integral.master import Master, MasterResult, Selection
from solver.integral.polish import polished
from solver.model.budget import RunningBudget
from solver.model.objective import Goal, ObjectiveStage
from solver.planning.incumbent import Columns, best_over
from solver.planning.progress import SearchProgress
from solver.reduction.dominance import needed_kinds
from solver.reduction.objective import breaks_ties, stages, step_of
from solver.reduction.reduced import Floats, Ints, Reduced
from solver.relaxation.whole_nodes import ENTRIES_A_SECOND, MOST_ENTRIES, least_cost

_MOST_COLUMNS = 5000
"""That CP-SAT is to prove something of in a second or two."""
_MOST_STEPS, _STEPS_A_SECOND = 400_000, 400_000
_LIST_SHARE, _WHOLE_SHARE, _POLISH_SHARE, _TRY_SHARE = 0.1, 0.4, 0.85, 0.5
"""Of the time that is left: for listing them, for a bound with whole nodes, for annealing places, and for a try that
proves nothing."""
_ROUNDING = 1e-9


def close(
    pool: Pool,
    start: Selection,
    known: Columns,
    floors: Mapping[ObjectiveStage, int],
    budget: RunningBudget,
    fraction: float,
    progress: SearchProgress,
) -> tuple[Pool, MasterResult, bool]:
    """Return the best selection found over the pool and over columns that a plan cheaper than `start` could use, with
    bounds, and whether these are the problem's, since these columns were all. Otherwise they are `floors`, or better
    ones. Where columns are too many, what is found with some of them may make the others few."""
    closing = _Closing(pool.reduced, known.made, budget, fraction)
    columns, complete = closing.columns(pool, start, floors)
    if not complete:
        floors = closing.with_whole_nodes(pool, start, floors)
        progress.proven(floors)
    if known.polishes and not complete and closing.is_open(pool, start, floors):
        until = budget.part_of_left(fraction, _POLISH_SHARE)
        found = polished(pool, start, weighting(pool.reduced), budget, until, known.least_cost_micros)
        start = best_over(pool, found, start)
        progress.found(pool, start)
        columns, complete = closing.columns(pool, start, floors)
    result = MasterResult(start, floors)
    while True:
        before = result.selection.objective(pool, closing.order)
        for more in [columns] if complete else [(), columns] if columns else [()]:
            pool, start = _with_columns(pool, result.selection, more, whole=complete)
            until = fraction if complete or not columns else budget.part_of_left(fraction, _TRY_SHARE)
            result = Master(pool, start).minimise(closing.order, floors, budget, until, progress.listener(pool))
            better = result.selection.objective(pool, closing.order) < before
            if better:
                break
        if complete or not columns or not better or budget.left_seconds(fraction) <= 0:
            return pool, result if complete else replace(result, bounds=floors), complete
        columns, complete = closing.columns(pool, result.selection, floors)


@dataclass(frozen=True)
class _Closing:
    """What can be proven of plans that are cheaper than a selection."""

    reduced: Reduced
    made: Generated | None
    budget: RunningBudget
    fraction: float

    @cached_property
    def order(self) -> Sequence[ObjectiveStage]:
        return stages(self.reduced)

    @cached_property
    def cost(self) -> ObjectiveStage:
        """Of the one tier."""
        (found,) = (stage for stage in self.order if stage.goal is Goal.COST)
        return found

    def is_open(self, pool: Pool, start: Selection, floors: Mapping[ObjectiveStage, int]) -> bool:
        """Whether a better selection than `start` is not ruled out."""
        values = zip(self.order, start.objective(pool, self.order), strict=True)
        return any(value > floors[stage] for stage, value in values if not breaks_ties(stage))

    def columns(
        self, pool: Pool, start: Selection, floors: Mapping[ObjectiveStage, int]
    ) -> tuple[Sequence[Pattern], bool]:
        """Return maximal columns that a plan cheaper than `start` could use, and whether these are all."""
        spare = self._spare(pool, start, floors)
        if self.made is None or spare is None:
            return (), False
        reduced, proof = self.reduced, self.made.proof
        steps = min(_MOST_STEPS, int(_LIST_SHARE * self.budget.left_seconds(self.fraction) * _STEPS_A_SECOND))
        self.budget.charge(steps / _STEPS_A_SECOND)
        kinds = self._affordable(proof, spare).tolist()
        prices = {kind: _prices(reduced, kind, self.made) for kind in kinds}
        worth = LeastWorth(proof.pods, proof.nodes - spare, prices)
        return enumerate_worthy(reduced, _MOST_COLUMNS, kinds, steps, worth)

    def with_whole_nodes(
        self, pool: Pool, start: Selection, floors: Mapping[ObjectiveStage, int]
    ) -> Mapping[ObjectiveStage, int]:
        """Return the floors, with a closer one for the cost where there are few enough kinds and rows to prove it."""
        spare = self._spare(pool, start, floors)
        if self.made is None or spare is None:
            return floors
        kinds = self._affordable(self.made.proof, spare)
        seconds = _WHOLE_SHARE * self.budget.left_seconds(self.fraction)
        if np.count_nonzero(self.reduced.fits[kinds]) > min(MOST_ENTRIES, ENTRIES_A_SECOND * seconds):
            return floors
        reached = start.objective(pool, [self.cost])[0]
        until = self.budget.part_of_left(self.fraction, _WHOLE_SHARE)
        return {**floors, self.cost: least_cost(self.reduced, kinds, reached, floors[self.cost], self.budget, until)}

    def _spare(self, pool: Pool, start: Selection, floors: Mapping[ObjectiveStage, int]) -> float | None:
        """Return what a plan cheaper than `start` costs at most beyond what the duals prove; None where there is none,
        or where nothing but the cost of serving every pod is proven."""
        if self.made is None or not self.made.proof.least_cost_micros:
            return None
        values = dict(zip(self.order, start.objective(pool, self.order), strict=True))
        others = [stage for stage in self.order if stage is not self.cost and not breaks_ties(stage)]
        if any(values[stage] > floors[stage] for stage in others):
            return None
        proven = self.made.proof.least_cost_micros * (1 - _ROUNDING)
        spare = values[self.cost] - step_of(self.cost, self.reduced) - proven
        return spare if values[self.cost] > floors[self.cost] and spare >= 0 else None

    def _affordable(self, proof: CostProof, spare: float) -> Ints:
        """Return the kinds of which a plan may have nodes that costs so much more than the bound."""
        kinds = needed_kinds(self.reduced)
        return kinds[proof.dearer[kinds] <= spare]


def _with_columns(pool: Pool, start: Selection, found: Sequence[Pattern], *, whole: bool) -> tuple[Pool, Selection]:
    """Return the columns found with those of the pool, or, where they are all that matter, with those in use; and the
    selection over them."""
    used = dict(zip(pool.patterns, start.nodes, strict=True))
    columns = Pool(pool.reduced)
    columns.add([pattern for pattern, nodes in used.items() if nodes or not whole])
    columns.add(found)
    return columns, Selection(tuple(used.get(each, 0) for each in columns.patterns), start.unserved, start.units)


def _prices(reduced: Reduced, kind: int, made: Generated) -> Floats:
    """Return prices of the kind's resources: those it was asked with last, or equal parts of what a node costs."""
    free = np.array(reduced.kinds[kind].free, dtype=np.float64)
    even = np.divide(made.proof.nodes[kind], free * free.size, out=np.zeros(free.size), where=free > 0)
    return made.resource_prices.get(kind, even)
