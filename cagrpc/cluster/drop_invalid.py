"""Drop invalid pods, Nodes and DaemonSets from a problem, so that they block nobody else."""

from __future__ import annotations

from dataclasses import replace

from solver.model import Problem
from solver.model.errors import ProblemError
from solver.model.validation import validate


def faults(problem: Problem) -> tuple[str, ...]:
    """Return why the problem is invalid; nothing for a valid one."""
    try:
        validate(problem)
    except ProblemError as error:
        return tuple(error.problems)
    return ()


def sound(problem: Problem) -> Problem:
    """Return the problem without invalid pods, Nodes and DaemonSets, and without the previous plan."""
    return replace(
        problem,
        pod_sets=tuple(each for each in problem.pod_sets if not faults(Problem((each,)))),
        nodes=tuple(each for each in problem.nodes if not faults(Problem((), nodes=(each,)))),
        daemon_sets=tuple(each for each in problem.daemon_sets if not faults(Problem((), daemon_sets=(each,)))),
        previous=None,
    )
