"""The demand side of a reduced problem in linear terms: what is served through which row, what is not, and the rules
between rows. `fluid` relaxes it, `master` and `quotas` take it as it is; none of them knows a rule by name. The supply
side (nodes, capacity, cost) is not here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from solver.model.objective import Goal, ObjectiveStage
from solver.reduction.objective import Units, breaks_ties, stages
from solver.reduction.reduced import Demand, Reduced
from solver.reduction.rules import Linear, LinearTerm, Rows, value_of
from solver.relaxation.cp_sat import FEASIBLE, Model, new_solver
from solver.relaxation.linear_program import INFINITY, LinearProgram

_WORK_SECONDS = 0.2
"""Deterministic seconds (CP-SAT's own count) for a question about the demand side alone."""
_LARGE, _REACH = 200_000, 10_000
"""Pods or nodes that CP-SAT takes as they are, and how far it may depart from a start where there may be more: some
milliseconds where it goes step by step."""
_NEXT_STAGE = 0.01
"""What a stage of the objective counts in a relaxation, in units of the one before it."""


@dataclass(frozen=True, slots=True)
class Claims:
    """The demand side: variables are indices into `linear.uppers`, terms are (variable, coefficient) pairs."""

    linear: Linear
    units: Mapping[tuple[int, int], int]
    """(demand, row) -> variable, for demands that have a choice. A bundle's variable is shared by its demands."""
    unserved: Mapping[int, tuple[LinearTerm, ...]]
    """Per live demand: its pods left unserved."""
    lost: Mapping[str, int]
    """Gang -> variable that is 1 where it is not served."""
    needed: tuple[tuple[tuple[LinearTerm, ...], int], ...]
    """Per row: (terms, constant), the units that nodes must have room for."""
    stages: Mapping[ObjectiveStage, tuple[LinearTerm, ...]]
    """Of the stages that count pods, without what no plan can avoid."""

    @property
    def chooses(self) -> bool:
        """Whether any demand has a choice of rows."""
        return bool(self.units)


def claims(reduced: Reduced) -> Claims:
    """Return the demand side of the problem."""
    builder = _Builder(reduced)
    return builder.result()


class _Builder:
    def __init__(self, reduced: Reduced) -> None:
        self._reduced = reduced
        self._linear = Linear()
        self._reached = frozenset(np.flatnonzero(reduced.fits.any(axis=0)).tolist())
        self._live = frozenset(demand.index for demand in reduced.live)
        self._units: dict[tuple[int, int], int] = {}
        self._of_row: list[list[int]] = [[] for _ in reduced.rows]
        self._unserved: dict[int, tuple[LinearTerm, ...]] = {}
        self._lost: dict[str, int] = {}
        self._needed: list[tuple[list[LinearTerm], int]] = [([], 0) for _ in reduced.rows]
        self._stages: dict[ObjectiveStage, list[LinearTerm]] = {
            stage: [] for stage in stages(reduced) if stage.goal is not Goal.COST and not breaks_ties(stage)
        }

    def result(self) -> Claims:
        chooses = bool(self._reduced.rules) or any(row.bundle or row.given_up for row in self._reduced.rows)
        for demand in self._reduced.live:
            self._leave(demand)
            if len(demand.rows) == 1 and not chooses:
                (row,) = demand.rows
                terms, constant = self._needed[row]
                terms.extend((variable, -pods) for variable, pods in self._unserved[demand.index])
                self._needed[row] = (terms, constant + demand.count)
            else:
                self._choose(demand)
        for bundles in self._reduced.together:
            chosen = {variable for row in bundles for variable in self._of_row[row]}
            self._linear.constrain([(variable, 1) for variable in sorted(chosen)], None, 1)
        for rule in self._reduced.rules:
            rule.emit(self._linear, self._terms)
        return Claims(
            self._linear,
            self._units,
            self._unserved,
            self._lost,
            tuple((tuple(terms), constant) for terms, constant in self._needed),
            {stage: tuple(terms) for stage, terms in self._stages.items()},
        )

    def _terms(self, rows: Rows) -> list[LinearTerm]:
        return [(variable, pods) for row, pods in rows for variable in self._of_row[row]]

    def _leave(self, demand: Demand) -> None:
        """Add variables for what stays unserved: one per gang, otherwise one per age."""
        if demand.gang is not None:
            if demand.gang not in self._lost:
                self._lost[demand.gang] = self._linear.variable(1)
            parts = [(self._lost[demand.gang], demand.count, sum(age * pods for age, pods in demand.ages))]
        elif any(age for age, _ in demand.ages):
            parts = [(self._linear.variable(pods), 1, age) for age, pods in demand.ages]
        else:
            parts = [(self._linear.variable(demand.count), 1, 0)]
        self._unserved[demand.index] = tuple((variable, pods) for variable, pods, _ in parts)
        for stage in demand.counted_in:
            waiting = stage.goal is Goal.WAITING
            self._stages[stage].extend((variable, waited if waiting else pods) for variable, pods, waited in parts)

    def _choose(self, demand: Demand) -> None:
        """Add one variable per way of serving the demand."""
        total: list[LinearTerm] = list(self._unserved[demand.index])
        given_up = self._stages.get(ObjectiveStage(Goal.PREFERENCES))
        for row in demand.rows:
            bundle = self._reduced.rows[row].bundle
            if row not in self._reached or not all(other in self._live for other, _ in bundle):
                continue  # pods are bundled with others that no plan serves, as not all of their gang can be
            if bundle and self._of_row[row]:
                variable = self._of_row[row][0]
            else:
                variable = self._linear.variable(1 if bundle else demand.count)
                self._of_row[row].append(variable)
                terms, constant = self._needed[row]
                self._needed[row] = ([*terms, (variable, 1)], constant)
                lost = self._reduced.rows[row].given_up
                if given_up is not None and lost:
                    given_up.append((variable, lost))
            self._units[demand.index, row] = variable
            total.append((variable, dict(bundle).get(demand.index, 1)))
        self._linear.constrain(total, demand.count, demand.count)


def units_of(claimed: Claims, values: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return (demand, row) -> units, without zeros."""
    return {key: values[variable] for key, variable in claimed.units.items() if values[variable]}


def unserved_of(claimed: Claims, values: Sequence[int]) -> dict[int, int]:
    """Return demand -> pods left unserved."""
    return {demand: value_of(terms, values) for demand, terms in claimed.unserved.items()}


def near(start: int, upper: int) -> tuple[int, int]:
    """Return the part of 0 to `upper` that CP-SAT searches around a start: all of it, unless that is very large. Rules
    that compare sums make CP-SAT tighten bounds one by one, which no limit of its own interrupts: with 10^9 pods it
    would not return."""
    if upper <= _LARGE:
        return 0, upper
    return max(0, min(start, upper) - _REACH), min(upper, start + _REACH)


def sum_of(variables: Sequence[cp_model.IntVar], terms: Sequence[LinearTerm]) -> cp_model.LinearExpr:
    """Return a sum of terms over the variables of a CP-SAT model."""
    return cp_model.LinearExpr.weighted_sum([variables[v] for v, _ in terms], [c for _, c in terms])


def add_linear(model: cp_model.CpModel, linear: Linear, start: Sequence[int]) -> list[cp_model.IntVar]:
    """Add the variables and constraints to a CP-SAT model and return the variables; where there are constraints, their
    ranges are near the start."""
    domains = [near(*each) if linear.rows else (0, each[1]) for each in zip(start, linear.uppers, strict=True)]
    variables = [model.new_int_var(*domain, "") for domain in domains]
    for terms, lower, upper in linear.rows:
        total = sum_of(variables, terms)
        low, high = cp_model.INT_MIN if lower is None else lower, cp_model.INT_MAX if upper is None else upper
        model.add_linear_constraint(total, low, high)
    return variables


def completed(claimed: Claims, unserved: Mapping[int, int], units: Units) -> list[int]:
    """Return a value for every variable: the youngest pods go unserved, and variables that rules introduced follow."""
    values = [0] * len(claimed.linear.uppers)
    gangs = frozenset(claimed.lost.values())
    for demand, terms in claimed.unserved.items():
        left = unserved[demand]
        for variable, pods in terms:
            if variable in gangs:
                values[variable] = int(left > 0) or values[variable]
            else:
                values[variable] = min(left, claimed.linear.uppers[variable])
                left -= values[variable] * pods
    for key, variable in claimed.units.items():
        values[variable] = max(values[variable], units.get(key, 0))
    claimed.linear.complete(values)
    return values


def settle(reduced: Reduced, claimed: Claims, room: Sequence[int], start: Sequence[int]) -> list[int]:
    """Return the values that are best in the order of the objective, with room for `room` units in each row. `start`
    holds values that satisfy all rules and the room, as those of `nobody` do."""
    model = Model()
    large = claimed.linear.rows and max(claimed.linear.uppers, default=0) > _LARGE
    centre = _relaxed(reduced, claimed, room) if large else None
    variables = add_linear(model, claimed.linear, start if centre is None else centre)
    for (terms, constant), units in zip(claimed.needed, room, strict=True):
        if terms:
            total = sum_of(variables, terms)
            model.add(total <= units - constant)
    values = list(start)
    for terms in (claimed.stages.get(stage, ()) for stage in stages(reduced)):
        if not terms:
            continue
        total = sum_of(variables, terms)
        if any(values[v] for v, _ in terms):
            model.minimize(total)
            solver = _solver(model, variables, values)
            if solver.solve(model) not in FEASIBLE:
                break
            values = [solver.value(variable) for variable in variables]
            model.clear_objective()  # type: ignore[no-untyped-call]
        model.add(total <= value_of(terms, values))
    return values


def _relaxed(reduced: Reduced, claimed: Claims, room: Sequence[int]) -> list[int] | None:
    """Return roughly what `settle` will find: a linear relaxation, rounded."""
    linear, program = claimed.linear, LinearProgram()
    cost = np.zeros(len(linear.uppers))
    for position, stage in enumerate(stages(reduced)):
        for variable, pods in claimed.stages.get(stage, ()):
            cost[variable] += pods * _NEXT_STAGE**position
    program.add_variables(cost, most=np.array(linear.uppers, dtype=np.float64))
    needed = [(terms, None, units - constant) for (terms, constant), units in zip(claimed.needed, room, strict=True)]
    for terms, lower, upper in (*linear.rows, *needed):
        if terms:
            low, high = -INFINITY if lower is None else float(lower), INFINITY if upper is None else float(upper)
            row = program.add_rows(low, high, 1)
            program.add_entries(row, [variable for variable, _ in terms], [float(c) for _, c in terms])
    found = program.solve()
    return None if found is None else [round(value) for value in found.values]


def nobody(claimed: Claims) -> list[int]:
    """Return the values of a plan that serves no pod, which satisfies every rule."""
    values = [0] * len(claimed.linear.uppers)
    for variable in (variable for terms in claimed.unserved.values() for variable, _ in terms):
        values[variable] = claimed.linear.uppers[variable]
    return values


def _solver(model: cp_model.CpModel, variables: Sequence[cp_model.IntVar], start: Sequence[int]) -> cp_model.CpSolver:
    """Return a solver that is bounded by work, not by time, so that the result is the same on every machine."""
    model.clear_hints()  # type: ignore[no-untyped-call]
    for variable, value in zip(variables, start, strict=True):
        model.add_hint(variable, value)
    solver = new_solver()
    solver.parameters.max_deterministic_time = _WORK_SECONDS
    return solver
