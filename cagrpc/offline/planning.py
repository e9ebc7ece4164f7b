"""A problem to a plan and its explanation, with the planner's errors as those of the command line and, on a
terminal, how far it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cagrpc.errors import CagrpcError, InvalidConfiguration
from cagrpc.fleet.provisioners import Widen, as_it_is
from cagrpc.tables import console
from solver import Budget, Explanation, NodeGroup, Plan, PlanRejectedError, Problem, ProblemError, explain, solve
from solver.explanation.choices import can_bind, reached, without
from solver.explanation.model import WhyLimited
from solver.model.money import hourly
from solver.model.plan import PlanProgress, TellProgress
from solver.model.quantities import pluralize
from solver.planning.own_way import left_without_node

T = TypeVar("T")

TIMES_THE_BUDGET = 5.0
"""The budget of an explanation in multiples of the planning budget: it plans many variations."""

_TIMES_THE_ORDERS = 5
"""Of those in which a plan is played whose pods are nominated."""
_LIMITED_SHARE = 0.25
"""Of the time, for what limits cost, where there are any."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, its problem and budget, and its node groups by id."""

    plan: Plan
    problem: Problem
    budget: Budget
    groups: Mapping[str, NodeGroup]
    limited: WhyLimited | None = None
    """What the maximum sizes and limits that it has used up cost together; None where that is nothing."""
    unless_nominated: Mapping[int, int] = field(default_factory=dict)
    """What `stuck_unless_nominated` says of the plan."""


def plan(problem: Problem, budget: Budget, *, limited: bool = True) -> Planned:
    """Return the plan; with `limited` also what sizes and limits cost, for which it is planned once more where some are
    used up: a part of the budget is kept for that. Raises InvalidConfiguration for an invalid problem."""
    pods = sum(each.count for each in problem.pod_sets)
    first = budget.part(1 - _LIMITED_SHARE) if limited and can_bind(problem) else budget
    found = _watched(f"planning {pluralize(pods, 'pod')}", lambda report: solve(problem, first, report))
    groups = {group.id: group for group in problem.node_groups}
    planned = Planned(found, problem, budget, groups, unless_nominated=stuck_unless_nominated(problem, found))
    changes = reached(problem, found) if limited and not budget.interrupted else ()
    if not changes:
        return planned
    again = budget.part(_LIMITED_SHARE)
    return replace(
        planned, limited=_watched("planning without limits", lambda _: without(problem, found, changes, again))
    )


def stuck_unless_nominated(problem: Problem, found: Plan) -> Mapping[int, int]:
    """Return by class how many pods may get stuck where nothing nominates pods to their nodes; empty where these are no
    more than the plan's `may_get_stuck`."""
    risks = left_without_node(problem, found, nominated=False, times=_TIMES_THE_ORDERS)
    return risks if sum(risks.values()) > sum(each.count for each in found.may_get_stuck) else {}


def explain_plan(planned: Planned, widen: Widen = as_it_is) -> Explanation:
    """Return the explanation of the plan, within `TIMES_THE_BUDGET` its budget; `widen` adds node groups that could be
    there."""
    budget = replace(planned.budget, seconds=planned.budget.seconds * TIMES_THE_BUDGET, workers=1)
    problem = widen(planned.problem, planned.plan)
    return _watched("explaining the plan", lambda _: explain(problem, planned.plan, budget))


def _watched(task: str, work: Callable[[TellProgress | None], T]) -> T:
    """Return the result of `work`, with a spinner, the elapsed time and what `work` reports on stderr where that is a
    terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True, disable=not sys.stderr.isatty()) as progress:
        shown = progress.add_task(task, total=None)

        def report(found: PlanProgress) -> None:
            progress.update(shown, description=f"{task}: {progress_words(found)}")

        with planner_errors():
            return work(None if progress.disable else report)


@contextmanager
def planner_errors() -> Iterator[None]:
    """Raise InvalidConfiguration for an invalid problem, and CagrpcError for a plan that the checker rejects."""
    try:
        yield
    except ProblemError as error:
        raise InvalidConfiguration(error.problems) from error
    except PlanRejectedError as error:
        raise CagrpcError(
            f"the planner produced a plan that its checker rejected: {'; '.join(error.faults)}; this is a defect of"
            " cagrpc: please report it with the files that were planned"
        ) from error


def progress_words(found: PlanProgress) -> str:
    """Return the cost of the best plan so far, the least that is proven, and the gap between them."""
    words = f"{hourly(found.cost_usd_per_hour)}"
    if found.gap is not None:
        words += f", at least {hourly(found.lower_bound_usd_per_hour)} (gap {found.gap:.2%})"
    return f"{words}, {pluralize(found.unserved, 'pod')} without a place" if found.unserved else words
