"""The search itself: from a reduced problem to a selection of columns and proven bounds. `solve` makes a plan of it,
`rank` compares options by it.

Where maximal patterns are few, all are taken, and CP-SAT's optimum is the optimum. Otherwise: fluid values, a seeded
pool, and column generation while it pays. Either way a greedy incumbent comes first, then CP-SAT over the pool, stage
by stage. Where what shares a node matters to pods, and every pod finds a place, places are annealed instead
(`annealed`), or, where patterns may repeat all the same, both is done and the better plan taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.columns import pool as pools
from solver.columns.patterns import enumerate_maximal
from solver.columns.pool import Pool
from solver.compiled import Threads
from solver.integral.alike import as_one, first_alike, split
from solver.integral.master import Master, MasterResult, Selection
from solver.integral.quotas import chosen, pinned
from solver.integral.warm_start import candidates
from solver.integral.wide import WideModel
from solver.model import PlannedNodes
from solver.model.budget import RunningBudget
from solver.model.objective import Goal, ObjectiveStage
from solver.planning import incumbent, write_plan
from solver.planning.annealed import Annealed, annealed, between_pods, patterns_repeat
from solver.planning.bounds import Bounding, WithoutRules, bounds_of, with_rules
from solver.planning.improving import close
from solver.planning.incumbent import Columns, all_columns, columns_of, incumbent_of, obliged_nodes, weights_of
from solver.planning.progress import SILENT, SearchProgress
from solver.planning.repair import placed, realised
from solver.reduction.dominance import needed_kinds
from solver.reduction.objective import breaks_ties, stages, value
from solver.reduction.reduced import Reduced
from solver.relaxation.claims import Claims, claims, settle, units_of, unserved_of
from solver.relaxation.fluid import FluidModel

_MOST_ENTRIES = 500_000
_SECONDS_PER_ENTRY = 20e-6
"""Of the columns of a master, for building and presolving it."""

_WIDE_SHARE = 0.5
"""Of the time, for the columns of a wide problem with rules: choosing rows and bounds without rules take their part."""
_QUOTAS_SHARE = 0.95
"""Of the time, by when rows that were planned as one are split again."""
_WARM_SHARE = 0.18
"""Of the time, for a plan that starts from the previous one and is as good."""
_COLUMNS_SHARE, _COLUMNS_UNTIL = 0.6, 0.9
"""Where places are annealed as well: of the time, for columns, on the same core and on another one."""

_MOST_WITH_RULES, _MANY_WITH_RULES = 60_000, 300_000
"""Pairs of rows and kinds up to which the fluid relaxation with all rules is solved: some tenths of a second. And from
which on nobody looks whether there are fewer kinds that matter."""


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
    def unserved_unproven(self) -> int:
        """Pods and placeholders that are left out though nothing proves that they have to be."""
        unserved = (Goal.UNSERVED, Goal.PLACEHOLDERS)
        return sum(value - self.bounds[stage] for stage, value in self.values.items() if stage.goal in unserved)

    @property
    def serves_all(self) -> bool:
        """Whether it is proven that no more pods can be served, nor any that have waited longer."""
        waiting = (stage for stage in self.values if stage.goal is Goal.WAITING)
        return not self.unserved_unproven and all(self.bounds[stage] == self.values[stage] for stage in waiting)


def optimise(
    reduced: Reduced, budget: RunningBudget, fraction: float, progress: SearchProgress = SILENT
) -> SearchResult:
    """Return the best selection found within the first `fraction` of the budget, with bounds."""
    claimed = claims(reduced)
    if claimed.chooses:
        return _with_choices(reduced, claimed, budget, fraction, progress)
    model = WideModel(reduced, needed_kinds(reduced), budget)
    previous = reduced.problem.previous
    if previous is not None:
        # Starting from a plan, one as good is mostly found at once.
        quick = _by_columns(reduced, model, budget, fraction * _WARM_SHARE, progress)
        before = previous.certificate.gap
        if before is not None and quick.gap <= before and quick.serves_all:
            return quick
        return min(
            quick, _planned(reduced, model, budget, fraction, progress), key=lambda each: tuple(each.values.values())
        )
    return _planned(reduced, model, budget, fraction, progress)


def _planned(
    reduced: Reduced, model: WideModel, budget: RunningBudget, fraction: float, progress: SearchProgress
) -> SearchResult:
    if between_pods(reduced):
        every = all_columns(reduced, model, budget, fraction)
        if every is not None:
            return _choose(reduced, every, model, budget, fraction, progress)
        return _by_places(
            reduced,
            claims(reduced),
            (),
            lambda granted, until: _by_columns(reduced, model, granted, until, progress),
            None,
            budget,
            fraction,
            progress,
        )
    return _by_columns(reduced, model, budget, fraction, progress)


def _by_places(
    reduced: Reduced,
    claimed: Claims,
    wished: Sequence[int],
    by_columns: Callable[[RunningBudget, float], SearchResult],
    fluid: FluidModel | None,
    budget: RunningBudget,
    fraction: float,
    progress: SearchProgress,
) -> SearchResult:
    """Return a plan whose places are annealed, with rows as `wished`; where patterns repeat the better one of it and of
    what columns come to, which are asked alone where pods find no place."""
    if not patterns_repeat(reduced, budget, fraction):
        places = annealed(reduced, claimed, wished, budget, fraction)
        return by_columns(budget, fraction) if places is None else _bounded(places, fluid, budget, fraction, progress)
    if budget.deterministic or budget.granted.workers == 1:
        found = by_columns(budget, budget.part_of_left(fraction, _COLUMNS_SHARE))
        places = annealed(reduced, claimed, wished, budget, fraction)
    else:
        workers = 1, budget.granted.workers - 1
        alone, others = (replace(budget, granted=replace(budget.granted, workers=number)) for number in workers)
        with Threads(1) as threads:
            beside = threads.submit(annealed, reduced, claimed, wished, alone, fraction)
            found = by_columns(others, fraction * _COLUMNS_UNTIL)
            places = beside.result()
    if places is None:
        return found
    other = _bounded(places, fluid, budget, fraction, progress)
    best = min(found, other, key=lambda each: tuple(each.values.values()))
    # What holds for plans that may be worse at an earlier stage holds for the better one, too.
    bounds = {stage: min(value, max(found.bounds[stage], other.bounds[stage])) for stage, value in best.values.items()}
    return replace(best, bounds=bounds)


def _by_columns(
    reduced: Reduced, model: WideModel, budget: RunningBudget, fraction: float, progress: SearchProgress
) -> SearchResult:
    found = columns_of(reduced, model, budget, fraction, progress, plan=True)
    return _choose(reduced, found, model, budget, fraction, progress)


def _with_choices(
    reduced: Reduced, claimed: Claims, budget: RunningBudget, fraction: float, progress: SearchProgress
) -> SearchResult:
    """Plan a problem in which domains, variants or bundles are to be chosen. Where all patterns are known, CP-SAT
    chooses all at once. Otherwise rows are chosen first (by the fluid relaxation, which knows the rules, where that is
    small enough), and what is left is a problem without rules over domains."""
    weights, rows = pools.weighting(reduced), np.count_nonzero(reduced.wanted)
    fluid = every = guide = None
    if rows * len(reduced.kinds) <= _MANY_WITH_RULES:
        fluid = FluidModel(reduced, needed_kinds(reduced), claimed)
    if fluid is not None and rows * len(fluid.active) <= _MOST_WITH_RULES:
        every = enumerate_maximal(reduced, incumbent.ENUMERATE, set(fluid.active.tolist()))
        limit = budget.wall_limit(fraction * incumbent.FLUID_SHARE)
        relaxed = fluid.relaxed(weights_of(reduced, stages(reduced), weights), limit)
        guide = None if relaxed is None else relaxed[2].tolist()
    else:
        fluid = None
    wished = chosen(reduced, claimed, guide)
    exact = fluid if reduced.every_bundle else None

    def by_columns(granted: RunningBudget, until: float) -> SearchResult:
        if every is None:
            plain = pinned(reduced, claimed, wished)
            planned, begun, known = _by_quotas(plain, granted, until, wide=fluid is None)
        else:
            known = Columns([*obliged_nodes(reduced), *every], True, np.ones(len(reduced.rows)))
            planned, begun = incumbent_of(pinned(reduced, claimed, wished), known, None, granted, until, SILENT)
        pool, begun = _unpinned(reduced, claimed, wished, planned, begun)
        known = Columns(pool.patterns, every is not None and reduced.every_bundle, known.pod_values)
        bounding = WithoutRules(reduced, granted, until).bound if exact is None else with_rules(exact, granted, until)
        return _finish(pool, begun, known, bounding, granted, until, progress)

    if every is not None:
        return by_columns(budget, fraction)
    return _by_places(reduced, claimed, wished, by_columns, exact, budget, fraction, progress)


def _bounded(
    found: Annealed, fluid: FluidModel | None, budget: RunningBudget, fraction: float, progress: SearchProgress
) -> SearchResult:
    """Return the plan with its bounds; `fluid` knows the rules."""
    reduced = found.pool.reduced
    progress.found(found.pool, found.selection)
    order = stages(reduced)
    batches, selection = placed(found.pool, found.selection)
    reached = _values(reduced, order, selection, batches)
    bounds = bounds_of(reduced, order, reached, found.bounding, found.least_cost_micros)
    if fluid is not None:
        closer = bounds_of(reduced, order, reached, with_rules(fluid, budget, fraction), 0.0)
        bounds = {stage: max(bound, closer[stage]) for stage, bound in bounds.items()}
    progress.proven(bounds)
    return SearchResult(reduced, selection, batches, reached, bounds)


def _by_quotas(
    plain: Reduced, budget: RunningBudget, fraction: float, *, wide: bool
) -> tuple[Pool, Selection, Columns]:
    """Plan a problem with rows chosen: return its columns, with the best selection of them."""
    first = first_alike(plain)
    merged = as_one(plain, first)
    # Kinds that the relaxation of one does not need may be needed by the other.
    model = WideModel(merged, needed_kinds(merged), budget)
    known = columns_of(merged, model, budget, fraction * (_WIDE_SHARE if wide else 1), SILENT, plan=True)
    planned, found = incumbent_of(merged, known, model, budget, fraction, SILENT)
    if (first == np.arange(len(first))).all():
        return planned, found, known
    if _time_for_master(planned, budget, fraction * _QUOTAS_SHARE):
        found = Master(planned, found).minimise(stages(merged), {}, budget, fraction * _QUOTAS_SHARE).selection
    nodes = split(plain, first, dict(zip(planned.patterns, found.nodes, strict=True)))
    pool = Pool(plain)
    pool.add([*nodes, *planned.patterns])
    selection = replace(found, nodes=tuple(nodes.get(pattern, 0) for pattern in pool.patterns))
    return pool, selection, known


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
    return columns_of(reduced, WideModel(reduced, needed_kinds(reduced), budget), budget, fraction, SILENT, plan=False)


def choose(reduced: Reduced, known: Columns, budget: RunningBudget, fraction: float) -> SearchResult:
    """Return the best selection of columns that were complete for an earlier, larger problem of the same classes and
    kinds."""
    return _choose(reduced, known, None, budget, fraction, SILENT)


def _choose(
    reduced: Reduced,
    known: Columns,
    model: WideModel | None,
    budget: RunningBudget,
    fraction: float,
    progress: SearchProgress,
) -> SearchResult:
    """Return the best selection of the columns that are known; without `model`, of those for another problem, and
    without bounds but CP-SAT's."""
    pool, start = incumbent_of(reduced, known, None if known.complete else model, budget, fraction, progress)
    # Where all columns are known CP-SAT mostly proves more; this is what is proven without it.
    until = 0.0 if known.complete else fraction
    bounding = None if model is None else lambda stage, fixed: model.minimise(stage, fixed, until)
    return _finish(pool, realised(pool, start), known, bounding, budget, fraction, progress)


