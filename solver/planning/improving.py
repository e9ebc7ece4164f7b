"""All columns that a plan cheaper than the best one found could use, where they are few: CP-SAT's optimum over them is
the problem's, as if all patterns were known. After Baldacci, Christofides and Mingozzi, An exact algorithm for the
vehicle routing problem based on the set partitioning formulation with additional cuts (2008).

Duals prove that every plan costs at least b. What a plan costs more than b is at least the sum, over its nodes, of what
each costs more than its pods are worth. So no plan that costs less than c has a node that costs c - b more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from solver.columns.generation import Generated
from solver.columns.patterns import LeastWorth, Pattern, enumerate_worthy
from solver.columns.pool import Pool
from solver.integral.master import Master, MasterResult, Selection
from solver.model.budget import RunningBudget
from solver.model.objective import Goal, ObjectiveStage
from solver.planning.bounds import cost_step
from solver.planning.progress import SearchProgress
from solver.reduction.dominance import needed_kinds
from solver.reduction.objective import breaks_ties, stages
from solver.reduction.reduced import Floats, Reduced

_MOST_COLUMNS = 5000
"""That CP-SAT is to prove something of in a second or two."""
_MOST_STEPS, _STEPS_A_SECOND = 400_000, 400_000
_SHARE = 0.1
"""Of the time that is left, for finding them."""
_TRY_SHARE = 0.5
"""Of the time that is left, for a try that proves nothing."""
_ROUNDING = 1e-9


def close(
    pool: Pool,
    start: Selection,
    made: Generated | None,
    floors: Mapping[ObjectiveStage, int],
    budget: RunningBudget,
    fraction: float,
    progress: SearchProgress,
) -> tuple[Pool, MasterResult, bool]:
    """Return the best selection found over the pool and over columns that a plan cheaper than `start` could use, and
    whether these were all, so that the bounds are the problem's. Where they are too many, what is found with some of
    them may make the others few."""
    order, result = stages(pool.reduced), MasterResult(start, floors)
    while True:
        before = result.selection.objective(pool, order)
        found, complete = improving(pool, result.selection, made, floors, budget, fraction)
        for columns in [found] if complete else [(), found] if found else [()]:
            pool, start = _with_columns(pool, result.selection, columns, whole=complete)
            until = fraction if complete or not found else budget.part_of_left(fraction, _TRY_SHARE)
            result = Master(pool, start).minimise(order, floors, budget, until, progress.listener(pool))
            better = result.selection.objective(pool, order) < before
            if better:
                break
        if complete or not found or not better or budget.left_seconds(fraction) <= 0:
            return pool, result, complete


def improving(
    pool: Pool,
    start: Selection,
    made: Generated | None,
    floors: Mapping[ObjectiveStage, int],
    budget: RunningBudget,
    fraction: float,
) -> tuple[Sequence[Pattern], bool]:
    """Return maximal columns that a plan cheaper than `start` could use, and whether these are all. None where nothing
    but the cost of serving every pod is proven."""
    reduced = pool.reduced
    order = stages(reduced)
    values = dict(zip(order, start.objective(pool, order), strict=True))
    others = [stage for stage in order if stage.goal is not Goal.COST and not breaks_ties(stage)]
    if made is None or not made.proof.least_cost_micros or any(values[stage] > floors[stage] for stage in others):
        return (), False
    (cost,) = (stage for stage in order if stage.goal is Goal.COST)
    spare = values[cost] - cost_step(reduced) - made.proof.least_cost_micros * (1 - _ROUNDING)
    if values[cost] <= floors[cost] or spare < 0:
        return (), False
    steps = min(_MOST_STEPS, int(_SHARE * budget.left_seconds(fraction) * _STEPS_A_SECOND))
    budget.charge(steps / _STEPS_A_SECOND)
    kinds = needed_kinds(reduced).tolist()
    prices = {kind: _prices(reduced, kind, made) for kind in kinds}
    worth = LeastWorth(made.proof.pods, made.proof.nodes - spare, prices)
    return enumerate_worthy(reduced, _MOST_COLUMNS, kinds, steps, worth)


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
