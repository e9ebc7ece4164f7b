"""A problem to a plan and its explanation, with the planner's errors as those of the command line and a spinner on a
terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cagrpc.errors import CagrpcError, InvalidConfiguration
from cagrpc.tables import console
from solver import Budget, Explanation, NodeGroup, Plan, PlanRejectedError, Problem, ProblemError, explain, solve
from solver.explanation.limits import reached, without
from solver.explanation.model import WhyLimited

T = TypeVar("T")

TIMES_THE_BUDGET = 5.0
"""The budget of an explanation in multiples of the planning budget: it plans many variations."""


_LIMITED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, its problem and budget, and its node groups by id."""

    plan: Plan
    problem: Problem
    budget: Budget
    groups: Mapping[str, NodeGroup]
    limited: WhyLimited | None = None
    """What the maximum sizes and limits that it has used up cost together; None where that is nothing."""


def plan(problem: Problem, budget: Budget, *, limited: bool = True) -> Planned:
    """Return the plan; with `limited` also what sizes and limits cost, for which it is planned once more, within half
    the budget, where some are used up. Raises InvalidConfiguration for an invalid problem."""
    pods = sum(each.count for each in problem.pod_sets)
    found = _watched(f"planning {pods} pods", lambda: solve(problem, budget))
    planned = Planned(found, problem, budget, {group.id: group for group in problem.node_groups})
    changes = reached(problem, found) if limited else ()
    if not changes:
        return planned
    again = budget.part(_LIMITED_SHARE)
    return replace(
        planned, limited=_watched("planning without limits", lambda: without(problem, found, changes, again))
    )


def explain_plan(planned: Planned) -> Explanation:
    """Return the explanation of the plan, within `TIMES_THE_BUDGET` its budget."""
    budget = Budget(planned.budget.seconds * TIMES_THE_BUDGET)
    return _watched("explaining the plan", lambda: explain(planned.problem, planned.plan, budget))


def _watched(task: str, work: Callable[[], T]) -> T:
    """Return the result of `work`, with a spinner and the elapsed time on stderr where that is a terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True, disable=not sys.stderr.isatty()) as progress:
        progress.add_task(task, total=None)
        try:
            return work()
        except ProblemError as error:
            raise InvalidConfiguration(error.problems) from error
        except PlanRejectedError as error:
            raise CagrpcError(
                f"the planner produced a plan that its checker rejected: {'; '.join(error.faults)}; this is a defect of"
                " cagrpc: please report it with the files that were planned"
            ) from error
