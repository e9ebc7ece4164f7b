"""Problems without what cannot be meant, so that it is in nobody's way."""

from __future__ import annotations

from dataclasses import replace

from solver.model import Problem
from solver.model.errors import ProblemError
from solver.model.validation import validate


def faults(problem: Problem) -> tuple[str, ...]:
    """Why the problem cannot be meant; nothing for one that can."""
    try:
        validate(problem)
    except ProblemError as error:
        return tuple(error.problems)
    return ()


def sound(problem: Problem) -> Problem:
    """Without pods, Nodes and DaemonSets that cannot be meant, nor the plan before."""
    return replace(
        problem,
        pod_sets=tuple(each for each in problem.pod_sets if not faults(Problem((each,)))),
        nodes=tuple(each for each in problem.nodes if not faults(Problem((), nodes=(each,)))),
        daemon_sets=tuple(each for each in problem.daemon_sets if not faults(Problem((), daemon_sets=(each,)))),
        previous=None,
    )
