"""The one way in to planning: `solve(problem, budget) -> Plan`. Reads from top to bottom as the recipe does.

1. Refuse what cannot be meant, reduce the rest to classes and kinds (`validate`, `reduce`, `dominance`).
2. Few maximal patterns: take them all, then CP-SAT's optimum is the optimum. Otherwise: fluid values, a seeded pool,
   column generation while it pays (`fluid`, `columns`).
3. A greedy incumbent at once, CP-SAT over the pool, stage by stage (`greedy`, `master`).
4. Bounds of every stage, the written-out plan, the independent check (`writeout`, `check`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver import columns, greedy, reasons, writeout
from solver.budgeting import PROPOSE_SECONDS, Meter
from solver.check import check
from solver.columns import Pool, Relaxation
from solver.dominance import needed_kinds
from solver.fluid import FluidModel
from solver.master import Master, Selection
from solver.model import Budget, Certificate, Plan, PodSet, Problem, Status, TierCost
from solver.objectives import Goal, Stage, hopeless_value, stages, value
from solver.patterns import Pattern, enumerate_maximal
from solver.reduce import MICROS, Demand, Floats, Ints, Reduced, reduce
from solver.validate import validate

_ENUMERATE = 1500
"""Maximal patterns up to which all of them are taken: CP-SAT proves such masters in well under a second."""
_MAIN_SHARE = 0.75
"""Of the budget; the rest is for the price of priority, where there is more than one tier."""


def solve(problem: Problem, budget: Budget | None = None) -> Plan:
    """The best plan found within `budget` (default: one second), with a certificate of how good it is.

    Raises `solver.errors.ProblemError` for a problem that cannot be meant, naming every fault. Every plan has passed
    `solver.check.check`. The result depends on nothing but the arguments where the budget is deterministic.
    """
    meter = Meter(budget or Budget())
    validate(problem)
    reduced = reduce(problem)
    tiered = len(reduced.tiers) > 1
    outcome = _optimise(reduced, meter, _MAIN_SHARE if tiered else 1.0)
    cost = sum(outcome.values[s] for s in outcome.values if s.goal is Goal.COST)
    priority = max(0, cost - _cost_with_equal_weights(outcome, meter)) if tiered and cost else 0
    plan = _plan(outcome, priority, meter)
    check(problem, plan)
    return plan


@dataclass(frozen=True)
class _Outcome:
    reduced: Reduced
    selection: Selection
    batches: Sequence[writeout.Batch]
    values: Mapping[Stage, int]
    bounds: Mapping[Stage, int]
    """Proven for the problem, never above `values`."""


def _optimise(reduced: Reduced, meter: Meter, fraction: float) -> _Outcome:
    order = stages(reduced)
    active = needed_kinds(reduced)
    pool = Pool(reduced)
    for kind in reduced.new_kinds:
        if kind.least:
            pool.add([Pattern(kind.index, (0,) * len(reduced.specs))])
    complete = _complete_pool(pool, active)
    weights = columns.weighting(reduced)
    fluid = FluidModel(reduced, active)
    relaxed: Relaxation | None = None
    values = np.ones(len(reduced.specs))
    if not complete:
        found = fluid.pod_values(_weights(reduced, order, weights), meter.wall_limit(fraction * 0.5))
        values = values if found is None else found
        relaxed = _generate(pool, values, active, weights, meter, fraction)
    start = greedy.select(pool, weights, values if relaxed is None else relaxed.pod_values, relaxed)
    floors: Mapping[Stage, int] = {}
    if not complete:
        # Bounded before the long part, so that an answer in time has an honest bound. Holding earlier stages to what
        # the incumbent reached (or better) only loosens it.
        reached = dict(zip(order, _padded(start, pool).objective(pool, order), strict=True))
        floors = _fluid_bounds(fluid, order, reached)
    result = Master(pool).minimise(order, _padded(start, pool), floors, meter, fraction)
    selection = result.selection
    batches = writeout.batches(pool, selection)
    reached = _values(reduced, order, selection, batches)
    bounds = result.bounds if complete else floors
    return _Outcome(reduced, selection, batches, reached, {s: min(bounds[s], reached[s]) for s in order})


def _complete_pool(pool: Pool, active: Ints) -> bool:
    needed = set(active.tolist())
    patterns = enumerate_maximal(pool.reduced, _ENUMERATE, needed)
    if patterns is None:
        return False
    pool.add(patterns)
    return True


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
    best: Relaxation | None = None
    stalled = 0
    while stalled < 3 and (best is None or meter.left_seconds(fraction * 0.5) > 0):
        found = columns.relax(pool, weights, None if best is None else meter.wall_limit(fraction * 0.6))
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


def _padded(start: Selection, pool: Pool) -> Selection:
    missing = len(pool.patterns) - len(start.nodes)
    return Selection((*start.nodes, *([0] * missing)), start.unserved)


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


def _cost_with_equal_weights(outcome: _Outcome, meter: Meter) -> int:
    """The cost, in millionths of $/h, of serving the same pods as one tier."""
    problem = outcome.reduced.problem
    left = writeout.unserved_demands(outcome.reduced, outcome.selection)
    served = tuple(
        PodSet(d.example, outcome.reduced.specs[d.spec], d.count - left.get(d, 0), d.priority, gang=d.gang)
        for d in outcome.reduced.demands
        if d.count > left.get(d, 0)
    )
    equal = tuple(replace(group, weight=0) for group in problem.node_groups)
    same = reduce(replace(problem, pod_sets=served, node_groups=equal))
    other = _optimise(same, meter, 1.0)
    if any(v for s, v in other.values.items() if s.goal in (Goal.UNSERVED, Goal.PLACEHOLDERS)):
        return sum(v for s, v in outcome.values.items() if s.goal is Goal.COST)
    return sum(v for s, v in other.values.items() if s.goal is Goal.COST)


def _plan(outcome: _Outcome, priority_micros: int, meter: Meter) -> Plan:
    reduced = outcome.reduced
    planned = writeout.new_nodes(reduced, outcome.batches)
    increments = writeout.increments(planned)
    missing = writeout.unserved_demands(reduced, outcome.selection)
    tiers = tuple(
        TierCost(stage.key, outcome.values[stage] / MICROS, outcome.bounds[stage] / MICROS)
        for stage in outcome.values
        if stage.goal is Goal.COST
    )
    cost = sum(outcome.values[s] for s in outcome.values if s.goal is Goal.COST)
    bound = sum(outcome.bounds[s] for s in outcome.bounds if s.goal is Goal.COST)
    certificate = Certificate(
        _status(outcome, missing),
        cost / MICROS,
        bound / MICROS,
        (cost - bound) / cost if cost else 0.0,
        tuple(reversed(tiers)),
        priority_micros / MICROS,
    )
    return Plan(
        reduced.pod_classes(),
        increments,
        planned,
        writeout.on_existing(reduced, outcome.batches),
        reasons.unplaced(reduced, missing, increments),
        certificate,
        meter.elapsed_seconds(),
        tuple(v / MICROS if s.goal is Goal.COST else float(v) for s, v in outcome.values.items()),
    )


def _status(outcome: _Outcome, missing: Mapping[Demand, int]) -> Status:
    pods = sum(demand.count for demand in outcome.reduced.demands)
    if pods and sum(missing.values()) == pods:
        return Status.INFEASIBLE
    proven = all(outcome.bounds[s] == v for s, v in outcome.values.items() if s.goal is not Goal.NODES)
    return Status.OPTIMAL if proven else Status.FEASIBLE
