"""Refuse invalid consolidation problems, naming every fault at once."""

from __future__ import annotations

import math
from collections.abc import Iterator

from solver.consolidation.model import ConsolidationProblem, DisruptionReason, StandingNode
from solver.model import Budget, PodSet, Problem
from solver.model.errors import ProblemError
from solver.model.validation import MAX_COUNT, validate

_REPLACED = (DisruptionReason.INTERRUPTED, DisruptionReason.UNHEALTHY)


def validate_consolidation(problem: ConsolidationProblem, budget: Budget | None = None) -> None:
    """Raises `ProblemError` with every fault, of the budget too where one is given."""
    faults: list[str] = []
    sets: dict[tuple[int, int, str | None, bool], PodSet] = {}
    for standing in problem.nodes:
        for each in standing.pods:
            faults.extend(_count(standing, each))
            sets.setdefault((id(each.spec), each.priority, each.gang, each.placeholder), each)
    nodes = tuple(standing.node for standing in problem.nodes)
    try:
        validate(Problem(tuple(sets.values()), problem.node_groups, nodes, problem.limits, problem.daemon_sets), budget)
    except ProblemError as error:
        faults.extend(error.problems)
    groups = {group.id for group in problem.node_groups}
    for standing in problem.nodes:
        faults.extend(_standing(standing, groups))
    least = problem.least_saving_usd_per_hour_per_pod
    if not (math.isfinite(least) and least >= 0):
        faults.append(f"least saving per pod: {least} $/h is not a finite number from 0 up")
    most = problem.most_nodes_per_step
    if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= MAX_COUNT:
        faults.append(f"nodes per step: at most {most!r} is not a whole number between 1 and {MAX_COUNT}")
    if faults:
        raise ProblemError(faults)


def _count(standing: StandingNode, pods: PodSet) -> Iterator[str]:
    if not 0 <= pods.count <= MAX_COUNT:
        yield f"node {standing.node.name}: pod set {pods.name}: count {pods.count} is not between 0 and {MAX_COUNT}"


def _standing(standing: StandingNode, groups: set[str]) -> Iterator[str]:
    place = f"node {standing.node.name}"
    if standing.node_group and standing.node_group not in groups:
        yield f"{place}: node group {standing.node_group} is not among the problem's"
    if standing.must_go is not None and standing.must_go not in _REPLACED:
        known = " or ".join(_REPLACED)
        yield f"{place}: must go because {standing.must_go}, which is decided by cost; expected {known}"
    if standing.must_go is not None and not standing.node_group:
        yield f"{place}: must go, but is of no node group; name the group that replaces it"
