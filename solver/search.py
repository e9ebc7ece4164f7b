"""The search itself: from a reduced problem to a selection of columns and proven bounds. `solve` makes a plan of it,
`rank` compares options by it.

Few maximal patterns: take them all, then CP-SAT's optimum is the optimum. Otherwise: fluid values, a seeded pool and
column generation while it pays. Either way a greedy incumbent at once, then CP-SAT over the pool, stage by stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver import columns, greedy, writeout
from solver.budgeting import PROPOSE_SECONDS, Meter
from solver.columns import Pool, Relaxation
from solver.dominance import needed_kinds
from solver.fluid import FluidModel
from solver.master import Master, Selection
from solver.objectives import Goal, Stage, hopeless_value, stages, value
from solver.patterns import Pattern, enumerate_maximal
from solver.reduce import Floats, Ints, Reduced

_ENUMERATE = 1500
"""Maximal patterns up to which all of them are taken: CP-SAT proves such masters in well under a second."""


@dataclass(frozen=True)
class Outcome:
    """The best selection found, what it comes to, and what is proven of it."""

    reduced: Reduced
    columns: Columns
    selection: Selection
    batches: Sequence[writeout.Batch]
    values: Mapping[Stage, int]
    bounds: Mapping[Stage, int]
    """Proven for the problem, never above `values`."""


@dataclass(frozen=True)
class Columns:
    """Patterns to choose from. They stay good for the same classes and kinds in smaller numbers."""

    patterns: Sequence[Pattern]
    complete: bool
    """Whether these are all the maximal ones that matter."""
    pod_values: Floats
    """Per spec, from a relaxation: a guide for the greedy."""


def optimise(reduced: Reduced, meter: Meter, fraction: float) -> Outcome:
    """Within the first `fraction` of the budget, with bounds."""
    fluid = FluidModel(reduced, needed_kinds(reduced))
    found, relaxed = _columns(reduced, fluid, meter, fraction)
    return _choose(reduced, found, relaxed, None if found.complete else fluid, meter, fraction)


def find_columns(reduced: Reduced, meter: Meter, fraction: float) -> Columns:
    """The columns alone, for comparing many variations of one problem."""
    return _columns(reduced, FluidModel(reduced, needed_kinds(reduced)), meter, fraction)[0]


def choose(reduced: Reduced, known: Columns, meter: Meter, fraction: float) -> Outcome:
    """The best selection of columns that were complete for an earlier, larger problem of the same classes and kinds."""
    return _choose(reduced, known, None, None, meter, fraction)


def _choose(
    reduced: Reduced,
    known: Columns,
    relaxed: Relaxation | None,
    fluid: FluidModel | None,
    meter: Meter,
    fraction: float,
) -> Outcome:
    order = stages(reduced)
    pool = Pool(reduced)
    pool.add(known.patterns)
    start = greedy.select(pool, columns.weighting(reduced), known.pod_values, relaxed)
    reached = dict(zip(order, start.objective(pool, order), strict=True))
    # Bounded before the long part, so that an answer in time has an honest bound. Holding earlier stages to what the
    # incumbent reached (or better) only loosens it.
    floors = _fluid_bounds(fluid, order, reached) if fluid else {s: hopeless_value(s, reduced) for s in order}
    result = Master(pool).minimise(order, start, floors, meter, fraction)
    batches = writeout.batches(pool, result.selection)
    reached = _values(reduced, order, result.selection, batches)
    bounds = result.bounds if known.complete else floors
    proven = {stage: min(bounds[stage], reached[stage]) for stage in order}
    return Outcome(reduced, known, result.selection, batches, reached, proven)


def _columns(reduced: Reduced, fluid: FluidModel, meter: Meter, fraction: float) -> tuple[Columns, Relaxation | None]:
    pool, active = Pool(reduced), fluid.active
    pool.add(Pattern(kind.index, (0,) * len(reduced.specs)) for kind in reduced.new_kinds if kind.least)
    every = enumerate_maximal(reduced, _ENUMERATE, set(active.tolist()))
    if every is not None:
        pool.add(every)
        return Columns(pool.patterns, True, np.ones(len(reduced.specs))), None
    weights = columns.weighting(reduced)
    guide = _weights(reduced, stages(reduced), weights)
    values = fluid.pod_values(guide, meter.wall_limit(fraction * 0.5))
    values = np.ones(len(reduced.specs)) if values is None else values
    relaxed = _generate(pool, values, active, weights, meter, fraction)
    return Columns(pool.patterns, False, values if relaxed is None else relaxed.pod_values), relaxed


def _weights(reduced: Reduced, order: Sequence[Stage], weights: columns.Weighting) -> dict[Stage, float]:
    """The column weighting, told in stages, for the fluid model."""
    dearest = float(weights.node_cost.max(initial=1.0))
    factors: dict[Stage, float] = {}
    for stage in order:
        if stage.goal is Goal.COST:
            kinds = [k for k in reduced.new_kinds if k.weight == stage.key and k.price_micros]
            factors[stage] = weights.node_cost[kinds[0].index] / kinds[0].price_micros if kinds else 1.0
        elif stage.goal in (Goal.UNSERVED, Goal.PLACEHOLDERS):
            factors[stage] = 4.0 * dearest
    return factors


def _generate(
    pool: Pool, values: Floats, active: Ints, weights: columns.Weighting, meter: Meter, fraction: float
) -> Relaxation | None:
    """Column generation until it stalls or half of the budget is gone."""
    rng = np.random.default_rng(1)
    columns.seed(pool, values, active, rng, samples=20)
    master = columns.RelaxedMaster(pool, weights)
    best: Relaxation | None = None
    stalled = 0
    while stalled < 3 and (best is None or meter.left_seconds(fraction * 0.5) > 0):
        found = master.solve(None if best is None else meter.wall_limit(fraction * 0.6))
        meter.charge(PROPOSE_SECONDS)
        if found is None:
            break
        stalled = stalled + 1 if best is not None and found.objective > best.objective * (1 - 1e-4) else 0
        best = found
        if not columns.improve(pool, found, weights, active, rng):
            break
    # What was added last has no place in the last relaxation yet.
    return None if best is None else replace(best, nodes=_resized(best.nodes, len(pool.patterns)))


def _resized(nodes: Floats, size: int) -> Floats:
    return np.concatenate([nodes, np.zeros(size - len(nodes))])


def _values(
    reduced: Reduced, order: Sequence[Stage], selection: Selection, batches: Sequence[writeout.Batch]
) -> dict[Stage, int]:
    opened = [0] * len(reduced.kinds)
    for batch in batches:
        opened[batch.kind] += batch.count
    missing = selection.all_unserved(reduced)
    return {stage: value(stage, reduced, missing, opened) for stage in order}


def _fluid_bounds(fluid: FluidModel, order: Sequence[Stage], reached: Mapping[Stage, int]) -> dict[Stage, int]:
    """Bounds that hold for the problem itself, whatever the pool. The last stage (number of nodes) has none beyond
    the trivial one: nobody is shown it."""
    bounds = {stage: hopeless_value(stage, fluid.reduced) for stage in order}
    fixed: dict[Stage, int] = {}
    for stage in order:
        if reached[stage] > bounds[stage] and stage.goal is not Goal.NODES:
            found = fluid.minimise(stage, fixed)
            if found is not None:
                # The relaxation is solved in floating point: give away a billionth rather than claim too much.
                bounds[stage] = max(bounds[stage], int(np.ceil(found[0] * (1 - 1e-9) - 1e-3)))
        fixed[stage] = reached[stage]
    return bounds
