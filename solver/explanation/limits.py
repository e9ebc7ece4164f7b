"""Which maximum sizes and limits shape a plan, and what that costs: the same problem is planned without them. What
keeps pods out is `unserved`'s, why these groups are chosen is `choices`'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from solver.explanation.capacity import LIMIT, MAX_SIZE
from solver.explanation.choices import difference, may_hold
from solver.explanation.kinds import apply
from solver.explanation.model import ConstraintChange, WhyLimited
from solver.model import NodeGroup, Plan, Problem
from solver.model.budget import Budget, RunningBudget
from solver.planning.solve import solve

_MOST_ALONE = 5


def can_bind(problem: Problem) -> bool:
    """Return whether there is a maximum size or a limit that a plan could use up."""
    return bool(problem.limits) or any(True for _ in MAX_SIZE.find(problem, ()))


def reached(problem: Problem, plan: Plan) -> tuple[ConstraintChange, ...]:
    """Return the maximum sizes and limits that a plan has used up, as the changes that remove them: with none of these,
    nothing but prices and pods shapes it."""
    return (*_sizes(problem, plan), *_limits(problem, plan))


def _sizes(problem: Problem, plan: Plan) -> Iterator[ConstraintChange]:
    groups = {group.id: group for group in problem.node_groups}
    deltas = {each.node_group: each.delta for each in plan.increments}
    for change in MAX_SIZE.find(problem, ()):
        group = groups[change.subject]
        full = group.target_size + deltas.get(group.id, 0) >= group.max_size
        if full and any(may_hold(problem, plan, group, each.index) for each in plan.pod_classes):
            yield change


def _limits(problem: Problem, plan: Plan) -> Iterator[ConstraintChange]:
    opened = {each.node_group for each in plan.increments}
    limits = {limit.name: limit for limit in problem.limits}
    for change in LIMIT.find(problem, ()):
        bounds = limits[change.subject].node_groups
        bounded = [group for group in problem.node_groups if bounds is None or group.id in bounds]
        used = LIMIT.reached(change, problem, plan)
        assert used is not None
        assert change.before is not None
        left, of_opened = change.before - used, [group for group in bounded if group.id in opened]
        if left < max(_one_more(of_opened, change.key), min(filter(None, _counted(bounded, change.key)), default=0)):
            yield change


def _counted(groups: Sequence[NodeGroup], resource: str) -> Iterator[int]:
    return (group.counted_capacity.get(resource, 0) for group in groups)


def _one_more(groups: Sequence[NodeGroup], resource: str) -> int:
    return max(_counted(groups, resource), default=0)


def without(problem: Problem, plan: Plan, changes: Sequence[ConstraintChange], budget: Budget) -> WhyLimited | None:
    """Return what the plan would be without these; None where it would serve as much for as much."""
    freed = apply(replace(problem, previous=plan), changes)
    other = solve(freed, budget)
    found = difference(plan, other)
    if not (found.unserved or found.placeholders or any(cost for _, cost in found.tiers)):
        return None
    if _is_worse(plan, other):  # there was too little time to find as good a plan
        return None
    return WhyLimited(tuple(changes), found, other.certificate.least_usd_per_hour)


def _is_worse(plan: Plan, other: Plan) -> bool:
    """Return whether the other plan, of fewer constraints, is worse at the first stage in which they differ."""
    theirs = {each.stage: each.value for each in other.objective}
    for mine in plan.objective:
        value = theirs.get(mine.stage, mine.value)
        if abs(value - mine.value) > 1e-9:
            return value > mine.value
    return False


def why_limited(problem: Problem, plan: Plan, budget: RunningBudget, share: float) -> tuple[WhyLimited, ...]:
    """Return what all that is reached costs together, and then each alone that costs something, as far as there is
    time."""
    changes = reached(problem, plan)
    asked = [changes, *([each] for each in changes[:_MOST_ALONE])] if len(changes) > 1 else [changes] if changes else []
    found: list[WhyLimited] = []
    for together in asked:
        if budget.exhausted or (len(together) == 1 < len(changes) and not found):
            break
        if (why := without(problem, plan, together, budget.next_plan(share))) is not None:
            found.append(why)
    return tuple(found)