def _finish(
    pool: Pool,
    start: Selection,
    known: Columns,
    bounding: Bounding | None,
    budget: RunningBudget,
    fraction: float,
    progress: SearchProgress,
) -> SearchResult:
    reduced = pool.reduced
    order = stages(reduced)
    # Bounded before the long part, so that a plan in time has a valid bound.
    began = dict(zip(order, start.objective(pool, order), strict=True))
    floors = bounds_of(reduced, order, began, bounding, known.least_cost_micros)
    progress.proven(floors)
    progress.found(pool, start)
    result, complete = MasterResult(start, floors), known.complete
    # Patterns packed once each leave nothing to choose from.
    packed_only = known.start is not None and known.priced is None
    if complete:
        result = Master(pool, start).minimise(order, floors, budget, fraction, progress.listener(pool))
    elif not packed_only and _time_for_master(pool, budget, fraction):
        pool, result, complete = close(pool, start, known, floors, budget, fraction, progress)
    batches, selection = placed(pool, result.selection)
    reached = _values(reduced, order, selection, batches)
    bounds = result.bounds
    if not complete:
        # The floors hold where earlier stages are no worse than the start's; a stage may be, for the sake of one
        # before it that became better.
        held = all(reached[stage] <= began[stage] for stage in order if not breaks_ties(stage))
        if not held:
            bounds = bounds_of(reduced, order, reached, bounding, known.least_cost_micros)
    proven = {stage: min(bounds[stage], reached[stage]) for stage in order}
    progress.proven(proven)
    further = known.priced is not None
    kept = candidates(pool, pools.weighting(reduced).node_cost, known.pod_values) if further else ()
    return SearchResult(reduced, selection, batches, reached, proven, kept)


def _time_for_master(pool: Pool, budget: RunningBudget, fraction: float) -> bool:
    """Return whether building CP-SAT's model leaves time to solve it."""
    entries = len(pool.entries().spec) + len(pool.reduced.demands)
    return entries < _MOST_ENTRIES and budget.left_seconds(fraction) > _SECONDS_PER_ENTRY * entries


def _values(
    reduced: Reduced, order: Sequence[ObjectiveStage], selection: Selection, batches: Sequence[write_plan.Batch]
) -> dict[ObjectiveStage, int]:
    opened = [0] * len(reduced.kinds)
    for batch in batches:
        opened[batch.kind] += batch.count
    missing = selection.all_unserved(reduced)
    return {stage: value(stage, reduced, missing, opened, selection.units) for stage in order}
