"""The search itself: from a reduced problem to a selection of columns and proven bounds. `solve` makes a plan of it,
`rank` compares options by it.

Where maximal patterns are few, all are taken, and CP-SAT's optimum is the optimum. Otherwise: fluid values, a seeded
pool, and column generation while it pays. Either way a greedy incumbent comes first, then CP-SAT over the pool, stage
by stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.columns import pool as pools
from solver.columns.generation import generate
from solver.columns.patterns import Pattern, enumerate_maximal
from solver.columns.pool import Pool
from solver.integral import greedy
from solver.integral.dive import dive
from solver.integral.master import Master, MasterResult, Selection
from solver.integral.quotas import chosen, pinned
from solver.integral.warm_start import candidates, known_candidates, known_nodes
from solver.integral.wide import WideModel, can_pack, packed, packed_in_order
from solver.model import PlannedNodes
from solver.model.budget import RunningBudget
from solver.model.objective import Goal, ObjectiveStage
from solver.planning import write_plan
from solver.planning.bounds import Bounding, bounds_of, with_rules, without_rules
from solver.planning.repair import placed, realised
from solver.reduction.dominance import needed_kinds
from solver.reduction.objective import breaks_ties, stages, value
from solver.reduction.reduced import Floats, Ints, Reduced
from solver.relaxation.claims import Claims, settle, units_of, unserved_of
from solver.relaxation.fluid import FluidModel

_ENUMERATE = 1500
"""Maximal patterns up to which all of them are taken: CP-SAT proves such masters in well under a second."""
_MOST_ENTRIES = 500_000
_SECONDS_PER_ENTRY = 20e-6
"""Of the columns of a master, for building and presolving it."""

_FLUID_SHARE, _GENERATE_SHARE, _DIVE_SHARE = 0.5, 0.7, 0.9
"""Of the time, by when there are pod values, columns, and an incumbent."""
_REST_SECONDS = 9.0
"""Enough for everything after the columns, however long the budget."""
_WIDE_SHARE = 0.5
"""Of the time, for the columns of a wide problem with rules: choosing rows and bounds without rules take their part."""
_WARM_SHARE = 0.18
"""Of the time, for a plan that starts from the previous one and is as good."""
_WHOLE = (0.7, 0.9, 0.5)
"""Fractions of a node that dives take for a whole one."""


_MOST_WITH_RULES = 60_000
"""Pairs of rows and kinds up to which the fluid relaxation with all rules is solved: some tenths of a second."""


@dataclass(frozen=True)
class SearchResult:
    """The best selection found, its objective, and its proven bounds."""

    reduced: Reduced
    selection: Selection
    batches: Sequence[write_plan.Batch]
    values: Mapping[ObjectiveStage, int]
    bounds: Mapping[ObjectiveStage, int]
    """Proven for the problem, never above `values`."""
    candidates: tuple[PlannedNodes, ...] = ()
    """Nodes for the next plan to start from."""

    @property
    def gap(self) -> float:
        """The relative gap of the cost, as in a certificate."""
        costs = [stage for stage in self.values if stage.goal is Goal.COST]
        cost, bound = (sum(of[stage] for stage in costs) for of in (self.values, self.bounds))
        return (cost - bound) / cost if cost else 0.0

    @property
    def serves_all(self) -> bool:
        """Whether it is proven that no more pods can be served."""
        unserved = (Goal.UNSERVED, Goal.WAITING, Goal.PLACEHOLDERS)
        return all(self.bounds[stage] == self.values[stage] for stage in self.values if stage.goal in unserved)


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


def optimise(reduced: Reduced, budget: RunningBudget, fraction: float) -> SearchResult:
    """Return the best selection found within the first `fraction` of the budget, with bounds."""
    fluid = FluidModel(reduced, needed_kinds(reduced))
    if fluid.claimed.chooses:
        return _with_choices(reduced, fluid, budget, fraction)
    model = WideModel(reduced, fluid.active, budget)
    previous = reduced.problem.previous
    if previous is not None:
        # Starting from a plan, one as good is mostly found at once.
        quick = _planned(reduced, model, budget, fraction * _WARM_SHARE)
        if quick.gap <= previous.certificate.gap and quick.serves_all:
            return quick
        return min(quick, _planned(reduced, model, budget, fraction), key=lambda each: tuple(each.values.values()))
    return _planned(reduced, model, budget, fraction)


def _planned(reduced: Reduced, model: WideModel, budget: RunningBudget, fraction: float) -> SearchResult:
    found = _columns(reduced, model, budget, fraction, plan=True)
    return _choose(reduced, found, None if found.complete else model, budget, fraction)


def _with_choices(reduced: Reduced, fluid: FluidModel, budget: RunningBudget, fraction: float) -> SearchResult:
    """Plan a problem in which domains, variants or bundles are to be chosen: first choose (by the fluid relaxation,
    which knows the rules, where that is small enough), then plan the problem without rules that this leaves, then let
    CP-SAT decide both together over its columns."""
    claimed, weights = fluid.claimed, pools.weighting(reduced)
    small = np.count_nonzero(reduced.wanted) * len(fluid.active) <= _MOST_WITH_RULES
    limit = budget.wall_limit(fraction * _FLUID_SHARE)
    found = fluid.relaxed(_weights(reduced, stages(reduced), weights), limit) if small else None
    wished = chosen(reduced, claimed, None if found is None else found[2].tolist())
    plain = pinned(reduced, claimed, wished)
    every = enumerate_maximal(reduced, _ENUMERATE, set(fluid.active.tolist())) if small else None
    if every is None:
        # Kinds that the relaxation of one does not need may be needed by the other.
        inner = WideModel(plain, needed_kinds(plain), budget)
        known = _columns(plain, inner, budget, fraction * (1 if small else _WIDE_SHARE), plan=True)
    else:
        inner, known = None, Columns([*_obliged(reduced), *every], True, np.ones(len(reduced.rows)))
    pool, begun = _unpinned(reduced, claimed, wished, *_start(plain, known, inner, budget, fraction))
    known = Columns(pool.patterns, every is not None and reduced.every_bundle, known.pod_values)
    exact = small and reduced.every_bundle
    bounding = with_rules(fluid, budget, fraction) if exact else without_rules(reduced, budget, fraction)
    return _finish(pool, begun, known, bounding, budget, fraction)


def _unpinned(
    reduced: Reduced, claimed: Claims, wished: Sequence[int], planned: Pool, start: Selection
) -> tuple[Pool, Selection]:
    """Return a selection for a problem with rows chosen as one for the problem itself."""
    pool = Pool(reduced)
    pool.add(planned.patterns)
    room = pool.serves(np.array(start.nodes, dtype=np.int64)).tolist()
    values = settle(reduced, claimed, room, chosen(reduced, claimed, [float(value) for value in wished], room))
    return pool, realised(pool, Selection(start.nodes, unserved_of(claimed, values), units_of(claimed, values)))


def find_columns(reduced: Reduced, budget: RunningBudget, fraction: float) -> Columns:
    """Return the columns alone, for comparing many variations of one problem."""
    return _columns(reduced, WideModel(reduced, needed_kinds(reduced), budget), budget, fraction, plan=False)


def choose(reduced: Reduced, known: Columns, budget: RunningBudget, fraction: float) -> SearchResult:
    """Return the best selection of columns that were complete for an earlier, larger problem of the same classes and
    kinds."""
    return _choose(reduced, known, None, budget, fraction)


def _choose(
    reduced: Reduced, known: Columns, model: WideModel | None, budget: RunningBudget, fraction: float
) -> SearchResult:
    pool, start = _start(reduced, known, model, budget, fraction)
    bounding = None if model is None else lambda stage, fixed: model.minimise(stage, fixed, fraction)
    return _finish(pool, realised(pool, start), known, bounding, budget, fraction)


def _start(
    reduced: Reduced, known: Columns, model: WideModel | None, budget: RunningBudget, fraction: float
) -> tuple[Pool, Selection]:
    """Return the first incumbent of a problem in which every demand has one row."""
    pool = Pool(reduced)
    pool.add(known.patterns)
    if known.start is not None and (model is None or not model.tells_nodes_apart or not budget.left_seconds(fraction)):
        return pool, known.start.within(pool)
    weights = pools.weighting(reduced)
    if model is None:
        found = greedy.select(pool, weights, known.pod_values)
        if not can_pack(reduced):
            return pool, found
        return _in_order(
            WideModel(reduced, needed_kinds(reduced), budget), weights, np.zeros(len(reduced.rows)), pool, found
        )
    priced = model.active if known.priced is None else known.priced
    found = _best_dive(pool, weights, known.pod_values, priced, budget, fraction * _DIVE_SHARE)
    if known.start is None:
        return pool, found
    order = stages(reduced)
    return pool, min(found, known.start.within(pool), key=lambda each: each.objective(pool, order))


def _best_dive(
    pool: Pool, weights: pools.Weighting, values: Floats, active: Ints, budget: RunningBudget, fraction: float
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
        found = greedy.select(pool, weights, values, begun)
        longest = max(longest, left - budget.left_seconds(fraction))
        if best is not None:
            best = best.within(pool)
        if best is None or found.objective(pool, order) < best.objective(pool, order):
            best = found
    assert best is not None
    return best


def _finish(
    pool: Pool, start: Selection, known: Columns, bounding: Bounding | None, budget: RunningBudget, fraction: float
) -> SearchResult:
    reduced = pool.reduced
    order = stages(reduced)
    # Bounded before the long part, so that a plan in time has a valid bound.
    began = dict(zip(order, start.objective(pool, order), strict=True))
    floors = bounds_of(reduced, order, began, bounding, known.least_cost_micros)
    result = MasterResult(start, floors)
    # Patterns packed once each leave nothing to choose from.
    packed_only = known.start is not None and known.priced is None
    if known.complete or (not packed_only and _time_for_master(pool, budget, fraction)):
        result = Master(pool, start).minimise(order, floors, budget, fraction)
    batches, selection = placed(pool, result.selection)
    reached = _values(reduced, order, selection, batches)
    bounds = result.bounds
    if not known.complete:
        # The floors hold where earlier stages are no worse than the start's; a stage may be, for the sake of one
        # before it that became better.
        held = all(reached[stage] <= began[stage] for stage in order if not breaks_ties(stage))
        bounds = floors if held else bounds_of(reduced, order, reached, bounding, known.least_cost_micros)
    proven = {stage: min(bounds[stage], reached[stage]) for stage in order}
    further = known.priced is not None
    kept = candidates(pool, pools.weighting(reduced).node_cost, known.pod_values) if further else ()
    return SearchResult(reduced, selection, batches, reached, proven, kept)


def _time_for_master(pool: Pool, budget: RunningBudget, fraction: float) -> bool:
    """Return whether building CP-SAT's model leaves time to solve it."""
    entries = len(pool.entries().spec) + len(pool.reduced.demands)
    return entries < _MOST_ENTRIES and budget.left_seconds(fraction) > _SECONDS_PER_ENTRY * entries


