"""Columns, and a first incumbent over them, for a problem in which every demand has one row; `search` has the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.columns import pool as pools
from solver.columns.generation import Generated, generate
from solver.columns.patterns import Pattern, enumerate_maximal
from solver.columns.pool import Pool, Relaxation, RelaxedMaster
from solver.integral import greedy
from solver.integral.dive import dive, rest_of
from solver.integral.master import Selection
from solver.integral.polish import pays
from solver.integral.rounding import rounded
from solver.integral.warm_start import known_candidates, known_nodes
from solver.integral.wide import WideModel, can_pack, packed, packed_in_order
from solver.model.budget import RunningBudget
from solver.model.objective import Goal, ObjectiveStage
from solver.planning.progress import SILENT, SearchProgress
from solver.reduction.dominance import needed_kinds
from solver.reduction.objective import stages
from solver.reduction.reduced import Floats, Ints, Reduced

ENUMERATE = 1500
"""Maximal patterns up to which all of them are taken: CP-SAT proves such masters in well under a second."""
FLUID_SHARE = 0.5
"""Of the time, by when there are pod values."""
_GENERATE_SHARE, _DIVE_SHARE, _ROUND_SHARE = 0.7, 0.8, 0.92
"""And by when there are columns, an incumbent, and a better one."""
_POLISHES_SHARE, _NEAR_FLUID = 0.6, 1.004
"""Where places are annealed in the end: of the time, what the columns leave for that, which are enough once their
relaxation is so near to the fluid one."""
_DIVED_SHARE, _TRIED_SHARE = 0.2, 0.35
"""Of what columns leave of it, by when there are an incumbent and a better one."""
_COMPLETE_SHARE = 0.2
"""And of the time for rounding where all columns are known: CP-SAT proves the better the longer it may."""
_REST_SECONDS = 9.0
"""Enough for everything after the columns, however long the budget."""
_NEAR_BOUND = 1.0005
"""Of the bound, what a packing may cost for columns to gain next to nothing."""
_WHOLE = (0.7, 0.9, 0.5)
"""Fractions of a node that dives take for a whole one."""


@dataclass(frozen=True)
class Columns:
    """Patterns to choose from. They remain valid for the same classes and kinds in smaller numbers."""

    patterns: Sequence[Pattern]
    complete: bool
    """Whether these are all the maximal ones that matter."""
    pod_values: Floats
    """Per spec, from a relaxation: a guide for the greedy."""
    least_cost_micros: float = 0.0
    """A lower bound on the cost of serving every pod, where the search found one."""
    priced: Ints | None = None
    """Kinds of which further patterns are generated; None for all that may be needed."""
    start: Selection | None = None
    """A plan over the first of the patterns, where the search found one."""
    relaxed: Relaxation | None = None
    """The fractional plan over the patterns, where they were generated."""
    made: Generated | None = None
    """What proves `least_cost_micros`, where the duals of columns do."""
    polishes: bool = False
    """Whether places are to be annealed in the end: units are few enough for the time."""


def all_columns(reduced: Reduced, model: WideModel, budget: RunningBudget, fraction: float) -> Columns | None:
    """Return all columns that matter, None where they are too many."""
    # Finding them takes time too.
    most = ENUMERATE if budget.deterministic else min(ENUMERATE, int(budget.left_seconds(fraction) * ENUMERATE))
    every = enumerate_maximal(reduced, most, set(model.active.tolist())) if model.tells_nodes_apart else None
    if every is None:
        return None
    pool = Pool(reduced)
    pool.add(obliged_nodes(reduced))
    pool.add(every)
    return Columns(pool.patterns, True, np.ones(len(reduced.rows)))


def columns_of(
    reduced: Reduced,
    model: WideModel,
    budget: RunningBudget,
    fraction: float,
    progress: SearchProgress,
    *,
    plan: bool,
) -> Columns:
    """Return columns, and with `plan` a plan to start from where one is quickly found."""
    every = all_columns(reduced, model, budget, fraction)
    weights = pools.weighting(reduced)
    pool = Pool(reduced)
    if every is not None:
        pool.add(every.patterns)
        relaxed = RelaxedMaster(pool, weights).solve(budget.wall_limit(fraction)) if plan else None
        return replace(every, relaxed=relaxed)
    pool.add(obliged_nodes(reduced))
    guide = weights_of(reduced, stages(reduced), weights)
    fluid = model.weighed(guide, fraction * FLUID_SHARE)
    least_cost = cost_bound_of(reduced, guide, fluid.bound)
    start = None
    if plan and can_pack(reduced):
        pool, start = packed(model, weights.node_cost, fluid)
        known = known_nodes(reduced)
        if known:
            pool, start = _better(stages(reduced), packed(model, weights.node_cost, fluid, known), (pool, start))
            pool.add(known)
        pool, start = _in_order(model, weights, fluid.pod_values, pool, start)
        pool.add(obliged_nodes(reduced))
        progress.costs_at_least(least_cost)
        progress.found(pool, start.within(pool))
    found = Columns(pool.patterns, False, fluid.pod_values, least_cost, start=start)
    if start is not None and (not model.tells_nodes_apart or not budget.left_seconds(fraction)):
        return found
    pool.add(known_candidates(reduced))
    priced, all_of_them = model.worth_pricing(fluid)
    found = replace(found, priced=priced)
    share = fraction * max(_GENERATE_SHARE, 1 - _REST_SECONDS / max(budget.total_seconds, _REST_SECONDS))
    polishes = plan and pays(reduced, _POLISHES_SHARE * budget.left_seconds(fraction))
    if polishes:
        share = min(share, budget.part_of_left(fraction, 1 - _POLISHES_SHARE))
    enough = least_cost * _NEAR_FLUID if polishes else 0.0
    made = generate(pool, fluid.pod_values, priced, weights, budget, share, model.over, enough)
    if made is None:
        return found
    proves = len(reduced.tiers) == 1 and all_of_them
    if proves:
        least_cost = max(least_cost, made.proof.least_cost_micros)
    progress.costs_at_least(least_cost)
    relaxed = made.relaxation
    return replace(
        found,
        patterns=pool.patterns,
        pod_values=relaxed.duals.pods,
        least_cost_micros=least_cost,
        relaxed=relaxed,
        made=made if proves else None,
        polishes=polishes,
    )


def incumbent_of(
    reduced: Reduced,
    known: Columns,
    model: WideModel | None,
    budget: RunningBudget,
    fraction: float,
    progress: SearchProgress,
) -> tuple[Pool, Selection]:
    """Return the first incumbent of a problem in which every demand has one row."""
    pool = Pool(reduced)
    pool.add(known.patterns)
    too_late = not budget.left_seconds(fraction) and known.relaxed is None
    if known.start is not None and (model is None or not model.tells_nodes_apart or too_late):
        packing = known.start.within(pool)
        if model is None or too_late or _is_near(known.least_cost_micros, pool, packing):
            return pool, packing
        return _beside_standing(pool, packing, budget, fraction, progress)
    weights = pools.weighting(reduced)
    if model is None:
        found = greedy.select(pool, weights, known.pod_values)
        if not can_pack(reduced):
            return pool, found
        if known.relaxed is not None:
            other = rounded(pool, known.relaxed, weights, budget, fraction * _COMPLETE_SHARE)
            found = best_over(pool, found, other)
        return _in_order(
            WideModel(reduced, needed_kinds(reduced), budget), weights, np.zeros(len(reduced.rows)), pool, found
        )
    priced = model.active if known.priced is None else known.priced
    start = known.start
    dived, tried = fraction * _DIVE_SHARE, fraction * _ROUND_SHARE
    if known.polishes:
        dived = min(dived, budget.part_of_left(fraction, _DIVED_SHARE))
        tried = min(tried, budget.part_of_left(fraction, _TRIED_SHARE))
    # Where there is a start, a dive that comes too late is of no use.
    late = (lambda: False) if start is None else (lambda: budget.left_seconds(fraction) <= 0)
    if start is None or budget.left_seconds(fraction) > 0:
        found = _best_dive(pool, weights, known.pod_values, priced, budget, dived, progress, late)
        start = best_over(pool, found, start)
    if known.relaxed is not None and can_pack(reduced):
        # Over the columns of the dives, too.
        relaxed = RelaxedMaster(pool, weights).solve(budget.wall_limit(fraction)) or known.relaxed
        start = best_over(pool, rounded(pool, relaxed, weights, budget, tried), start)
        progress.found(pool, start)
    assert start is not None
    return pool, start.within(pool)


def _is_near(least_cost_micros: float, pool: Pool, found: Selection) -> bool:
    """Return whether the plan is as good as proven to be the best. Plans of several tiers are where they open
    nothing."""
    cost = sum(n * kind.price_micros for kind, n in zip(pool.reduced.kinds, found.opened(pool), strict=True))
    return cost <= _NEAR_BOUND * least_cost_micros


def _beside_standing(
    pool: Pool, start: Selection, budget: RunningBudget, fraction: float, progress: SearchProgress
) -> tuple[Pool, Selection]:
    """Return a plan where nodes that stand are too many for columns of each: they keep what `start` has on them, and
    columns are generated for the other pods alone."""
    reduced = pool.reduced
    if any(start.unserved.values()) or any(kind.least for kind in reduced.new_kinds):
        return pool, start
    standing = np.array(start.nodes, dtype=np.int64) * reduced.existing[pool.kinds()]
    gone = np.array([kind.most if kind.existing else 0 for kind in reduced.kinds], dtype=np.int64)
    rest = rest_of(reduced, np.maximum(0, reduced.wanted - pool.serves(standing)), gone)
    model = WideModel(rest, needed_kinds(rest), budget)
    known = columns_of(rest, model, budget, fraction, SILENT, plan=True)
    others, found = incumbent_of(rest, known, model, budget, fraction, SILENT)
    nodes = Counter(dict(zip(pool.patterns, standing.tolist(), strict=True)))
    nodes.update(dict(zip(others.patterns, found.nodes, strict=True)))
    pool.add(others.patterns)
    planned = Selection(tuple(nodes[pattern] for pattern in pool.patterns), found.unserved)
    start = best_over(pool, planned, start)
    progress.found(pool, start)
    return pool, start


def _best_dive(
    pool: Pool,
    weights: pools.Weighting,
    values: Floats,
    active: Ints,
    budget: RunningBudget,
    fraction: float,
    progress: SearchProgress,
    late: Callable[[], bool],
) -> Selection:
    """Return the best of several dives: which fractions are rounded up first decides how well the rest fits, and
    columns made for one dive serve the next."""
    order = stages(pool.reduced)
    best: Selection | None = None
    longest = 0.0
    for whole in _WHOLE:
        left = budget.left_seconds(fraction)
        if best is not None and left <= longest:
            break
        begun = dive(pool, active, weights, budget, fraction, whole)
        found = greedy.select(pool, weights, values, begun, late)
        longest = max(longest, left - budget.left_seconds(fraction))
        if best is not None:
            best = best.within(pool)
        if best is None or found.objective(pool, order) < best.objective(pool, order):
            best = found
            progress.found(pool, best)
    assert best is not None
    return best


def cost_bound_of(reduced: Reduced, guide: Mapping[ObjectiveStage, float], weighed: float) -> float:
    """Return a bound on the cost of serving every pod, from one on the weighted objective: with one tier, that is cost
    times the tier's weight. Zero with more tiers."""
    if len(reduced.tiers) != 1:
        return 0.0
    return weighed / guide.get(ObjectiveStage(Goal.COST, reduced.tiers[0]), 1.0)


