"""What prevents new nodes: sizes and limits, as constraints that explanations can remove and change. Constraints of
pods are in `pods`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from solver.explanation.model import ConstraintChange, ConstraintKind
from solver.explanation.pods import amount_text
from solver.model import PODS, Limit, NodeGroup, Plan, PodClass, Problem
from solver.model.quantities import pluralize
from solver.model.validation import MAX_COUNT

_LARGEST = 2**62
"""The most that a limit is raised to: sums must fit 64 bits."""


def _most_nodes(problem: Problem) -> int:
    """Return more new nodes than any plan could want: one for every pod, and those that minimum sizes require."""
    return sum(pods.count for pods in problem.pod_sets) + sum(group.min_size for group in problem.node_groups)


# Sizes and limits


def _sizes(problem: Problem, _: Sequence[PodClass]) -> Iterator[ConstraintChange]:
    most = _most_nodes(problem)
    for group in sorted(problem.node_groups, key=lambda g: g.id):
        after = min(MAX_COUNT, group.target_size + most)
        if after > group.max_size:
            yield ConstraintChange("max_size", group.id, before=group.max_size, after=after)


def _resize(group: NodeGroup, change: ConstraintChange) -> NodeGroup:
    return replace(group, max_size=change.whole)


def _size_reached(change: ConstraintChange, problem: Problem, plan: Plan) -> int:
    target = next(g.target_size for g in problem.node_groups if g.id == change.subject)
    return target + sum(i.delta for i in plan.increments if i.node_group == change.subject)


def _minima(problem: Problem, _: Sequence[PodClass]) -> Iterator[ConstraintChange]:
    for group in sorted(problem.node_groups, key=lambda g: g.id):
        if group.min_size > group.target_size and any(limit.counted(group) for limit in problem.limits):
            yield ConstraintChange("min_size", group.id, before=group.min_size, after=0)


def _shrink(group: NodeGroup, change: ConstraintChange) -> NodeGroup:
    return replace(group, min_size=change.whole)


def _pods_per_node(problem: Problem, _: Sequence[PodClass]) -> Iterator[ConstraintChange]:
    most = sum(pods.count for pods in problem.pod_sets) + len(problem.daemon_sets)
    for group in sorted(problem.node_groups, key=lambda g: g.id):
        if group.allocatable.get(PODS, 0) < most:
            yield ConstraintChange("pods_per_node", group.id, before=group.allocatable.get(PODS, 0), after=most)


def _more_pods(group: NodeGroup, change: ConstraintChange) -> NodeGroup:
    # What a node counts against limits does not change.
    return replace(
        group, allocatable={**group.allocatable, PODS: change.whole}, capacity=group.capacity or group.allocatable
    )


def _daemons(problem: Problem, _: Sequence[PodClass]) -> Iterator[ConstraintChange]:
    if problem.daemon_sets:
        number = len(problem.daemon_sets)
        yield ConstraintChange("daemon_sets", "the DaemonSet" if number == 1 else f"the {number} DaemonSets")


def _counted(limit: Limit, problem: Problem, resource: str) -> dict[str, int]:
    """Return, by group that the limit bounds, what one node counts against it, without zeros."""
    counted = {group.id: limit.counted(group).get(resource, 0) for group in problem.node_groups}
    return {group_id: amount for group_id, amount in counted.items() if amount}


def _limits(problem: Problem, _: Sequence[PodClass]) -> Iterator[ConstraintChange]:
    most = _most_nodes(problem)
    for limit in sorted(problem.limits, key=lambda each: each.name):
        for resource, maximum in sorted(limit.maxima.items()):
            counted = _counted(limit, problem, resource)
            after = min(_LARGEST, limit.used.get(resource, 0) + max(counted.values(), default=0) * most)
            if counted and after > maximum:
                yield ConstraintChange("limit", limit.name, resource, maximum, after)


def _raise_limit(problem: Problem, change: ConstraintChange) -> Problem:
    return replace(
        problem,
        limits=tuple(
            replace(each, maxima={**each.maxima, change.key: change.whole}) if each.name == change.subject else each
            for each in problem.limits
        ),
    )


def _limit_reached(change: ConstraintChange, problem: Problem, plan: Plan) -> int:
    limit = next(each for each in problem.limits if each.name == change.subject)
    counted = _counted(limit, problem, change.key)
    taken = sum(counted.get(i.node_group, 0) * i.delta for i in plan.increments)
    return limit.used.get(change.key, 0) + taken


def _limit_steps(change: ConstraintChange, problem: Problem) -> tuple[int, int]:
    """Return the steps at which anything changes: sums of whole nodes above what is used."""
    limit = next(each for each in problem.limits if each.name == change.subject)
    step = math.gcd(*_counted(limit, problem, change.key).values())
    above = limit.used.get(change.key, 0) - (change.before or 0)
    return above % step or step, step


LIMIT = ConstraintKind(
    "limit",
    _limits,
    lambda c: f"limit {c.subject} allows {amount_text(c, c.before)} {c.key}",
    lambda c: f"raise the {c.key} of limit {c.subject} from {amount_text(c, c.before)} to {amount_text(c, c.after)}",
    edit_problem=_raise_limit,
    reached=_limit_reached,
    steps=_limit_steps,
)
MAX_SIZE = ConstraintKind(
    "max_size",
    _sizes,
    lambda c: f"node group {c.subject} may have {pluralize(c.before or 0, 'node')}",
    lambda c: f"raise maxSize of {c.subject} from {c.before} to {c.after}",
    edit_group=_resize,
    reached=_size_reached,
)
KINDS = (
    LIMIT,
    MAX_SIZE,
    ConstraintKind(
        "min_size",
        _minima,
        lambda c: f"node group {c.subject} must have {pluralize(c.before or 0, 'node')}",
        lambda c: f"lower minSize of {c.subject} from {c.before} to {c.after}",
        edit_group=_shrink,
    ),
    ConstraintKind(
        "pods_per_node",
        _pods_per_node,
        lambda c: f"a node of {c.subject} holds {pluralize(c.before or 0, 'pod')}",
        lambda c: f"let a node of {c.subject} hold {pluralize(c.after or 0, 'pod')}, not {c.before}",
        edit_group=_more_pods,
    ),
    ConstraintKind(
        "daemon_sets",
        _daemons,
        lambda c: f"the pods of {c.subject} take their share of new nodes",
        lambda c: f"keep {c.subject} off new nodes",
        edit_problem=lambda problem, _: replace(problem, daemon_sets=()),
    ),
)
