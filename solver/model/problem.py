"""The planner's question."""

from __future__ import annotations

from dataclasses import dataclass

from solver.model.objects import Limit, Node, NodeGroup, PodSet, PodSpec
from solver.model.plan import Plan


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything a plan depends on."""

    pod_sets: tuple[PodSet, ...]
    node_groups: tuple[NodeGroup, ...] = ()
    nodes: tuple[Node, ...] = ()
    limits: tuple[Limit, ...] = ()
    daemon_sets: tuple[PodSpec, ...] = ()
    """Pods that every new node they are eligible for runs one of; their requests are not available to others."""
    previous: Plan | None = None
    """The plan before, not yet applied: planning starts from it, and of plans that are equally good the one that
    changes least is taken (disruption, the last objective)."""