def _columns(reduced: Reduced, model: WideModel, budget: RunningBudget, fraction: float, *, plan: bool) -> Columns:
    """Return columns, and with `plan` a plan to start from where one is quickly found."""
    pool = Pool(reduced)
    pool.add(_obliged(reduced))
    # Finding them takes time too.
    most = _ENUMERATE if budget.deterministic else min(_ENUMERATE, int(budget.left_seconds(fraction) * _ENUMERATE))
    every = enumerate_maximal(reduced, most, set(model.active.tolist())) if model.tells_nodes_apart else None
    if every is not None:
        pool.add(every)
        return Columns(pool.patterns, True, np.ones(len(reduced.rows)))
    weights = pools.weighting(reduced)
    guide = _weights(reduced, stages(reduced), weights)
    fluid = model.weighed(guide, fraction * _FLUID_SHARE)
    least_cost = _least_cost(reduced, guide, fluid.bound)
    start = None
    if plan and can_pack(reduced):
        pool, start = packed(model, weights.node_cost, fluid)
        known = known_nodes(reduced)
        if known:
            pool, start = _better(stages(reduced), packed(model, weights.node_cost, fluid, known), (pool, start))
            pool.add(known)
        pool, start = _in_order(model, weights, fluid.pod_values, pool, start)
        pool.add(_obliged(reduced))
    found = Columns(pool.patterns, False, fluid.pod_values, least_cost, start=start)
    if start is not None and (not model.tells_nodes_apart or not budget.left_seconds(fraction)):
        return found
    pool.add(known_candidates(reduced))
    priced, all_of_them = model.worth_pricing(fluid)
    found = replace(found, priced=priced)
    share = fraction * max(_GENERATE_SHARE, 1 - _REST_SECONDS / max(budget.total_seconds, _REST_SECONDS))
    made = generate(pool, fluid.pod_values, priced, weights, budget, share, model.over)
    if made is None:
        return found
    if len(reduced.tiers) == 1 and all_of_them:
        least_cost = max(least_cost, made.least_cost_micros)
    return replace(found, patterns=pool.patterns, pod_values=made.relaxation.duals.pods, least_cost_micros=least_cost)


