"""Problems with invalid pods, Nodes or DaemonSets are planned without these, so that they are in nobody's way: what any
tenant may create stops nobody else's plan."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import solver
from cagrpc.errors import in_one_line
from solver.model import Budget, Plan, PodSet, Problem
from solver.model.errors import ProblemError
from solver.model.validation import validate

log = logging.getLogger(__name__)


def faults(problem: Problem) -> tuple[str, ...]:
    """Return why the problem is invalid; nothing for a valid one."""
    try:
        validate(problem)
    except ProblemError as error:
        return tuple(error.problems)
    return ()


def drop_invalid(problem: Problem) -> Problem:
    """Return the problem without its invalid pods, Nodes and DaemonSets, and without the previous plan."""
    return replace(
        problem,
        pod_sets=tuple(each for each in problem.pod_sets if not faults(Problem((each,)))),
        nodes=tuple(each for each in problem.nodes if not faults(Problem((), nodes=(each,)))),
        daemon_sets=tuple(each for each in problem.daemon_sets if not faults(Problem((), daemon_sets=(each,)))),
        previous=None,
    )


@dataclass(frozen=True, slots=True)
class ValidPlan:
    """A plan, and the problem as it was planned."""

    problem: Problem
    """The problem without what was invalid."""
    plan: Plan
    dropped: tuple[PodSet, ...] = ()
    """Pods that were invalid, and are not in the plan at all."""

    @property
    def places_all(self) -> bool:
        """Whether every pod that was asked for has a place."""
        return not self.plan.unplaced and not self.dropped


def solve_valid(problem: Problem, budget: Budget) -> ValidPlan:
    """Plan the problem, where it is invalid without what makes it so."""
    try:
        return ValidPlan(problem, solver.solve(problem, budget))
    except ProblemError as error:
        log.warning("planning without what is invalid: %s", in_one_line(error.problems))
    left = drop_invalid(problem)
    valid = {id(each) for each in left.pod_sets}
    return ValidPlan(
        left, solver.solve(left, budget), tuple(each for each in problem.pod_sets if id(each) not in valid)
    )
