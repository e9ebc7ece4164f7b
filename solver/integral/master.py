"""The integral master problem: how many nodes of each pattern, solved by CP-SAT, one stage of the objective after the
other, each with the earlier ones fixed at what they reached.

Every solve starts from a complete hint, so a result is there at once, and an optimum of one stage is the next one's
first solution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ortools.sat.python import cp_model

from solver.columns.pool import Pool
from solver.model.budget import RunningBudget
from solver.model.objective import Goal, ObjectiveStage
from solver.reduction.objective import Units, breaks_ties, unavoidable_value, value
from solver.reduction.reduced import Reduced
from solver.relaxation.claims import add_linear, claims, completed, near, sum_of, units_of, unserved_of
from solver.relaxation.cp_sat import FEASIBLE, Model, new_solver, solve_within

_TIES_SHARE = 0.1
"""Of the time that any other stage gets, for one that only chooses among equally good plans."""
_SEARCH = "max_lp"
"""Of CP-SAT's searches, the one whose linear relaxation has every row. The default one leaves out rows over integers:
of fifty pods in ten classes a sixth of the cost stayed unproven."""


def _share(stage: ObjectiveStage) -> float:
    """Return the weight of the stage where time is divided."""
    return _TIES_SHARE if breaks_ties(stage) else 1.0


@dataclass(frozen=True, slots=True)
class Selection:
    """Nodes per column of the pool, and pods left unserved per live demand index."""

    nodes: tuple[int, ...]
    unserved: Mapping[int, int]
    units: Units = field(default_factory=dict)
    """For demands that have a choice of rows."""

    def within(self, pool: Pool) -> Selection:
        """Return the same selection over a pool that has grown."""
        return replace(self, nodes=(*self.nodes, *[0] * (len(pool.patterns) - len(self.nodes))))

    def opened(self, pool: Pool) -> list[int]:
        """Return new and existing nodes used, per kind."""
        total = [0] * len(pool.reduced.kinds)
        for pattern, count in zip(pool.patterns, self.nodes, strict=True):
            total[pattern.kind] += count
        return total

    def all_unserved(self, reduced: Reduced) -> dict[int, int]:
        """Return unserved pods by demand, with the demands that no plan can serve."""
        return {**reduced.lost, **self.unserved}

    def objective(self, pool: Pool, stages: Sequence[ObjectiveStage]) -> tuple[int, ...]:
        """Return the values of the given stages."""
        unserved, opened = self.all_unserved(pool.reduced), self.opened(pool)
        return tuple(value(stage, pool.reduced, unserved, opened, self.units) for stage in stages)


@dataclass(frozen=True, slots=True)
class MasterResult:
    selection: Selection
    bounds: Mapping[ObjectiveStage, int]
    """Per stage a lower bound over this pool, with earlier stages at their values; a bound of the problem itself only
    where the pool holds every maximal pattern."""


class Master:
    """The CP-SAT model over a pool, built once, around a selection to start from."""

    def __init__(self, pool: Pool, start: Selection) -> None:
        self._pool, self._start = pool, start
        reduced = pool.reduced
        self._model = model = Model()
        self._claims = claims(reduced)
        values = completed(self._claims, start.unserved, start.units)
        mosts = [reduced.kinds[pattern.kind].most for pattern in pool.patterns]
        compares = bool(self._claims.linear.rows or reduced.needs)
        ranges = [near(*each) if compares else (0, each[1]) for each in zip(start.nodes, mosts, strict=True)]
        self._nodes = [model.new_int_var(*each, f"nodes_{index}") for index, each in enumerate(ranges)]
        self._claimed = add_linear(model, self._claims.linear, values)
        uppers = [*mosts, *self._claims.linear.uppers]
        self._whole = all(
            tuple(variable.proto.domain) == (0, upper)
            for variable, upper in zip([*self._nodes, *self._claimed], uppers, strict=True)
        )
        self._cover()
        self._room()

    def _cover(self) -> None:
        reduced = self._pool.reduced
        serving: list[list[tuple[int, int]]] = [[] for _ in reduced.rows]
        for column, pattern in enumerate(self._pool.patterns):
            for row, count in pattern.pods:
                serving[row].append((column, count))
        # Room for more pods than there are is harmless, except for pods that others need beside them.
        exact = frozenset(row for need in reduced.needs for row in need.helpers)
        for row, (terms, constant) in enumerate(self._claims.needed):
            if not terms and not constant and row not in exact:
                continue
            supply = cp_model.LinearExpr.weighted_sum(
                [*(self._nodes[column] for column, _ in serving[row]), *(self._claimed[v] for v, _ in terms)],
                [*(count for _, count in serving[row]), *(-coefficient for _, coefficient in terms)],
            )
            if row in exact:
                self._model.add(supply == constant)
            else:
                self._model.add(supply >= constant)

    def _room(self) -> None:
        reduced, kinds = self._pool.reduced, self._pool.kinds()
        for kind in reduced.kinds:
            columns = [self._nodes[c] for c in (kinds == kind.index).nonzero()[0]]
            if columns:
                self._model.add_linear_constraint(cp_model.LinearExpr.sum(columns), kind.least, kind.most)
        for row, allowed in enumerate(reduced.limits):
            use = [reduced.kinds[pattern.kind].use[row] for pattern in self._pool.patterns]
            self._model.add(cp_model.LinearExpr.weighted_sum(self._nodes, use) <= allowed)

    def _expression(self, stage: ObjectiveStage) -> cp_model.LinearExpr:
        reduced = self._pool.reduced
        if stage.goal in (Goal.COST, Goal.NODES):
            costs = []
            for pattern in self._pool.patterns:
                kind = reduced.kinds[pattern.kind]
                costs.append(0 if kind.existing else stage.node_cost(kind.price_micros, kind.weight))
            return cp_model.LinearExpr.weighted_sum(self._nodes, costs)
        if stage.goal is Goal.CHANGE:
            return cp_model.LinearExpr.sum(self._changes())
        terms = self._claims.stages[stage]
        return sum_of(self._claimed, terms)

    def _changes(self) -> list[cp_model.IntVar]:
        """Return, per kind, by how many nodes it differs from the previous plan."""
        reduced, kinds = self._pool.reduced, self._pool.kinds()
        changes = []
        for kind in reduced.new_kinds:
            columns = (kinds == kind.index).nonzero()[0]
            if len(columns) or kind.previous:
                opened = cp_model.LinearExpr.sum([self._nodes[c] for c in columns])
                change = self._model.new_int_var(0, kind.most + kind.previous, "")
                self._model.add(opened - change <= kind.previous)
                self._model.add(opened + change >= kind.previous)
                changes.append(change)
        return changes

    def minimise(
        self,
        stages: Sequence[ObjectiveStage],
        floors: Mapping[ObjectiveStage, int],
        budget: RunningBudget,
        fraction: float,
        found: Callable[[Selection], None] | None = None,
    ) -> MasterResult:
        """Minimise stage after stage within the first `fraction` of the budget. A stage whose value meets its floor is
        not solved again; `floors` are bounds for plans whose earlier stages are no worse than the start's.
        `found` is told each selection that CP-SAT finds."""
        reduced, best = self._pool.reduced, self._start
        bounds: dict[ObjectiveStage, int] = {}
        began = values = self._values(best, stages)
        held, left = True, sum(map(_share, stages))
        for stage in stages:
            unavoidable = unavoidable_value(stage, reduced)
            floor = max(floors.get(stage, 0) if held else 0, unavoidable)
            bounds[stage] = floor
            # The time left is divided, so that one hard stage does not starve the next.
            share = budget.left_seconds(fraction) * _share(stage) / left
            left -= _share(stage)
            expression = self._expression(stage)
            if values[stage] > floor and share > 0:
                self._model.minimize(expression)
                better, bound = self._solve(best, share, budget, found)
                if self._whole:
                    bounds[stage] = max(floor, bound + unavoidable)
                if better is not None and (reached := self._values(better, stages))[stage] <= values[stage]:
                    best, values = better, reached
                self._model.clear_objective()  # type: ignore[no-untyped-call]
            held = held and values[stage] <= began[stage]
            self._model.add_linear_constraint(expression, 0, values[stage] - unavoidable)
        return MasterResult(best, bounds)

    def _values(self, selection: Selection, stages: Sequence[ObjectiveStage]) -> dict[ObjectiveStage, int]:
        return dict(zip(stages, selection.objective(self._pool, stages), strict=True))

    def _solve(
        self, start: Selection, seconds: float, budget: RunningBudget, told: Callable[[Selection], None] | None
    ) -> tuple[Selection | None, int]:
        self._hint(start)
        solver = new_solver(budget.granted.workers)
        solver.parameters.linearization_level = 2
        solver.parameters.subsolvers.append(_SEARCH)
        solver.parameters.interleave_search = budget.deterministic and budget.granted.workers > 1
        callback = None if told is None else _Solutions(self._selection, told)
        status = solve_within(self._model, solver, budget, seconds, callback)
        if status not in FEASIBLE:
            return None, 0
        return self._selection(solver.value), math.ceil(solver.best_objective_bound - 1e-6)

    def _selection(self, value_of: Callable[[cp_model.IntVar], int]) -> Selection:
        nodes = tuple(value_of(variable) for variable in self._nodes)
        values = [value_of(variable) for variable in self._claimed]
        return Selection(nodes, unserved_of(self._claims, values), units_of(self._claims, values))

    def _hint(self, start: Selection) -> None:
        self._model.clear_hints()  # type: ignore[no-untyped-call]
        for variable, count in zip(self._nodes, start.nodes, strict=True):
            self._model.add_hint(variable, count)
        for variable, count in zip(self._claimed, completed(self._claims, start.unserved, start.units), strict=True):
            self._model.add_hint(variable, count)


class _Solutions(cp_model.CpSolverSolutionCallback):
    """Hands on what CP-SAT finds while it searches."""

    def __init__(
        self,
        selection: Callable[[Callable[[cp_model.IntVar], int]], Selection],
        told: Callable[[Selection], None],
    ) -> None:
        super().__init__()
        self._selection = selection
        self._told = told

    def on_solution_callback(self) -> None:
        self._told(self._selection(self.value))
