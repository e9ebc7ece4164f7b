"""What prevents new nodes: sizes, limits and node groups that are not there, as constraints that explanations can
remove and change. Constraints of pods are in `pods`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, product

from solver.explanation.model import ConstraintChange, ConstraintKind
from solver.explanation.pods import amount_text
from solver.model import (
    PODS,
    Limit,
    NodeGroup,
    Operator,
    Plan,
    PodClass,
    PodSpec,
    PossibleGroups,
    Problem,
    Requirement,
)
from solver.model.capacity import fits, new_node
from solver.model.eligibility import matches_requirement, why_not_eligible
from solver.model.quantities import amount_words, format_quantity, pluralize, resource_words
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


# Node groups that are not there


def possible(problem: Problem, classes: Sequence[PodClass]) -> Iterator[ConstraintChange]:
    """Yield the node groups that could be there and would take pods of these classes."""
    for each in problem.possible:
        nodes = [new_node(group, problem.daemon_sets) for group in each.node_groups]
        if any(fits(cls.spec, node) for cls in classes for node in nodes):
            yield ConstraintChange(POSSIBLE, each.subject, each.advice, part=each)


def made_for(problem: Problem, classes: Sequence[PodClass]) -> Iterator[ConstraintChange]:
    """Yield a new node group for each class that one can be described for: with the labels that its pods ask of nodes,
    and of the size that they need beside DaemonSets."""
    of_daemons: Counter[str] = Counter()
    for spec in problem.daemon_sets:
        of_daemons.update(dict(spec.requests))
    most = sum(pods.count for pods in problem.pod_sets) + len(problem.daemon_sets)
    for cls in classes:
        labels = labels_for(cls.spec)
        if labels is not None:
            size = {name: amount + of_daemons[name] for name, amount in cls.spec.requests}
            group = NodeGroup(f"for {cls.example}", {**of_daemons, **size, PODS: most}, 0.0, labels=labels)
            words = [f"{format_quantity(name, amount)} {resource_words(name)}" for name, amount in size.items()]
            words += [f"the label {key}={value}" for key, value in sorted(labels.items())]
            advice = f"add a node group whose nodes have {' and '.join(words) or 'any size'}"
            found = PossibleGroups(f"pods like {cls.example}", "there is no such node group", advice, (group,))
            yield ConstraintChange(POSSIBLE, found.subject, advice, part=found)


_MOST_CHOICES = 64
"""Choices of one term of each condition on nodes, of which labels are tried."""


def labels_for(spec: PodSpec) -> dict[str, str] | None:
    """Return labels of a node that the pod may run on; None where none are found."""
    conditions = (*(() if spec.affinity is None else (spec.affinity,)), *spec.node_terms)
    for terms in islice(product(*conditions), _MOST_CHOICES):
        requirements = [each for term in terms for each in term.match_expressions]
        labels = dict(spec.node_selector)
        for each in requirements:
            mine = [other for other in requirements if other.key == each.key]
            values = (value for value in _values(each) if all(matches_requirement(o, {each.key: value}) for o in mine))
            if each.key not in labels and (value := next(values, None)) is not None:
                labels[each.key] = value
        if why_not_eligible(spec, labels, ()) is None:
            return labels
    return None


def _values(requirement: Requirement) -> Iterator[str]:
    """Yield values that may meet a requirement; none where the label need not be there."""
    if requirement.operator in (Operator.NOT_IN, Operator.DOES_NOT_EXIST):
        return
    yield from requirement.values
    yield from (str(int(each) + step) for each in requirement.values if each.isdecimal() for step in (1, -1))
    yield "true"


def _have(problem: Problem, change: ConstraintChange) -> Problem:
    assert isinstance(change.part, PossibleGroups)
    known = {group.id for group in problem.node_groups}
    new = tuple(group for group in change.part.node_groups if group.id not in known)
    named = change.part.limits

    def bounded(limit: Limit) -> frozenset[str]:
        """Return those of the new groups that count against a limit of some groups."""
        return frozenset(group.id for group in new if limit.name in named or _selects(limit, group))

    limits = (
        each if each.node_groups is None else replace(each, node_groups=each.node_groups | bounded(each))
        for each in problem.limits
    )
    return replace(problem, node_groups=(*problem.node_groups, *new), limits=tuple(limits))


def _selects(limit: Limit, group: NodeGroup) -> bool:
    return bool(limit.selector) and all(matches_requirement(each, group.labels) for each in limit.selector)


def _missing(change: ConstraintChange) -> str:
    assert isinstance(change.part, PossibleGroups)
    return f"{change.part.reason} ({change.subject})"


POSSIBLE = "node_groups"
LIMIT = ConstraintKind(
    "limit",
    _limits,
    lambda c: f"limit {c.subject} allows {amount_words(c.key, c.before or 0)}",
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
    ConstraintKind(POSSIBLE, possible, _missing, lambda c: c.key, edit_problem=_have),
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
