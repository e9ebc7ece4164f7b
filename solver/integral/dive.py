"""From a fractional plan to an integral one, a few columns at a time: fix what is nearly whole, then let column
generation find patterns made for the rest. Rounding all at once would leave pods that no column of the pool suits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solver.columns.generation import LITTLE, propose
from solver.columns.pool import Pool, Relaxation, RelaxedMaster, Weighting
from solver.columns.pricing import Pricer
from solver.model.budget import RunningBudget
from solver.reduction.reduced import Demand, Floats, Ints, Reduced

_ROUNDS = 6
_ENOUGH = 0.7
"""The fraction of a node from which on it is rounded up."""
_NEARLY = 1e-6


def dive(pool: Pool, active: Ints, weights: Weighting, budget: RunningBudget, fraction: float) -> Ints:
    """Return nodes per column of the pool (as it then is) for most of the pods; the rest is left to `greedy`. Adds
    columns."""
    reduced = pool.reduced
    master = RelaxedMaster(pool, weights)
    left, rest = reduced.wanted.copy(), reduced
    multipliers: dict[int, Floats] = {}
    nodes: dict[int, int] = {}
    while left.any() and budget.left_seconds(fraction) > 0:
        found = _fractional(master, pool, rest, active, weights, multipliers, budget, fraction)
        if found is None:
            break
        taken = _take(found)
        if not taken.any():
            break
        for column in np.flatnonzero(taken).tolist():
            nodes[column] = nodes.get(column, 0) + int(taken[column])
        left = np.maximum(0, left - pool.serves(taken))
        opened = np.bincount(pool.kinds()[: len(taken)], weights=taken, minlength=len(reduced.kinds)).astype(np.int64)
        rest = rest_of(rest, left, opened)
    result = np.zeros(len(pool.patterns), dtype=np.int64)
    for column, count in nodes.items():
        result[column] = count
    return result


def _fractional(
    master: RelaxedMaster,
    pool: Pool,
    rest: Reduced,
    active: Ints,
    weights: Weighting,
    multipliers: dict[int, Floats],
    budget: RunningBudget,
    fraction: float,
) -> Relaxation | None:
    """Solve the relaxation of the rest, with columns of its own."""
    pricer = Pricer(rest, active, budget.granted.workers, multipliers)
    found = master.solve(budget.wall_limit(fraction), rest)
    for _ in range(_ROUNDS):
        if found is None or budget.left_seconds(fraction) <= 0:
            break
        if not propose(pool, pricer, found.duals, weights.node_cost, LITTLE, budget, fraction)[0]:
            break
        found = master.solve(budget.wall_limit(fraction), rest)
    return found


def _take(found: Relaxation) -> Ints:
    """Return whole nodes, and fractions that are nearly one; the largest fraction alone where there is neither."""
    whole: Ints = np.floor(found.nodes + _NEARLY).astype(np.int64)
    share = found.nodes - whole
    if whole.any():
        return whole + (share > _ENOUGH)
    if not share.size or share.max() <= _NEARLY:
        return whole
    return whole + (share >= min(_ENOUGH, float(share.max())))


def rest_of(rest: Reduced, left: Ints, opened: Ints) -> Reduced:
    """Return the problem for the pods that are `left`, per row, and the room that nodes `opened`, per kind, leave.
    Higher priorities count as served first."""
    short = left.tolist()
    counts: dict[int, int] = {}
    for demand in sorted(rest.live, key=lambda d: (not d.placeholder, d.priority)):
        counts[demand.index] = min(demand.count, short[demand.row])
        short[demand.row] -= counts[demand.index]
    limits = tuple(max(0, allowed - int(opened @ rest.use[:, row])) for row, allowed in enumerate(rest.limits))
    return replace(
        rest,
        demands=tuple(_with_count(demand, counts.get(demand.index, 0)) for demand in rest.demands),
        kinds=tuple(replace(kind, most=max(0, kind.most - int(opened[kind.index])), least=0) for kind in rest.kinds),
        limits=limits,
    )


def _with_count(demand: Demand, count: int) -> Demand:
    return demand if demand.count == count else replace(demand, count=count, ages=((0, count),))
