"""Which pods of a chosen option go to which of its nodes. The autoscaler keeps its own estimate to itself; on as many
nodes the planner finds places, and each pod is nominated to its own once the node is there (`controllers.placement`).
Otherwise the scheduler spreads them over all nodes that stand, and the rest of a node is of use to nobody."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cagrpc.api.autoscaler.expander import group as pod_sets_of
from cagrpc.api.core.pods import Pod
from cagrpc.cluster.drop_invalid import solve_valid
from cagrpc.fleet.model import Placement
from solver.model import Budget, NodeGroup, PodSpec, Problem
from solver.model.capacity import new_node, planned_name
from solver.model.plan import class_key


def placements(
    pods: Iterable[Pod], group: NodeGroup, node_count: int, daemon_sets: Sequence[PodSpec], budget: Budget
) -> tuple[Placement, ...]:
    """Return which of the pods, the oldest first, go to each of so many new nodes of the group. Nodes that none needs
    have no entry, and pods for which there is no room are in none. Raises NotCompiledError at once where that takes
    compiled kernels and there are none yet."""
    in_order = sorted(pods, key=lambda pod: (pod.created_at_seconds, pod.name))
    pod_sets, set_of_pod = pod_sets_of(in_order)
    template = new_node(group, daemon_sets)
    nodes = tuple(replace(template, name=planned_name(group.id, 0, copy)) for copy in range(node_count))
    plan = solve_valid(Problem(pod_sets, nodes=nodes), budget).plan
    left: defaultdict[object, list[str]] = defaultdict(list)
    for key in reversed(set_of_pod):
        left[class_key(pod_sets[set_of_pod[key]])].append(key)
    waiting = {each.index: left[class_key(each)] for each in plan.pod_classes}
    return tuple(
        Placement(group.id, tuple(waiting[index].pop() for index, count in placed.pods.items() for _ in range(count)))
        for placed in plan.existing
    )
