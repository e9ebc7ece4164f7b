"""How CP-SAT is run everywhere: the same from one run to the next, and ended by whoever interrupts planning."""

from __future__ import annotations

from contextlib import nullcontext

from ortools.sat.python import cp_model

from solver.model.budget import RunningBudget

FEASIBLE = (cp_model.OPTIMAL, cp_model.FEASIBLE)


class Model(cp_model.CpModel):
    """Without its deprecated names, which are a third of a millisecond of each new model."""

    def _add_pre_pep8_methods(self) -> None:
        pass


def new_solver(workers: int = 1) -> cp_model.CpSolver:
    """Return a solver without a limit."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 1
    # It would take Ctrl-C for itself: the process would not hear of it, and plan on.
    solver.parameters.catch_sigint_signal = False
    return solver


def solve_within(
    model: cp_model.CpModel,
    solver: cp_model.CpSolver,
    budget: RunningBudget,
    seconds: float,
    callback: cp_model.CpSolverSolutionCallback | None = None,
) -> cp_model.CpSolverStatus:
    """Solve within so many seconds of the budget's kind, which are charged to it. Return the status."""
    if budget.deterministic:
        solver.parameters.max_deterministic_time = seconds
    else:
        solver.parameters.max_time_in_seconds = seconds
    interruption = budget.granted.interruption
    with nullcontext() if interruption is None else interruption.stopping(solver.stop_search):
        status = solver.solve(model, callback)
    budget.charge(solver.response_proto.deterministic_time)
    return status
