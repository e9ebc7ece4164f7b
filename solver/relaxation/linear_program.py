"""Linear programs as arrays, solved by GLOP through MathOpt. A program stays in the solver while rows and variables are
added and bounds change, so that each solve starts from the last one's basis. What the numbers mean is up to the caller.

Models are written to MathOpt's protobuf directly: its object API costs more than the solve at our sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


class LinearProgram:
    """A minimisation over rows and variables that are added in bulk."""

    def __init__(self) -> None:
        self._lower, self._upper = np.zeros(0), np.zeros(0)
        self._least, self._most, self._costs = np.zeros(0), np.zeros(0), np.zeros(0)
        self._entries: list[tuple[Ints, Ints, Floats]] = []
        self._begin()

    def _begin(self) -> None:
        """Start a solver with an empty model."""
        self._loaded_lower = self._loaded_upper = self._loaded_most = np.zeros(0)
        self._loaded_entries = 0
        arguments = mathopt.StreamableSolverInitArguments().to_proto()
        self._solver = solver.new(mathopt.SolverType.GLOP.value, model_pb2.ModelProto(), arguments)

    def add_rows(self, lower: Bound, upper: Bound, count: int) -> Ints:
        """Add `count` rows lower <= ... <= upper and return their indices."""
        first = len(self._lower)
        self._lower, self._upper = _longer(self._lower, lower, count), _longer(self._upper, upper, count)
        return np.arange(first, first + count)

    def add_variables(self, costs: Sequence[float] | Floats, most: Bound = INFINITY, least: Bound = 0.0) -> Ints:
        """Add a variable for each of the costs and return their indices."""
        first, count = len(self._costs), len(costs)
        self._costs = _longer(self._costs, costs, count)
        self._least, self._most = _longer(self._least, least, count), _longer(self._most, most, count)
        return np.arange(first, first + count)

    def add_entries(self, rows: object, variables: object, values: object) -> None:
        """Add coefficients, broadcast against each other, at positions of which no solve knows any yet; those at one
        position add up."""
        row, variable, value = np.broadcast_arrays(rows, variables, values)  # type: ignore[arg-type]
        keep = value.ravel() != 0
        self._entries.append((row.ravel()[keep], variable.ravel()[keep], value.ravel()[keep]))

    def bound_rows(self, rows: Ints, lower: Floats | float, upper: Floats | float) -> None:
        self._lower[rows], self._upper[rows] = lower, upper

    def bound_variables(self, variables: Ints, most: Floats) -> None:
        self._most[variables] = most

    def solve(self, seconds: float | None = None, *, roughly: bool = False) -> LpSolution | None:
        """Return an optimal solution, or None where none is found within `seconds`. With `roughly`, for guides and not
        for bounds, a program whose costs differ too much in size is solved once more, to a tolerance relative to the
        largest one; nothing may be added to it then."""
        parameters = mathopt.SolveParameters(threads=1)
        if seconds is not None:
            parameters.time_limit = timedelta(seconds=max(seconds, 0.001))
        for scale in (1.0, self._scale()) if roughly else (1.0,):
            self._load(scale)
            try:
                result = self._optimal(parameters)
            except AbnormalEndError:
                # The solver cannot be used again.
                self._begin()
                continue
            if result is None:
                return None
            primal, dual = result.solutions[0].primal_solution, result.solutions[0].dual_solution
            return LpSolution(
                primal.objective_value / scale,
                dense(primal.variable_values, len(self._costs)),
                dense(dual.dual_values, len(self._lower)) / scale,
            )
        return None

    def _optimal(self, parameters: mathopt.SolveParameters) -> result_pb2.SolveResultProto | None:
        # What MathOpt's own solver does, less the translation of the result into Python objects, which takes longer
        # than solving at our sizes.
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

    def _scale(self) -> float:
        """Return a power of two that makes the largest cost about one, so that nothing is rounded."""
        dearest = float(np.abs(self._costs).max(initial=0.0))
        return 1.0 if dearest == 0.0 else math.ldexp(1.0, -math.frexp(dearest)[1])

    def _load(self, scale: float) -> None:
        """Send the changes since the last solve to the solver."""
        update = model_update_pb2.ModelUpdateProto()
        self._changes(update)
        rows, variables = update.new_linear_constraints, update.new_variables
        old_rows, old_variables = len(self._loaded_lower), len(self._loaded_most)
        new = range(old_variables, len(self._costs))
        rows.ids.extend(range(old_rows, len(self._lower)))
        rows.lower_bounds.extend(self._lower[old_rows:].tolist())
        rows.upper_bounds.extend(self._upper[old_rows:].tolist())
        variables.ids.extend(new)
        variables.lower_bounds.extend(self._least[old_variables:].tolist())
        variables.upper_bounds.extend(self._most[old_variables:].tolist())
        variables.integers.extend([False] * len(new))
        costs = update.objective_updates.linear_coefficients
        costs.ids.extend(new)
        costs.values.extend((self._costs[old_variables:] * scale).tolist())
        if len(self._entries) > self._loaded_entries:
            self._load_entries(update.linear_constraint_matrix_updates)
        if not self._solver.update(update):
            raise RuntimeError("the solver refuses to go on from a changed linear program")
        self._loaded_entries = len(self._entries)
        self._loaded_lower, self._loaded_upper = self._lower.copy(), self._upper.copy()
        self._loaded_most = self._most.copy()

    def _load_entries(self, matrix: sparse_containers_pb2.SparseDoubleMatrixProto) -> None:
        """Write the entries since the last solve, sorted, one for each position."""
        parts = zip(*self._entries[self._loaded_entries :], strict=True)
        row, variable, value = (np.concatenate(part) for part in parts)
        places, at = np.unique(row * len(self._costs) + variable, return_inverse=True)
        matrix.row_ids.extend((places // len(self._costs)).tolist())
        matrix.column_ids.extend((places % len(self._costs)).tolist())
        matrix.coefficients.extend(np.bincount(at, weights=value, minlength=len(places)).tolist())

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


def _longer(known: Floats, more: Bound, count: int) -> Floats:
    """Return an array with so many further numbers, or as often the same."""
    return np.concatenate([known, np.broadcast_to(np.asarray(more, dtype=np.float64), count)])
