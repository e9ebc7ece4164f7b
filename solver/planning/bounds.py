"""Lower bounds on a plan's objective, stage by stage: from relaxations, so they hold whatever patterns were
generated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from solver.integral.wide import WideModel
from solver.model.budget import RunningBudget
from solver.model.objective import Goal, ObjectiveStage
from solver.reduction.dominance import needed_kinds
from solver.reduction.objective import breaks_ties, stages, unavoidable_value
from solver.reduction.reduce import reduce
from solver.reduction.reduced import Reduced
from solver.relaxation.fluid import FluidModel

Bounding = Callable[[ObjectiveStage, Mapping[ObjectiveStage, int]], float | None]
"""(stage, most that earlier stages may be) -> a lower bound on the stage, None where there was no time for one."""

_LATE = 0.05
"""Share of the budget that a bound may take once time is up: a plan without any bound is worth little."""


def without_rules(reduced: Reduced, budget: RunningBudget, fraction: float) -> Bounding:
    """Return bounds from the problem without rules over domains and without preferences: every plan is a plan of that
    too."""
    free = reduce(reduced.problem, domains=False)
    model, shared = WideModel(free, needed_kinds(free), budget), frozenset(stages(free))

    def bound(stage: ObjectiveStage, fixed: Mapping[ObjectiveStage, int]) -> float | None:
        held = {other: value for other, value in fixed.items() if other in shared}
        return model.minimise(stage, held, fraction) if stage in shared else None

    return bound


def with_rules(fluid: FluidModel, budget: RunningBudget, fraction: float) -> Bounding:
    """Return bounds by the fluid relaxation with rules; where there is no time for that, by the one without."""
    without: list[Bounding] = []

    def bound(stage: ObjectiveStage, fixed: Mapping[ObjectiveStage, int]) -> float | None:
        limit = None if budget.deterministic else max(budget.left_seconds(), budget.granted.seconds * _LATE)
        found = fluid.minimise(stage, fixed, limit)
        if found is None:
            if not without:
                without.append(without_rules(fluid.reduced, budget, fraction))
            found = without[0](stage, fixed)
        return found

    return bound


def bounds_of(
    reduced: Reduced,
    order: Sequence[ObjectiveStage],
    reached: Mapping[ObjectiveStage, int],
    bounding: Bounding | None,
    least_cost_micros: float,
) -> dict[ObjectiveStage, int]:
    """Return bounds that hold for the problem itself, whatever the pool: what no plan can avoid, and a relaxation's
    where there is one and time; never above what is reached. The last stages (`breaks_ties`) are not reported, so they
    get no bound from a relaxation."""
    bounds = {stage: unavoidable_value(stage, reduced) for stage in order}
    fixed: dict[ObjectiveStage, int] = {}
    everything = all(reached[s] == bounds[s] for s in order if s.goal is not Goal.COST and not breaks_ties(s))
    for stage in order:
        if stage.goal is Goal.COST and everything and least_cost_micros:
            bounds[stage] = _rounded_up(least_cost_micros, _step(stage, reduced))
        elif bounding and reached[stage] > bounds[stage] and not breaks_ties(stage):
            found = bounding(stage, fixed)
            if found is not None:
                bounds[stage] = max(bounds[stage], _rounded_up(found, _step(stage, reduced)))
        fixed[stage] = reached[stage]
    return {stage: min(bounds[stage], reached[stage]) for stage in order}


def _step(stage: ObjectiveStage, reduced: Reduced) -> int:
    """Return a number that every value of the stage is a multiple of."""
    if stage.goal is not Goal.COST:
        return 1
    return math.gcd(*(k.price_micros for k in reduced.new_kinds if k.weight == stage.key)) or 1


def _rounded_up(bound: float, step: int) -> int:
    """Round a bound up to the next possible value, less a billionth: the relaxation is solved in floating point."""
    return -int(-(bound * (1 - 1e-9) - 1e-3) // step) * step
