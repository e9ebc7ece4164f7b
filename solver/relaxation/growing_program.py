"""A linear program that stays in the solver (GLOP, through MathOpt) while rows and variables are added and bounds
change: each solve starts from the last one's basis. What the numbers mean is up to the caller.

Models are written to MathOpt's protobuf directly, as in `linear_program`: the object API costs more than the solve at
our sizes.
"""

from __future__ import annotations

from datetime import timedelta

import numpy as np
from ortools.math_opt import model_pb2, model_update_pb2, result_pb2
from ortools.math_opt.core.python import solver
from ortools.math_opt.python import mathopt

from solver.reduction.reduced import Floats, Ints
from solver.relaxation.linear_program import INFINITY, AbnormalEndError, LpSolution, dense, optimal


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
