"""Plans for pods that share volumes, where nodes attach few.

First a problem is planned that asks for less (`solver.reduction.shared_volumes`). What is proven of its plans holds for
those of the problem, and mostly its plan is one of the problem, too. Where that has more volumes on a node than this
attaches, the better is taken of plans for problems that ask for more.
"""

from __future__ import annotations

from collections.abc import Callable

from solver.model import Plan, PodSpec, Problem
from solver.model.errors import UncheckedPlanError
from solver.planning.settling import settled
from solver.planning.write_plan import as_asked, best_of, bounded_by
from solver.reduction.shared_volumes import in_parts, scarce_attachments, with_kept_attachments
from solver.verify.nodes import faults_on_nodes
from solver.verify.places import CheckedPlaces

_SHARES = (0.5, 0.75, 1.0)
"""Of the budget, by when there is a plan that asks for less, and plans that ask for more."""


def with_shared_volumes(problem: Problem, search: Callable[[Problem, float], Plan]) -> Plan | None:
    """Return a plan in which each node attaches a volume once; None where nodes attach enough whatever is counted.
    `search` returns a plan of a problem, found before a share of the budget is gone."""
    scarce = scarce_attachments(problem)
    if not scarce:
        return None
    loose = _planned(problem, in_parts(problem, scarce), search, _SHARES[0])
    if _fits(problem, loose):
        return settled(problem, loose)
    stricter = (with_kept_attachments(problem, scarce), problem)
    plans = (_planned(problem, each, search, share) for each, share in zip(stricter, _SHARES[1:], strict=True))
    return best_of([settled(problem, bounded_by(plan, loose)) for plan in plans])


def _planned(problem: Problem, instead: Problem, search: Callable[[Problem, float], Plan], share: float) -> Plan:
    """Return the plan of `instead` with the problem's pods."""
    plan = search(instead, share)
    if instead is problem:
        return plan
    asked: dict[PodSpec, PodSpec] = {
        other.spec: pods.spec for pods, other in zip(problem.pod_sets, instead.pod_sets, strict=True)
    }
    return as_asked(plan, asked)


def _fits(problem: Problem, plan: Plan) -> bool:
    try:
        return next(faults_on_nodes(problem, CheckedPlaces(problem, plan)), None) is None
    except UncheckedPlanError:
        return True  # which is for whoever checks the plan as a whole
