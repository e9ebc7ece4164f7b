"""Lower bounds on a plan's objective, stage by stage: from relaxations, so they hold whatever patterns were
generated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from solver.columns.generation import LITTLE, cost_bound, generate
from solver.columns.pool import Duals, Pool, Weighting, weighting
from solver.columns.pricing import Effort, Pricer, PricingResult
from solver.integral.wide import WideModel
from solver.model.budget import PROPOSE_SECONDS, RunningBudget
from solver.model.objective import Goal, ObjectiveStage
from solver.reduction.dominance import needed_kinds
from solver.reduction.objective import breaks_ties, rounded_up, stages, step_of, unavoidable_value
from solver.reduction.reduce import reduce
from solver.reduction.reduced import Floats, Reduced
from solver.reduction.relaxed import without_rules
from solver.relaxation.fluid import FluidModel

Bounding = Callable[[ObjectiveStage, Mapping[ObjectiveStage, int]], float | None]
"""(stage, most that earlier stages may be) -> a lower bound on the stage, None where there was no time for one."""

_COLUMNS_SHARE = 0.5
"""Of the time for a bound by columns, what making them takes at most: the rest is for asking all kinds."""
_MORE = Effort(1, 100_000, 500_000)
"""For kinds of which little effort proves too little."""
_AT_ONCE = 8
"""Kinds that are asked again."""
_PAYS = 1 + 1e-6
_LATE = 0.05
"""Share of the budget that a bound may take once time is up: a plan without any bound is worth little."""


_MOST_WORK = 100_000
"""Of bounds of costs, and as much of those of other stages: earlier stages times resources, which is what one takes.
With hundreds of priorities only the first ones get a bound that looks at room."""
_MOST_LATE = 3
"""Bounds of costs, and of other stages, once time is up."""


class _BoundingWork:
    """How many bounds may be asked of a relaxation: there is a stage for each priority, and each takes longer than the
    one before."""

    def __init__(self, reduced: Reduced, out_of_time: Callable[[], bool]) -> None:
        self._resources, self._out_of_time = len(reduced.resources), out_of_time
        self._work: Counter[bool] = Counter()
        self._late: Counter[bool] = Counter()

    def permits(self, stage: ObjectiveStage, earlier: int) -> bool:
        """Return whether a bound of this stage, with so many stages before it, may be asked, and count it."""
        cost = stage.goal is Goal.COST
        if self._work[cost] > _MOST_WORK or self._late[cost] >= _MOST_LATE:
            return False
        self._work[cost] += (1 + earlier) * self._resources
        self._late[cost] += self._out_of_time()
        return True


class WithoutRules:
    """Bounds from the problem without rules over domains, without preferences, and without what keeps pods apart or
    together on a node but counters: every plan is a plan of that too."""

    def __init__(self, reduced: Reduced, budget: RunningBudget, fraction: float) -> None:
        bundles = any(row.bundle for row in reduced.rows) or not reduced.live
        self._free = (
            reduce(reduced.problem, domains=False, unbound_last=reduced.unbound_last)
            if bundles
            else without_rules(reduced)
        )
        self._model = WideModel(self._free, needed_kinds(self._free), budget)
        self._stages, self._budget, self._fraction = stages(self._free), budget, fraction

    def bound(self, stage: ObjectiveStage, fixed: Mapping[ObjectiveStage, int]) -> float | None:
        held = {other: value for other, value in fixed.items() if other in self._stages}
        return self._model.minimise(stage, held, self._fraction) if stage in self._stages else None

    def least_cost_micros(self, groups: AbstractSet[str], fraction: float) -> float:
        """Return what every plan costs that serves all pods, by the relaxation, and by columns while there is time:
        those of kinds of these groups, which are to be the ones of which good plans are made. 0 where there are several
        tiers."""
        free, model, weights = self._free, self._model, weighting(self._free)
        guide = weights_of(free, self._stages, weights)
        fluid = model.weighed(guide, fraction)
        least = cost_bound_of(free, guide, fluid.bound)
        useful = [kind.index for kind in free.kinds if kind.existing or groups & set(kind.groups)]
        kinds = np.intersect1d(np.array(useful, dtype=np.int64), model.active)
        if least <= 0.0 or not kinds.size or self._budget.left_seconds(fraction) <= 0:
            return least
        pool = Pool(free)
        made = generate(pool, fluid.pod_values, kinds, weights, self._budget, fraction * _COLUMNS_SHARE, model.over)
        if made is not None and self._budget.left_seconds(fraction) > 0:
            least = max(least, self._proven(made.relaxation.duals, weights.node_cost, fraction))
        return least

    def _proven(self, duals: Duals, node_cost: Floats, fraction: float) -> float:
        """Return what these values of pods prove: all kinds are asked, and then, more thoroughly, those again that may
        be worth the most for their price, while there is time. 0 where there is not even time to ask all."""
        free, active, budget = self._free, self._model.active, self._budget
        pricer, prices = Pricer(free, active, budget.granted.workers), duals.prices(node_cost, free)
        found: dict[int, PricingResult] = {}
        again: set[int] = set()
        asked, effort = active.tolist(), LITTLE
        while asked and budget.left_seconds(fraction) > 0:
            answers = pricer.offers(
                duals.pods, prices, 1.0, effort, lambda: budget.left_seconds(fraction) <= 0, frozenset(asked)
            )
            budget.charge(PROPOSE_SECONDS * (1 if effort is LITTLE else len(asked)))
            found.update((answer.kind, answer) for answer in answers)
            worth = {kind: float(found[kind].bound / prices[kind]) for kind in found if prices[kind] > 0}
            doubted = [kind for kind, share in worth.items() if share > _PAYS and kind not in again]
            asked, effort = sorted(doubted, key=lambda kind: (-worth[kind], kind))[:_AT_ONCE], _MORE
            again.update(asked)
        if len(found) < len(active):
            return 0.0
        return cost_bound(free, duals, list(found.values()), self._model.over).least_cost_micros


def with_rules(fluid: FluidModel, budget: RunningBudget, fraction: float) -> Bounding:
    """Return bounds by the fluid relaxation with rules; where there is no time for that, by the one without."""
    without: list[WithoutRules] = []

    def bound(stage: ObjectiveStage, fixed: Mapping[ObjectiveStage, int]) -> float | None:
        limit = None if budget.deterministic else max(budget.left_seconds(), budget.granted.seconds * _LATE)
        found = fluid.minimise(stage, fixed, limit)
        if found is None:
            if not without:
                without.append(WithoutRules(fluid.reduced, budget, fraction))
            found = without[0].bound(stage, fixed)
        return found

    return bound


def bounds_of(
    reduced: Reduced,
    order: Sequence[ObjectiveStage],
    reached: Mapping[ObjectiveStage, int],
    bounding: Bounding | None,
    least_cost_micros: float,
    out_of_time: Callable[[], bool],
) -> dict[ObjectiveStage, int]:
    """Return bounds that hold for the problem itself, whatever the pool: what no plan can avoid, and a relaxation's
    where there is one and time; never above what is reached. The last stages (`breaks_ties`) are not reported, so they
    get no bound from a relaxation."""
    work = _BoundingWork(reduced, out_of_time)
    bounds = {stage: unavoidable_value(stage, reduced) for stage in order}
    fixed: dict[ObjectiveStage, int] = {}
    everything = all(reached[s] == bounds[s] for s in order if s.goal is not Goal.COST and not breaks_ties(s))
    for stage in order:
        if stage.goal is Goal.COST and everything and least_cost_micros:
            bounds[stage] = rounded_up(least_cost_micros, step_of(stage, reduced))
        elif bounding and reached[stage] > bounds[stage] and not breaks_ties(stage):
            found = bounding(stage, fixed) if work.permits(stage, len(fixed)) else None
            if found is not None:
                bounds[stage] = max(bounds[stage], rounded_up(found, step_of(stage, reduced)))
        fixed[stage] = reached[stage]
    return {stage: min(bounds[stage], reached[stage]) for stage in order}


def weights_of(reduced: Reduced, order: Sequence[ObjectiveStage], weights: Weighting) -> dict[ObjectiveStage, float]:
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


def cost_bound_of(reduced: Reduced, guide: Mapping[ObjectiveStage, float], weighed: float) -> float:
    """Return a bound on the cost of serving every pod, from one on the weighted objective: with one tier, that is cost
    times the tier's weight. Zero with more tiers."""
    if len(reduced.tiers) != 1:
        return 0.0
    return weighed / guide.get(ObjectiveStage(Goal.COST, reduced.tiers[0]), 1.0)
