"""The knapsack under pricing by CP-SAT, where the compiled search (`knapsack`) leaves it open: with three scarce
resources Lagrangian bounds stay some percent above the best pattern, which learning from conflicts finds and proves in
a tenth of a second.
"""

from __future__ import annotations

import numpy as np
from ortools.sat.python import cp_model

from solver.reduction.reduced import Floats, Ints
from solver.relaxation.cp_sat import Model, new_solver

_UNITS = 1_000_000
"""Values are counted in such a part of the threshold, rounded up, so that the bound holds."""
_LITTLE_MORE = 10
"""Units above the threshold from which on a pattern is of interest: that there is none at all takes far longer to
prove."""
_CLOSE = 1e-4
"""Relative difference between the best pattern and the bound at which the search ends."""


def best_or_none(
    requests: Ints, free: Ints, values: Floats, most: Ints, threshold: float, seconds: float
) -> tuple[list[Ints], float, float]:
    """Return patterns worth more than `threshold` (pods per item), the best first, an upper bound on the value of any,
    and how many of CP-SAT's deterministic seconds that took: at most `seconds`, more or less."""
    useful = np.flatnonzero((values > 0) & (most > 0))
    unit = max(threshold, float(values.max(initial=0.0))) / _UNITS
    if not useful.size or unit <= 0:
        return [], threshold, 0.0
    worth = np.ceil(values[useful] / unit).astype(np.int64)
    least = int(threshold / unit) + _LITTLE_MORE
    model = Model()
    pods = [model.new_int_var(0, int(each), "") for each in most[useful]]
    for resource, amount in enumerate(free.tolist()):
        model.add(cp_model.LinearExpr.weighted_sum(pods, requests[useful, resource].tolist()) <= amount)
    value = cp_model.LinearExpr.weighted_sum(pods, worth.tolist())
    model.add(value >= least)
    model.maximize(value)
    solver, found = new_solver(), _Patterns(pods)
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.relative_gap_limit = _CLOSE
    solver.parameters.symmetry_level = 0
    solver.parameters.cp_model_probing_level = 0
    status = solver.solve(model, found)
    took = float(solver.response_proto.deterministic_time)
    if status == cp_model.INFEASIBLE:
        return [], least * unit, took
    patterns = []
    for chosen in reversed(found.patterns):
        pattern = np.zeros(len(values), dtype=np.int64)
        pattern[useful] = chosen
        if float(values @ pattern) > threshold:
            patterns.append(pattern)
    # A bound below what was asked for would be a proof that there is none.
    bound = solver.best_objective_bound
    return patterns, bound * unit if bound >= least else float("inf"), took


class _Patterns(cp_model.CpSolverSolutionCallback):
    """Keeps every pattern that CP-SAT finds: the relaxed master needs many."""

    def __init__(self, pods: list[cp_model.IntVar]) -> None:
        super().__init__()
        self._pods = pods
        self.patterns: list[list[int]] = []

    def on_solution_callback(self) -> None:
        self.patterns.append([self.value(each) for each in self._pods])