def _least_cost(reduced: Reduced, guide: Mapping[ObjectiveStage, float], weighed: float) -> float:
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
    order = stages(model.reduced)
    for gangs_first in (True, False):
        other, ordered = packed_in_order(model, weights.node_cost, values, gangs_first=gangs_first)
        pool.add(other.patterns)
        count = dict(zip(other.patterns, ordered.nodes, strict=True))
        moved = Selection(tuple(count.get(pattern, 0) for pattern in pool.patterns), ordered.unserved)
        start = min(start.within(pool), moved, key=lambda each: each.objective(pool, order))
    return pool, start


def _better(order: Sequence[ObjectiveStage], *plans: tuple[Pool, Selection]) -> tuple[Pool, Selection]:
    return min(plans, key=lambda plan: plan[1].objective(plan[0], order))


def _obliged(reduced: Reduced) -> list[Pattern]:
    """Return empty nodes for kinds of which some must be opened in any case."""
    return [Pattern(kind.index, ()) for kind in reduced.new_kinds if kind.least]


def _weights(
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


def _values(
    reduced: Reduced, order: Sequence[ObjectiveStage], selection: Selection, batches: Sequence[write_plan.Batch]
) -> dict[ObjectiveStage, int]:
    opened = [0] * len(reduced.kinds)
    for batch in batches:
        opened[batch.kind] += batch.count
    missing = selection.all_unserved(reduced)
    return {stage: value(stage, reduced, missing, opened, selection.units) for stage in order}
