"""The search itself, from top to bottom: from a reduced problem to a selection of columns and proven bounds. `solve`
makes a plan of it, `rank` compares options by it.

Where maximal patterns are few, all are taken, and CP-SAT's optimum is the optimum. Otherwise: fluid values, a seeded
pool, and column generation while it pays. Either way a greedy incumbent comes first, then CP-SAT over the pool, stage
by stage, or over all columns that a better plan could use, where these are few.

Where what shares a node matters to pods, and every pod finds a place, places are annealed instead, while bounds are
sought beside it: some rule tells nearly every pod from the next one there, so that columns of a master would be used
once each, whereas a unit's own place is easily checked against whatever shares its node. Where patterns may repeat all
the same, both is done and the better plan taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from solver.columns.generation import CostProof, Generated, generate
from solver.columns.patterns import LeastWorth, Pattern, enumerate_maximal, enumerate_worthy
from solver.columns.pool import Pool, Relaxation, RelaxedMaster, Weighting, weighting
from solver.compiled import Threads
from solver.integral import greedy
from solver.integral.annealing import Annealing, pays, polished
from solver.integral.dive import dive, rest_of
from solver.integral.master import Master, MasterResult, Selection
from solver.integral.quotas import as_one, chosen, first_alike, pinned, split
from solver.integral.rounding import rounded
from solver.integral.warm_start import candidates, known_candidates, known_nodes
from solver.integral.wide import WideModel, can_pack, packed, packed_in_order
from solver.model import PODS, PlannedNodes
from solver.model.budget import RunningBudget
from solver.model.objective import Goal, ObjectiveStage
from solver.planning import write_plan
from solver.planning.bounds import Bounding, WithoutRules, bounds_of, cost_bound_of, weights_of, with_rules
from solver.planning.progress import SILENT, SearchProgress
from solver.planning.write_plan import Batch
from solver.reduction.colocation import CoLocation
from solver.reduction.dominance import needed_kinds
from solver.reduction.objective import Units, breaks_ties, rounded_cost, stages, step_of, value
from solver.reduction.reduced import Floats, Ints, Reduced
from solver.relaxation.claims import Claims, claims, settle, units_of, unserved_of
from solver.relaxation.fluid import FluidModel
from solver.relaxation.whole_nodes import ENTRIES_A_SECOND, MOST_ENTRIES, least_cost

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

MOST_UNITS = 300_000
_MOST_PLACES = 50_000_000
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

ENUMERATE = 1500
"""Maximal patterns up to which all of them are taken: CP-SAT proves such masters in well under a second."""
_FLUID_SHARE = 0.5
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

_MOST_COLUMNS = 5000
"""That a cheaper plan could use, and CP-SAT is to prove something of in a second or two."""
_MOST_STEPS, _STEPS_A_SECOND = 400_000, 400_000
_LIST_SHARE, _WHOLE_SHARE, _POLISH_SHARE, _TRY_SHARE, _FLOORS_SHARE = 0.1, 0.4, 0.85, 0.5, 0.5
"""Of the time that is left: for listing these columns, for a bound with whole nodes, for annealing places, for a try
that proves nothing, and for bounds of more than a few stages."""
_ROUNDING = 1e-9

_ATTEMPTS = 3
"""At leaving pods out until all others have the helpers that they need."""


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
    by_rules: bool = False
    """Whether its bounds look at rules over domains."""

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
    weights, rows = weighting(reduced), np.count_nonzero(reduced.wanted)
    fluid = every = guide = None
    if rows * len(reduced.kinds) <= _MANY_WITH_RULES:
        fluid = FluidModel(reduced, needed_kinds(reduced), claimed)
    if fluid is not None and rows * len(fluid.active) <= _MOST_WITH_RULES:
        every = enumerate_maximal(reduced, ENUMERATE, set(fluid.active.tolist()))
        limit = budget.wall_limit(fraction * _FLUID_SHARE)
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
        found = by_columns(budget, fraction)
    else:
        found = _by_places(reduced, claimed, wished, by_columns, exact, budget, fraction, progress)
    return replace(found, by_rules=every is not None or exact is not None)


def are_rules_few(reduced: Reduced) -> bool:
    """Return whether bounds are sure to look at rules over domains."""
    return int(np.count_nonzero(reduced.wanted)) * len(reduced.kinds) <= _MOST_WITH_RULES


def _bounded(
    found: Annealed, fluid: FluidModel | None, budget: RunningBudget, fraction: float, progress: SearchProgress
) -> SearchResult:
    """Return the plan with its bounds; `fluid` knows the rules."""
    reduced, late = found.pool.reduced, _out_of_time(budget, fraction)
    progress.found(found.pool, found.selection)
    order = stages(reduced)
    batches, selection = placed(found.pool, found.selection)
    reached = _values(reduced, order, selection, batches)
    bounds = bounds_of(reduced, order, reached, found.bounding, found.least_cost_micros, late)
    if fluid is not None:
        closer = bounds_of(reduced, order, reached, with_rules(fluid, budget, fraction), 0.0, late)
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
    reduced, first, late = pool.reduced, pool, _out_of_time(budget, fraction)
    order = stages(reduced)
    # Bounded before the long part, so that a plan in time has a valid bound.
    began = dict(zip(order, start.objective(pool, order), strict=True))
    floors = bounds_of(reduced, order, began, bounding, known.least_cost_micros, late)
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
    if [*reached.values()] > [*began.values()]:  # pods of the chosen columns lack helpers that those of the start had
        others, kept = placed(first, start)
        otherwise = _values(reduced, order, kept, others)
        if [*otherwise.values()] < [*reached.values()]:
            batches, selection, reached, bounds, complete = others, kept, otherwise, floors, False
    if not complete:
        # The floors hold where earlier stages are no worse than the start's; a stage may be, for the sake of one
        # before it that became better.
        held = all(reached[stage] <= began[stage] for stage in order if not breaks_ties(stage))
        if not held:
            bounds = bounds_of(reduced, order, reached, bounding, known.least_cost_micros, late)
    proven = {stage: min(bounds[stage], reached[stage]) for stage in order}
    progress.proven(proven)
    further = known.priced is not None
    nodes = candidates(pool, weighting(reduced).node_cost, known.pod_values) if further else ()
    return SearchResult(reduced, selection, batches, reached, proven, nodes)


def _out_of_time(budget: RunningBudget, fraction: float) -> Callable[[], bool]:
    """Return whether bounds of further stages take time from what else is to be done in this part of the budget."""
    until = budget.part_of_left(fraction, _FLOORS_SHARE)
    return lambda: budget.left_seconds(until) <= 0


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
    if standing * len(reduced.rows) > _MOST_PLACES:
        return None
    units = asked_units(reduced, claimed, wished)
    number = sum(units.values())
    needed = _LEAST_MOVES * number * _SECONDS_PER_MOVE
    otherwise = _seconds_by_patterns(reduced)
    if not 0 < number <= MOST_UNITS or needed > max(budget.left_seconds(fraction), otherwise):
        return None
    least = int(min(needed, otherwise) / _SECONDS_PER_MOVE)
    annealing = Annealing(reduced, weighting(reduced).node_cost, units)
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
    return {(demand.index, demand.row): demand.count for demand in reduced.live if demand.count}


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
    weights = weighting(reduced)
    pool = Pool(reduced)
    if every is not None:
        pool.add(every.patterns)
        relaxed = RelaxedMaster(pool, weights).solve(budget.wall_limit(fraction)) if plan else None
        return replace(every, relaxed=relaxed)
    pool.add(obliged_nodes(reduced))
    guide = weights_of(reduced, stages(reduced), weights)
    fluid = model.weighed(guide, fraction * _FLUID_SHARE)
    least_cost = cost_bound_of(reduced, guide, fluid.bound)
    start = None
    if plan and can_pack(reduced):
        pool, start = packed(model, weights.node_cost, fluid)
        known = known_nodes(reduced)
        if known:
            pool, start = _better(stages(reduced), packed(model, weights.node_cost, fluid, known), (pool, start))
            pool.add(known)
        start = _in_order(model, weights, fluid.pod_values, pool, start)
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
    if model is None:
        return pool, _over_all(pool, known, budget, fraction)
    weights = weighting(reduced)
    priced = model.active if known.priced is None else known.priced
    start = known.start
    dived, tried = fraction * _DIVE_SHARE, fraction * _ROUND_SHARE
    if known.polishes:
        dived = min(dived, budget.part_of_left(fraction, _DIVED_SHARE))
        tried = min(tried, budget.part_of_left(fraction, _TRIED_SHARE))

    def late() -> bool:
        """Whether there is a start already, and no time for another one."""
        return known.start is not None and budget.left_seconds(fraction) <= 0

    if not late():
        begun = dive(pool, priced, weights, budget, dived)
        start = best_over(pool, greedy.select(pool, weights, known.pod_values, begun, late), start)
        progress.found(pool, start)
    if known.relaxed is not None and can_pack(reduced):
        # Over the columns of the dive, too.
        relaxed = RelaxedMaster(pool, weights).solve(budget.wall_limit(fraction)) or known.relaxed
        start = best_over(pool, rounded(pool, relaxed, weights, budget, tried), start)
        progress.found(pool, start)
    assert start is not None
    return pool, start.within(pool)


def _over_all(pool: Pool, known: Columns, budget: RunningBudget, fraction: float) -> Selection:
    """Return the first incumbent over all columns that matter. May add to the pool."""
    reduced, weights = pool.reduced, weighting(pool.reduced)
    found = greedy.select(pool, weights, known.pod_values)
    if not can_pack(reduced):
        return found
    if known.relaxed is not None:
        found = best_over(pool, found, rounded(pool, known.relaxed, weights, budget, fraction * _COMPLETE_SHARE))
    if not any(found.unserved.values()):
        return found
    model = WideModel(reduced, needed_kinds(reduced), budget)
    # No worse than what is planned where there is no time for columns.
    fluid = model.weighed(weights_of(reduced, stages(reduced), weights), 0.0)
    found = _or_other(pool, found, packed(model, weights.node_cost, fluid))
    return _in_order(model, weights, np.zeros(len(reduced.rows)), pool, found)


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


def _in_order(model: WideModel, weights: Weighting, values: Floats, pool: Pool, start: Selection) -> Selection:
    """Where a plan leaves pods unserved, return the best of it and of plans that serve priorities and gangs one after
    the other. May add to the pool."""
    if not any(start.unserved.values()):
        return start
    # Alone, pods without a gang have one order, and so have gangs.
    both = len({demand.gang is None for demand in model.reduced.live}) > 1
    for gangs_first in (True, False) if both else (True,):
        ordered = packed_in_order(model, weights.node_cost, values, gangs_first=gangs_first)
        start = _or_other(pool, start, ordered)
    return start


def _or_other(pool: Pool, start: Selection, other: tuple[Pool, Selection]) -> Selection:
    """Return the better of two plans over the pool, to which the columns of the other's own are added."""
    others, selection = other
    pool.add(others.patterns)
    count = dict(zip(others.patterns, selection.nodes, strict=True))
    moved = replace(selection, nodes=tuple(count.get(pattern, 0) for pattern in pool.patterns))
    return best_over(pool, start, moved)


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
        """Return the cost of the one tier."""
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


