"""Plans of problems whose pods constrain each other, where patterns are too many to list: rows are chosen first, then
every unit gets a place, and places are improved by simulated annealing while bounds are sought beside it.

Some rule tells nearly every pod from the next one here, so that columns of a master would be used once each; whereas a
unit's own place is easily checked against whatever shares its node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.columns import pool as pools
from solver.columns.pool import Pool
from solver.compiled import Threads
from solver.integral.annealing import Annealing
from solver.integral.master import Selection
from solver.model import PODS
from solver.model.budget import RunningBudget
from solver.planning.bounds import Bounding, WithoutRules
from solver.reduction.objective import Units, rounded_cost
from solver.reduction.reduced import Reduced
from solver.relaxation.claims import Claims, units_of, unserved_of

MOST_UNITS = 300_000
_MOST_ENTRIES = 50_000_000
"""Of kinds and rows, for which it is listed who may run where."""
_LEAST_MOVES = 100
"""Of each unit: with fewer, patterns planned for many equal pods at once are better."""
_SECONDS_PER_MOVE = 0.15e-6
_SECONDS_PER_ROW = 0.2e-3
"""What planning by patterns takes at least, however little time there is."""
_MANY_ALIKE = 12
"""Pods of a class on average from which on patterns repeat: with as many, planning by them is mostly better."""
_WRITING, _WRITING_NODE = 0.4, 25e-6
"""What writing and checking the plan takes: of the time that was taken before, and seconds for each node."""
_BOUND_SHARE = 0.3
"""Of the time that is left, for bounds, where there is only one thread."""


@dataclass(frozen=True, slots=True)
class Annealed:
    """A plan of all units of the chosen rows, and what bounds it."""

    pool: Pool
    selection: Selection
    least_cost_micros: float
    bounding: Bounding


def between_pods(reduced: Reduced) -> bool:
    """Whether what is on a node, beside its size, matters to some pods."""
    counters = reduced.resources[-1] != PODS
    return counters or bool(reduced.exclusions or reduced.needs) or bool((reduced.caps < reduced.wanted).any())


def patterns_repeat(reduced: Reduced, budget: RunningBudget, fraction: float) -> bool:
    """Whether there are many pods of a class, and the time for planning by patterns."""
    alike = sum(demand.count for demand in reduced.live) >= _MANY_ALIKE * len(reduced.live)
    return alike and budget.left_seconds(fraction) > 2 * _seconds_by_patterns(reduced)


def _seconds_by_patterns(reduced: Reduced) -> float:
    return _SECONDS_PER_ROW * int(np.count_nonzero(reduced.wanted))


def annealed(
    reduced: Reduced, claimed: Claims, wished: Sequence[int], budget: RunningBudget, fraction: float
) -> Annealed | None:
    """Return a plan with rows as `wished`, a value per variable of the demand side. None where a unit finds no place,
    or where there are too many for the time."""
    standing = len(reduced.existing_kinds) + len(reduced.families)
    if standing * len(reduced.rows) > _MOST_ENTRIES:
        return None
    units = asked_units(reduced, claimed, wished)
    number = sum(units.values())
    needed = _LEAST_MOVES * number * _SECONDS_PER_MOVE
    otherwise = _seconds_by_patterns(reduced)
    if not 0 < number <= MOST_UNITS or needed > max(budget.left_seconds(fraction), otherwise):
        return None
    least = int(min(needed, otherwise) / _SECONDS_PER_MOVE)
    annealing = Annealing(reduced, pools.weighting(reduced).node_cost, units)
    if annealing.place_all():
        return None
    nodes = annealing.nodes()
    groups = {name for pattern in nodes for name in reduced.kinds[pattern.kind].groups}
    # Writing a plan and checking it takes longer the longer reading the problem took.
    seconds = budget.total_seconds * budget.until
    taken = _WRITING * (seconds - budget.left_seconds()) + _WRITING_NODE * sum(nodes.values())
    written = 0.0 if budget.deterministic else taken
    until = fraction * max(0.0, 1.0 - written / seconds) if seconds else 0.0
    least_cost = 0.0
    if budget.deterministic or budget.granted.workers == 1:
        bounds = WithoutRules(reduced, budget, fraction)
        bounded = until - (1 - _BOUND_SHARE) * budget.left_seconds(until) / max(seconds, 1e-9)
        least_cost = bounds.least_cost_micros(groups, bounded)
        annealing.improve(budget, until, least, lambda: rounded_cost(least_cost, reduced))
    else:
        alone = replace(budget, granted=replace(budget.granted, workers=budget.granted.workers - 1))
        with Threads(1) as threads:
            improved = threads.submit(
                annealing.improve, budget, until, least, lambda: rounded_cost(least_cost, reduced)
            )
            bounds = WithoutRules(reduced, alone, fraction)
            least_cost = bounds.least_cost_micros(groups, until)
            improved.result()
    nodes = annealing.nodes()
    pool = Pool(reduced)
    pool.add(nodes, whole=True)
    chosen_units = annealing.units() if claimed.chooses else {}
    unserved = unserved_of(claimed, wished) if claimed.chooses else dict.fromkeys(claimed.unserved, 0)
    selection = Selection(tuple(nodes.values()), unserved, chosen_units)
    return Annealed(pool, selection, least_cost, bounds.bound)


def asked_units(reduced: Reduced, claimed: Claims, wished: Sequence[int]) -> Units:
    """Return how many units of each row a demand is to be served by."""
    if claimed.chooses:
        return units_of(claimed, wished)
    return {(demand.index, demand.spec): demand.count for demand in reduced.live if demand.count}
