"""All kinds of constraints that can be explained, one entry each. A new kind of constraint is one more entry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from solver.explanation import capacity, devices, pods
from solver.explanation.model import ConstraintChange, ConstraintKind
from solver.model import NodeGroup, PodClass, Problem
from solver.model.plan import class_key

KINDS: dict[str, ConstraintKind] = {
    kind.name: kind for kind in (*pods.KINDS, *devices.KINDS, *capacity.KINDS, pods.REQUEST)
}
"""In the order in which reasons are given: what keeps pods away from nodes, what prevents new nodes, sizes."""


def removals(problem: Problem, classes: Sequence[PodClass]) -> tuple[ConstraintChange, ...]:
    """Return every constraint that might keep the classes out, as the change that removes it, in the order of
    `KINDS`."""
    return tuple(change for kind in KINDS.values() for change in kind.find(problem, classes))


def reason(change: ConstraintChange) -> str:
    """Return the constraint as it stands, in words: "node group gpu-a may have 10 nodes"."""
    return KINDS[change.kind].reason(change)


def advice(change: ConstraintChange) -> str:
    """Return the change in the imperative: "raise maxSize of gpu-a from 10 to 12". Expects one that can be made."""
    words = KINDS[change.kind].advice
    assert words is not None, change
    return words(change)


def offered(changes: Iterable[ConstraintChange]) -> list[ConstraintChange]:
    """Return the most of each change that people are offered, without those that they are not."""
    found = (KINDS[change.kind].offered(change) for change in changes if KINDS[change.kind].advice is not None)
    return [change for change in found if change is not None]


def apply(problem: Problem, changes: Iterable[ConstraintChange]) -> Problem:
    """Return the problem with all the changes. Pods are found by their class as it was before the first of them."""
    changes = tuple(changes)
    of_groups: dict[str, list[ConstraintChange]] = {}
    for change in changes:
        kind = KINDS[change.kind]
        if kind.edit_problem is not None:
            problem = kind.edit_problem(problem, change)
        if kind.edit_group is not None:
            of_groups.setdefault(change.subject, []).append(change)
    if of_groups:
        groups = tuple(_edited(group, of_groups.get(group.id, ())) for group in problem.node_groups)
        problem = replace(problem, node_groups=groups)
    by_class: dict[int, list[ConstraintChange]] = {}  # by index: pods of many constraints are hashed but once
    for change in changes:
        if change.pods is not None:
            by_class.setdefault(change.pods.index, []).append(change)
    edits = {class_key(mine[0].pods): mine for mine in by_class.values() if mine[0].pods is not None}
    if not edits:
        return problem
    changed = []
    for pod_set in problem.pod_sets:
        spec = pod_set.spec
        for change in edits.get(class_key(pod_set), ()):
            edit_pods = KINDS[change.kind].edit_pods
            spec = edit_pods(spec, change) if edit_pods is not None else spec
        changed.append(replace(pod_set, spec=spec))
    return replace(problem, pod_sets=tuple(changed))


def _edited(group: NodeGroup, changes: Sequence[ConstraintChange]) -> NodeGroup:
    for change in changes:
        edit = KINDS[change.kind].edit_group
        group = edit(group, change) if edit is not None else group
    return group
