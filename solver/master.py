"""The integral master problem: how many nodes of each pattern, solved by CP-SAT, one stage of the objective after the
other, each with the earlier ones held at what they reached.

Every solve starts from a complete hint, so an answer is there at once, and an optimum of one stage is the next one's
first solution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from solver.budgeting import Meter
from solver.columns import Pool
from solver.objectives import Goal, Stage, hopeless_value, value
from solver.reduce import Demand, Reduced

_FEASIBLE = (cp_model.OPTIMAL, cp_model.FEASIBLE)


@dataclass(frozen=True, slots=True)
class Selection:
    """Nodes per column of the pool, and pods left unserved per live demand index."""

    nodes: tuple[int, ...]
    unserved: Mapping[int, int]

    def opened(self, pool: Pool) -> list[int]:
        """New and existing nodes used, per kind."""
        total = [0] * len(pool.reduced.kinds)
        for pattern, count in zip(pool.patterns, self.nodes, strict=True):
            total[pattern.kind] += count
        return total

    def all_unserved(self, reduced: Reduced) -> dict[int, int]:
        """With the demands that no plan can serve."""
        return {**{d.index: d.count for d in reduced.demands if d.index in reduced.hopeless}, **self.unserved}

    def objective(self, pool: Pool, stages: Sequence[Stage]) -> tuple[int, ...]:
        unserved, opened = self.all_unserved(pool.reduced), self.opened(pool)
        return tuple(value(stage, pool.reduced, unserved, opened) for stage in stages)


@dataclass(frozen=True, slots=True)
class MasterResult:
    selection: Selection
    bounds: Mapping[Stage, int]
    """Per stage a lower bound over this pool, with earlier stages at their values; a bound of the problem itself only
    where the pool holds every maximal pattern."""


class Master:
    """The CP-SAT model over a pool, built once."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        reduced = pool.reduced
        self._model = model = cp_model.CpModel()
        self._nodes = [
            model.new_int_var(0, reduced.kinds[pattern.kind].most, f"nodes_{index}")
            for index, pattern in enumerate(pool.patterns)
        ]
        self._unserved: dict[int, cp_model.IntVar] = {}
        self._steps: dict[int, list[cp_model.IntVar]] = {}
        self._served: dict[str, cp_model.IntVar] = {}
        for demand in reduced.live:
            self._add_demand(demand)
        self._cover()
        self._room()

    def _add_demand(self, demand: Demand) -> None:
        model = self._model
        left = model.new_int_var(0, demand.count, f"unserved_{demand.index}")
        self._unserved[demand.index] = left
        if demand.gang is not None:
            if demand.gang not in self._served:
                self._served[demand.gang] = model.new_bool_var(f"gang_{demand.gang}")
            model.add(left == demand.count - demand.count * self._served[demand.gang])
        if any(age for age, _ in demand.ages):
            steps = [model.new_int_var(0, count, "") for _, count in demand.ages]
            model.add(sum(steps) == left)
            self._steps[demand.index] = steps

    def _cover(self) -> None:
        reduced = self._pool.reduced
        serving: list[list[tuple[int, int]]] = [[] for _ in reduced.specs]
        for column, pattern in enumerate(self._pool.patterns):
            for spec, count in pattern.pods:
                serving[spec].append((column, count))
        for spec, columns in enumerate(serving):
            claims = [d for d in reduced.live if d.spec == spec]
            if claims:
                placed = cp_model.LinearExpr.weighted_sum(
                    [self._nodes[column] for column, _ in columns], [count for _, count in columns]
                )
                left = cp_model.LinearExpr.sum([self._unserved[d.index] for d in claims])
                self._model.add(placed + left >= sum(d.count for d in claims))

    def _room(self) -> None:
        reduced, kinds = self._pool.reduced, self._pool.kinds()
        for kind in reduced.kinds:
            columns = [self._nodes[c] for c in (kinds == kind.index).nonzero()[0]]
            if columns:
                self._model.add_linear_constraint(cp_model.LinearExpr.sum(columns), kind.least, kind.most)
        for row, allowed in enumerate(reduced.limits):
            use = [reduced.kinds[pattern.kind].use[row] for pattern in self._pool.patterns]
            self._model.add(cp_model.LinearExpr.weighted_sum(self._nodes, use) <= allowed)

    def _expression(self, stage: Stage) -> cp_model.LinearExpr:
        reduced = self._pool.reduced
        if stage.goal in (Goal.COST, Goal.NODES):
            costs = []
            for pattern in self._pool.patterns:
                kind = reduced.kinds[pattern.kind]
                costs.append(0 if kind.existing else stage.node_cost(kind.price_micros, kind.weight))
            return cp_model.LinearExpr.weighted_sum(self._nodes, costs)
        claims = [d for d in reduced.live if stage.counts(d)]
        if stage.goal is Goal.WAITING:
            terms = [
                (step, age)
                for d in claims
                for step, (age, _) in zip(self._steps.get(d.index, ()), d.ages, strict=False)
            ]
            return cp_model.LinearExpr.weighted_sum([s for s, _ in terms], [age for _, age in terms])
        return cp_model.LinearExpr.sum([self._unserved[d.index] for d in claims])

    def minimise(
        self, stages: Sequence[Stage], start: Selection, floors: Mapping[Stage, int], meter: Meter, fraction: float
    ) -> MasterResult:
        """Stage after stage within the first `fraction` of the budget. A stage whose value meets its floor is not
        solved again; `floors` are bounds for plans whose earlier stages are no worse than the start's."""
        reduced, best = self._pool.reduced, start
        bounds: dict[Stage, int] = {}
        began, sound = dict(zip(stages, start.objective(self._pool, stages), strict=True)), True
        for position, stage in enumerate(stages):
            current = best.objective(self._pool, [stage])[0]
            avoidable = current - hopeless_value(stage, reduced)
            floor = max(floors.get(stage, 0) if sound else 0, hopeless_value(stage, reduced))
            bounds[stage] = floor
            # What is left is shared out evenly, so that one hard stage does not starve the next.
            share = meter.left_seconds(fraction) / (len(stages) - position)
            if current > floor and share > 0:
                expression = self._expression(stage)
                self._model.minimize(expression)
                found, bound = self._solve(best, share, meter)
                bounds[stage] = max(floor, bound + hopeless_value(stage, reduced))
                if found is not None and found.objective(self._pool, [stage])[0] <= current:
                    best = found
                    avoidable = best.objective(self._pool, [stage])[0] - hopeless_value(stage, reduced)
            sound = sound and best.objective(self._pool, [stage])[0] <= began[stage]
            self._model.clear_objective()  # type: ignore[no-untyped-call]
            self._model.add_linear_constraint(self._expression(stage), 0, avoidable)
        return MasterResult(best, bounds)

    def _solve(self, start: Selection, seconds: float, meter: Meter) -> tuple[Selection | None, int]:
        self._hint(start)
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = meter.budget.workers
        parameters.random_seed = 1
        if meter.deterministic:
            parameters.max_deterministic_time = seconds
            parameters.interleave_search = meter.budget.workers > 1
        else:
            parameters.max_time_in_seconds = seconds
        status = solver.solve(self._model)
        meter.charge(solver.response_proto.deterministic_time)
        if status not in _FEASIBLE:
            return None, 0
        nodes = tuple(solver.value(variable) for variable in self._nodes)
        unserved = {index: solver.value(variable) for index, variable in self._unserved.items()}
        return Selection(nodes, unserved), math.ceil(solver.best_objective_bound - 1e-6)

    def _hint(self, start: Selection) -> None:
        model, demands = self._model, {d.index: d for d in self._pool.reduced.live}
        model.clear_hints()  # type: ignore[no-untyped-call]
        for variable, count in zip(self._nodes, start.nodes, strict=True):
            model.add_hint(variable, count)
        for index, variable in self._unserved.items():
            model.add_hint(variable, start.unserved[index])
        for gang, served in self._served.items():
            model.add_hint(served, all(start.unserved[d.index] == 0 for d in demands.values() if d.gang == gang))
        for index, steps in self._steps.items():
            left = start.unserved[index]
            for step, (_, count) in zip(steps, demands[index].ages, strict=True):
                model.add_hint(step, min(left, count))
                left -= min(left, count)
