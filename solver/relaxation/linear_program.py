"""Linear programs as arrays, solved by GLOP through MathOpt; and one that stays in the solver while rows and variables
are added and bounds change, so that each solve starts from the last one's basis. What the numbers mean is up to the
caller.

Models are written to MathOpt's protobuf directly: its object API costs more than the solve at our sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
from ortools.math_opt import model_pb2, model_update_pb2, result_pb2, sparse_containers_pb2
from ortools.math_opt.core.python import solver
from ortools.math_opt.python import mathopt
from pybind11_abseil.status import StatusCode, StatusNotOk

from solver.reduction.reduced import Floats, Ints

INFINITY = float("inf")
Bound = Sequence[float] | Floats | float


@dataclass(frozen=True, slots=True)
class LpSolution:
    objective: float
    values: Floats
    """Per variable."""
    duals: Floats
    """Per row: by how much the objective grows as the row's bound grows by one."""


@dataclass
class LinearProgram:
    """A minimisation over rows and non-negative variables that are added in bulk."""

    _lower: list[Floats] = field(default_factory=list)
    _upper: list[Floats] = field(default_factory=list)
    _cost: list[Floats] = field(default_factory=list)
    _row_lower: list[Floats] = field(default_factory=list)
    _row_upper: list[Floats] = field(default_factory=list)
    _entries: list[tuple[Floats, Floats, Floats]] = field(default_factory=list)
    _extra_cost: dict[int, float] = field(default_factory=dict)
    variables: int = 0
    rows: int = 0

    def add_variables(self, cost: Sequence[float] | Floats, upper: Bound = INFINITY, lower: Bound = 0.0) -> range:
        """Add one variable per `cost` and return their indices."""
        size = len(cost)
        self._cost.append(np.asarray(cost, dtype=np.float64))
        self._lower.append(np.broadcast_to(np.asarray(lower, dtype=np.float64), size))
        self._upper.append(np.broadcast_to(np.asarray(upper, dtype=np.float64), size))
        self.variables += size
        return range(self.variables - size, self.variables)

    def add_cost(self, variable: int, cost: float) -> None:
        """Add to the cost of variables."""
        self._extra_cost[variable] = self._extra_cost.get(variable, 0.0) + cost

    def add_rows(self, lower: Bound, upper: Bound, count: int) -> range:
        """Add `count` rows lower <= ... <= upper and return their indices."""
        self._row_lower.append(np.broadcast_to(np.asarray(lower, dtype=np.float64), count))
        self._row_upper.append(np.broadcast_to(np.asarray(upper, dtype=np.float64), count))
        self.rows += count
        return range(self.rows - count, self.rows)

    def add_entries(self, rows: object, variables: object, values: object) -> None:
        """Add coefficients, broadcast against each other; entries at one position add up."""
        r, v, x = np.broadcast_arrays(rows, variables, values)  # type: ignore[arg-type]
        keep = x.ravel() != 0
        self._entries.append((r.ravel()[keep], v.ravel()[keep], x.ravel()[keep]))

    def solve(self, seconds: float | None = None, *, roughly: bool = False) -> LpSolution | None:
        """Return an optimal solution, or None where none is found within `seconds`. With `roughly`, for guides and not
        for bounds, a program whose costs differ too much in size is solved again, to a tolerance relative to the
        largest one."""
        parameters = mathopt.SolveParameters(threads=1)
        if seconds is not None:
            parameters.time_limit = timedelta(seconds=max(seconds, 0.001))
        for scale in (1.0, self._scale()) if roughly else (1.0,):
            try:
                result = self._optimal(parameters, scale)
            except AbnormalEndError:
                continue
            if result is None:
                return None
            primal, dual = result.solutions[0].primal_solution, result.solutions[0].dual_solution
            return LpSolution(
                primal.objective_value / scale,
                dense(primal.variable_values, self.variables),
                dense(dual.dual_values, self.rows) / scale,
            )
        return None

    def _optimal(self, parameters: mathopt.SolveParameters, scale: float) -> result_pb2.SolveResultProto | None:
        # What `mathopt.solve` does, less the translation of the result into Python objects, which takes longer than
        # solving at our sizes.
        return optimal(
            lambda: solver.solve(
                self._proto(scale),
                mathopt.SolverType.GLOP.value,
                mathopt.StreamableSolverInitArguments().to_proto(),
                parameters.to_proto(),
                mathopt.ModelSolveParameters().to_proto(),
                None,
                mathopt.CallbackRegistration().to_proto(),
                None,
                None,
            )
        )

    def _costs(self) -> Floats:
        cost = np.concatenate(self._cost)
        for variable, extra in self._extra_cost.items():
            cost[variable] += extra
        return cost

    def _scale(self) -> float:
        """Return a power of two that makes the largest cost about one, so that nothing is rounded."""
        dearest = float(np.abs(self._costs()).max(initial=0.0))
        return 1.0 if dearest == 0.0 else math.ldexp(1.0, -math.frexp(dearest)[1])

    def _proto(self, scale: float) -> model_pb2.ModelProto:
        proto = model_pb2.ModelProto()
        variables, rows = proto.variables, proto.linear_constraints
        variables.ids.extend(range(self.variables))
        variables.lower_bounds.extend(_joined(self._lower))
        variables.upper_bounds.extend(_joined(self._upper))
        variables.integers.extend([False] * self.variables)
        rows.ids.extend(range(self.rows))
        rows.lower_bounds.extend(_joined(self._row_lower))
        rows.upper_bounds.extend(_joined(self._row_upper))
        row = np.concatenate([entry[0] for entry in self._entries]).astype(np.int64)
        column = np.concatenate([entry[1] for entry in self._entries]).astype(np.int64)
        value = np.concatenate([entry[2] for entry in self._entries]).astype(np.float64)
        places, at = np.unique(row * self.variables + column, return_inverse=True)
        matrix = proto.linear_constraint_matrix
        matrix.row_ids.extend((places // self.variables).tolist())
        matrix.column_ids.extend((places % self.variables).tolist())
        matrix.coefficients.extend(np.bincount(at, weights=value, minlength=len(places)).tolist())
        cost = self._costs() * scale
        used = np.flatnonzero(cost)
        proto.objective.linear_coefficients.ids.extend(used.tolist())
        proto.objective.linear_coefficients.values.extend(cost[used].tolist())
        return proto


class AbnormalEndError(Exception):
    """GLOP gave up or is not sure of its answer, as it may where numbers of very different size meet."""


def optimal(solve: Callable[[], result_pb2.SolveResultProto]) -> result_pb2.SolveResultProto | None:
    """Return the result of a solve if it is an optimal solution, else None. Raise AbnormalEndError where GLOP gave
    up."""
    try:
        result = solve()
    except StatusNotOk as error:
        if error.status.code() == StatusCode.INTERNAL:
            raise AbnormalEndError from error
        raise
    if result.termination.reason == result_pb2.TERMINATION_REASON_IMPRECISE:
        raise AbnormalEndError
    return result if result.termination.reason == result_pb2.TERMINATION_REASON_OPTIMAL else None


def dense(sparse: sparse_containers_pb2.SparseDoubleVectorProto, size: int) -> Floats:
    """Return the sparse values as an array."""
    values = np.zeros(size)
    values[np.array(sparse.ids, dtype=np.int64)] = sparse.values
    return values


def _joined(parts: list[Floats]) -> list[float]:
    return np.concatenate(parts).tolist() if parts else []


class GrowingProgram:
    """A minimisation over non-negative variables."""

    def __init__(self) -> None:
        self._lower, self._upper, self._most = np.zeros(0), np.zeros(0), np.zeros(0)
        self._costs: list[float] = []
        self._entries: list[tuple[Ints, Ints, Floats]] = []
        self._begin()

    def _begin(self) -> None:
        """Start a solver with an empty model."""
        self._loaded_lower = self._loaded_upper = self._loaded_most = np.zeros(0)
        self._loaded_entries = 0
        arguments = mathopt.StreamableSolverInitArguments().to_proto()
        self._solver = solver.new(mathopt.SolverType.GLOP.value, model_pb2.ModelProto(), arguments)

    @property
    def variables(self) -> int:
        return len(self._most)

    def add_rows(self, lower: Floats, upper: Floats) -> Ints:
        """Add rows lower <= ... <= upper and return their indices."""
        first = len(self._lower)
        self._lower, self._upper = np.concatenate([self._lower, lower]), np.concatenate([self._upper, upper])
        return np.arange(first, len(self._lower))

    def add_variables(self, costs: Floats, most: Floats | float = INFINITY) -> Ints:
        """Add variables and return their indices."""
        first = self.variables
        self._costs.extend(costs.tolist())
        self._most = np.concatenate([self._most, np.broadcast_to(most, len(costs))])
        return np.arange(first, self.variables)

    def add_entries(self, rows: Ints, variables: Ints, values: Floats | Ints) -> None:
        """Add coefficients at positions that have none yet."""
        self._entries.append((rows, variables, values.astype(np.float64)))

    def bound_rows(self, rows: Ints, lower: Floats | float, upper: Floats | float) -> None:
        self._lower[rows], self._upper[rows] = lower, upper

    def bound_variables(self, variables: Ints, most: Floats) -> None:
        self._most[variables] = most

    def solve(self, seconds: float | None = None) -> LpSolution | None:
        """Return an optimal solution, or None where none is found within `seconds`."""
        parameters = mathopt.SolveParameters(threads=1)
        if seconds is not None:
            parameters.time_limit = timedelta(seconds=max(seconds, 0.001))
        result = self._optimal(parameters)
        if result is None:
            return None
        primal, dual = result.solutions[0].primal_solution, result.solutions[0].dual_solution
        return LpSolution(
            primal.objective_value,
            dense(primal.variable_values, self.variables),
            dense(dual.dual_values, len(self._lower)),
        )

    def _optimal(self, parameters: mathopt.SolveParameters) -> result_pb2.SolveResultProto | None:
        self._load()
        try:
            return optimal(
                lambda: self._solver.solve(
                    parameters.to_proto(),
                    mathopt.ModelSolveParameters().to_proto(),
                    None,
                    mathopt.CallbackRegistration().to_proto(),
                    None,
                    None,
                )
            )
        except AbnormalEndError:
            # The solver cannot be used again.
            self._begin()
            return None

    def _load(self) -> None:
        """Send the changes since the last solve to the solver."""
        update = model_update_pb2.ModelUpdateProto()
        self._changes(update)
        rows, variables = update.new_linear_constraints, update.new_variables
        old_rows, old_variables = len(self._loaded_lower), len(self._loaded_most)
        new_costs, new_entries = self._costs[old_variables:], self._entries[self._loaded_entries :]
        rows.ids.extend(range(old_rows, len(self._lower)))
        rows.lower_bounds.extend(self._lower[old_rows:].tolist())
        rows.upper_bounds.extend(self._upper[old_rows:].tolist())
        variables.ids.extend(range(old_variables, self.variables))
        variables.lower_bounds.extend([0.0] * len(new_costs))
        variables.upper_bounds.extend(self._most[old_variables:].tolist())
        variables.integers.extend([False] * len(new_costs))
        costs = update.objective_updates.linear_coefficients
        costs.ids.extend(range(old_variables, self.variables))
        costs.values.extend(new_costs)
        if new_entries:
            row, variable, value = (np.concatenate(part) for part in zip(*new_entries, strict=True))
            order = np.lexsort((variable, row))
            matrix = update.linear_constraint_matrix_updates
            matrix.row_ids.extend(row[order].tolist())
            matrix.column_ids.extend(variable[order].tolist())
            matrix.coefficients.extend(value[order].tolist())
        if not self._solver.update(update):
            raise RuntimeError("the solver refuses to go on from a changed linear program")
        self._loaded_entries = len(self._entries)
        self._loaded_lower, self._loaded_upper = self._lower.copy(), self._upper.copy()
        self._loaded_most = self._most.copy()

    def _changes(self, update: model_update_pb2.ModelUpdateProto) -> None:
        rows, variables = update.linear_constraint_updates, update.variable_updates
        for target, loaded, now in (
            (rows.lower_bounds, self._loaded_lower, self._lower),
            (rows.upper_bounds, self._loaded_upper, self._upper),
            (variables.upper_bounds, self._loaded_most, self._most),
        ):
            changed = np.flatnonzero(loaded != now[: len(loaded)])
            target.ids.extend(changed.tolist())
            target.values.extend(now[changed].tolist())