def _in_order(
    model: WideModel, weights: pools.Weighting, values: Floats, pool: Pool, start: Selection
) -> tuple[Pool, Selection]:
    """Where a plan leaves pods unserved, return the best of it and of plans that serve priorities and gangs one after
    the other. May add to the pool."""
    if not any(start.unserved.values()):
        return pool, start
    for gangs_first in (True, False):
        other, ordered = packed_in_order(model, weights.node_cost, values, gangs_first=gangs_first)
        pool.add(other.patterns)
        count = dict(zip(other.patterns, ordered.nodes, strict=True))
        moved = Selection(tuple(count.get(pattern, 0) for pattern in pool.patterns), ordered.unserved)
        start = best_over(pool, start, moved)
    return pool, start


def best_over(pool: Pool, *plans: Selection | None) -> Selection:
    """Return the best of the plans that there are, the first among equals; each is over the first columns of the
    pool."""
    order = stages(pool.reduced)
    return min((each.within(pool) for each in plans if each is not None), key=lambda each: each.objective(pool, order))


def _better(order: Sequence[ObjectiveStage], *plans: tuple[Pool, Selection]) -> tuple[Pool, Selection]:
    return min(plans, key=lambda plan: plan[1].objective(plan[0], order))


def obliged_nodes(reduced: Reduced) -> list[Pattern]:
    """Return empty nodes for kinds of which some must be opened in any case."""
    return [Pattern(kind.index, ()) for kind in reduced.new_kinds if kind.least]


def weights_of(
    reduced: Reduced, order: Sequence[ObjectiveStage], weights: pools.Weighting
) -> dict[ObjectiveStage, float]:
    """Return the column weighting by stages, for the fluid model."""
    dearest = float(weights.node_cost.max(initial=1.0))
    factors: dict[ObjectiveStage, float] = {}
    for stage in order:
        if stage.goal is Goal.COST:
            kinds = [k for k in reduced.new_kinds if k.weight == stage.key and k.price_micros]
            factors[stage] = weights.node_cost[kinds[0].index] / kinds[0].price_micros if kinds else 1.0
        elif stage.goal in (Goal.UNSERVED, Goal.PLACEHOLDERS):
            factors[stage] = 4.0 * dearest
        elif stage.goal is Goal.PREFERENCES:
            factors[stage] = dearest
    return factors