def placed(pool: Pool, selection: Selection) -> tuple[list[Batch], Selection]:
    """Return the batches of a selection, and the selection reduced to pods that have the helpers that they need."""
    reduced = pool.reduced
    colocation = CoLocation(reduced)
    for attempt in range(_ATTEMPTS + 1):
        batches = write_plan.batches(pool, selection)
        if all(colocation.helped(reduced.kinds[batch.kind], batch.rows(reduced)) for batch in batches):
            break
        helped = _helped(reduced, colocation, batches)
        if attempt == _ATTEMPTS - 1:  # last attempt: serve no pods that need helpers
            helped = {row: 0 if any(row in n.carriers for n in reduced.needs) else n for row, n in helped.items()}
        room = [helped.get(row, 0) for row in range(len(reduced.rows))]
        claimed = claims(reduced)
        values = settle(reduced, claimed, room, chosen(reduced, claimed, room=room))
        selection = replace(selection, unserved=unserved_of(claimed, values), units=units_of(claimed, values))
    return batches, selection


def realised(pool: Pool, selection: Selection) -> Selection:
    """Return the selection with patterns of just the pods that are placed, where pods need co-location: helpers without
    a pod are gone. May add columns to the pool."""
    reduced = pool.reduced
    if not reduced.needs:
        return selection
    batches, kept = placed(pool, selection)
    nodes: Counter[Pattern] = Counter()
    for batch in batches:
        nodes[Pattern(batch.kind, tuple(sorted(batch.rows(reduced).items())))] += batch.count
    pool.add(nodes)
    return replace(kept, nodes=tuple(nodes[pattern] for pattern in pool.patterns))


def _helped(reduced: Reduced, colocation: CoLocation, batches: Sequence[Batch]) -> dict[int, int]:
    """Return the units per row that have the helpers that they need."""
    total: Counter[int] = Counter()
    for batch in batches:
        kept = colocation.trimmed(reduced.kinds[batch.kind], batch.rows(reduced))
        total.update({row: units * batch.count for row, units in kept.items()})
    return dict(total)
