"""Which nodes of a plan's reserve are let go, once it is known whom the scheduler has left over: those that the pods
need beside the nodes of the plan that are held still. Pure; when to ask is `waves`' business."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from cagrpc.controllers.state import ClusterState
from solver.errors import ProblemError
from solver.model import Budget, NodeGroup, Problem
from solver.realise_reserve import needed

log = logging.getLogger(__name__)

BUDGET = Budget(2.0)


def needed_of_reserve(
    state: ClusterState,
    groups: Sequence[NodeGroup],
    waiting: AbstractSet[str],
    held: Mapping[str, int],
    reserve: Mapping[str, int],
    budget: Budget = BUDGET,
) -> Mapping[str, int]:
    """Nodes per group of the reserve, of which there are so many. `groups` have labels as their Nodes have them;
    `waiting` are the UIDs of the plan's pods that wait; `held` are its other nodes, by group, that are not let go yet.
    None are needed by pods that cannot be meant."""
    left = [(each.pod_set, sum(pod.uid in waiting for pod in each.pods)) for each in state.waiting]
    named = {group.id: group for group in groups}
    problem = Problem(
        tuple(replace(pod_set, count=count, gang=None) for pod_set, count in left if count),
        tuple(
            replace(named[name], target_size=0, min_size=0, max_size=count)
            for name, count in reserve.items()
            if count and name in named
        ),
        daemon_sets=state.daemon_sets,
    )
    others = [(named[name], count) for name, count in held.items() if count and name in named]
    try:
        return {each.node_group: each.delta for each in needed(problem, others, budget)}
    except ProblemError as error:
        log.warning("the reserve is not used: %s", "; ".join(error.problems)[:2000])
        return {}
