"""Why a plan is as it is: `explain(problem, plan, budget) -> Explanation`.

For what is not served: an irreducible core of constraints that keep it out, and the smallest changes after which it is
served. For what is chosen: the alternatives. "Smallest" is defined in docs/reference/explanations.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from solver.explanation.choices import by_cost, why_group, why_limited
from solver.explanation.model import Explanation, WhyGroup, WhyUnserved
from solver.explanation.question import LARGEST_SHARE, UnservedClaim, claims
from solver.explanation.unserved import why_unserved
from solver.model import Budget, Plan, Problem
from solver.model.budget import RunningBudget
from solver.model.validation import validate

_MOST_CLAIMS = 20
_MOST_GROUPS = 10
_CLAIMS_SHARE = 0.7
"""Of the time; the rest is for what was chosen,"""
_CHOICES_SHARE = 0.7
"""and of that the rest is for what limits cost."""


def explain(problem: Problem, plan: Plan, budget: Budget | None = None) -> Explanation:
    """Explain `plan`, which `solve` made of `problem`, within `budget` (default: five seconds).

    Under a deterministic budget the explanation depends on nothing but the arguments: the number of plans is bounded,
    and each of them gets a part of the budget. Raises `ProblemError` for an invalid problem or budget.
    """
    budget = budget or Budget(5.0)
    validate(problem, budget)
    waiting, opened = claims(plan), by_cost(problem, plan)
    first = _CLAIMS_SHARE if opened else 1.0
    running = RunningBudget(replace(budget, seconds=budget.seconds * first))
    unserved = _unserved(problem, plan, waiting, running)
    spent = running.elapsed_seconds()
    running = RunningBudget(replace(budget, seconds=max(0.0, (budget.seconds - spent) * _CHOICES_SHARE)))
    chosen: list[WhyGroup] = []
    for increment in opened[:_MOST_GROUPS]:
        if running.exhausted:
            break
        chosen.append(why_group(problem, plan, increment, running))
    running = RunningBudget(replace(budget, seconds=max(0.0, budget.seconds - spent - running.elapsed_seconds())))
    return Explanation(
        unserved,
        len(waiting) - len(unserved),
        tuple(chosen),
        len(opened) - len(chosen),
        plan.certificate.price_of_priority_usd_per_hour,
        why_limited(problem, plan, running, LARGEST_SHARE),
    )


def explain_unserved(problem: Problem, plan: Plan, budget: Budget) -> tuple[WhyUnserved, ...]:
    """Explain only what the plan leaves out, as `explain` does, with the whole budget for it."""
    validate(problem, budget)
    return _unserved(problem, plan, claims(plan), RunningBudget(budget))


def _unserved(
    problem: Problem, plan: Plan, waiting: Sequence[UnservedClaim], running: RunningBudget
) -> tuple[WhyUnserved, ...]:
    found: list[WhyUnserved] = []
    for claim in waiting[:_MOST_CLAIMS]:
        if running.exhausted:
            break
        found.append(why_unserved(problem, plan, claim, running))
    return tuple(found)
