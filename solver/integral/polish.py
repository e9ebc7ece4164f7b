"""A plan of few pods in many classes, improved by annealing the places of its units (`annealing`). Rounding a
fractional plan decides how many nodes there are of each column; of 3,000 pods in 300 classes, what does not fit
together then costs 2 %, and moving single pods mends half of it or more.
"""

from __future__ import annotations

import numpy as np

from solver.columns.pool import Pool, Weighting
from solver.compiled import Threads
from solver.integral.annealing import SECONDS_PER_MOVE, Annealing
from solver.integral.master import Selection
from solver.model import PODS
from solver.model.budget import RunningBudget
from solver.reduction.objective import rounded_cost
from solver.reduction.reduced import Reduced

_LEAST_MOVES = 300
"""Of each unit: with fewer, rounding by trial is better."""
_MOST_OF_A_CLASS = 16
"""Pods of a class on average: with more, columns repeat, and time is better spent on them and on their bound."""
_HOT = (0.01, 0.3)
"""First temperatures, in what a usual unit costs: one keeps most of the plan, one little but its nodes. Either may be
the better one."""


def pays(reduced: Reduced, seconds: float) -> bool:
    """Return whether so many seconds let every unit move often enough: of pods that have no rules."""
    ruled = reduced.rules or reduced.exclusions or reduced.needs or reduced.resources[-1] != PODS
    if ruled or any(row.site is not None for row in reduced.rows) or (reduced.caps < reduced.wanted).any():
        return False
    units = sum(demand.count for demand in reduced.live)
    if units > _MOST_OF_A_CLASS * len(reduced.live):
        return False
    return 0 < units * _LEAST_MOVES * len(_HOT) * SECONDS_PER_MOVE <= seconds


def polished(
    pool: Pool,
    start: Selection,
    weights: Weighting,
    budget: RunningBudget,
    fraction: float,
    least_cost_micros: float,
) -> Selection:
    """Return the best plan found from `start` within the first `fraction` of the budget. Adds its columns."""
    reduced = pool.reduced
    if any(start.unserved.values()):
        return start
    units = {(demand.index, demand.spec): demand.count for demand in reduced.live if demand.count}
    nodes = {pattern: count for pattern, count in zip(pool.patterns, start.nodes, strict=True) if count}
    bound = rounded_cost(least_cost_micros, reduced)
    tries = [Annealing(reduced, weights.node_cost, units) for _ in _HOT]

    def improve(number: int, until: float) -> None:
        tries[number].place_as(nodes)
        tries[number].improve(budget, until, 0, lambda: bound, _HOT[number])

    if budget.deterministic or budget.granted.workers == 1:
        for number in range(len(_HOT)):
            improve(number, budget.part_of_left(fraction, 1 / (len(_HOT) - number)))
    else:
        with Threads(len(_HOT)) as threads:
            list(threads.map(improve, range(len(_HOT)), np.full(len(_HOT), fraction).tolist()))
    found = min(tries, key=lambda each: each.cost_micros).nodes()
    pool.add(found, whole=True)
    return Selection(tuple(found.get(pattern, 0) for pattern in pool.patterns), start.unserved)
