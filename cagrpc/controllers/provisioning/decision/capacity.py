"""Scenarios: as they are, as they may be one day, and less what is reserved; and the planner's problem of one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from cagrpc.cluster.drop_invalid import drop_invalid
from cagrpc.cluster.node_info import requested
from cagrpc.controllers.provisioning.decision.model import Scenario
from cagrpc.controllers.provisioning.model import Candidate
from solver.model import Limit, Node, NodeGroup, Plan, PodSet, Problem, Resources


def problem_of(scenario: Scenario, pod_sets: Iterable[PodSet]) -> Problem:
    """Return the planner's problem. Groups with a shortage are left out."""
    return Problem(
        tuple(pod_sets),
        tuple(group for group in scenario.groups if group.id not in scenario.short),
        scenario.nodes,
        scenario.limits,
        scenario.daemon_sets,
    )


def pods_of(candidates: Iterable[Candidate], *, priority: int = 0, gang: str | None = None) -> list[PodSet]:
    """Return the pods of candidates for planning. Only their order tells requests apart, not their pods."""
    return [
        PodSet(pods.name, pods.spec, pods.count, priority, gang=gang)
        for candidate in candidates
        for pods in candidate.pod_sets
    ]


def without_faults(scenario: Scenario) -> Scenario:
    """Return the scenario without invalid Nodes and DaemonSets."""
    left = drop_invalid(Problem((), nodes=scenario.nodes, daemon_sets=scenario.daemon_sets))
    return replace(scenario, nodes=left.nodes, daemon_sets=left.daemon_sets)


def emptied(scenario: Scenario) -> Scenario:
    """Return the scenario with all groups at size 0 and no limit used. Nodes that belong to no group exist, and are
    empty."""
    foreign = [node for node in scenario.nodes if node.name in scenario.foreign]
    return replace(
        scenario,
        nodes=tuple(map(_vacated, foreign)),
        groups=tuple(replace(group, target_size=0) for group in scenario.groups),
        limits=tuple(replace(limit, used={}) for limit in scenario.limits),
        short={},
    )


def _vacated(node: Node) -> Node:
    devices = tuple(replace(each, count=each.count + each.taken, taken=0) for each in node.devices)
    return replace(node, free=node.allocatable or node.free, running=(), devices=devices)


def in_the_end(scenario: Scenario) -> Scenario:
    """Return the scenario once other requests are finished."""
    if scenario.returning is None:
        return emptied(scenario)
    nodes = tuple(replace(node, free=_sum(node.free, scenario.returning.get(node.name, {}))) for node in scenario.nodes)
    groups = without(scenario, {}, {group_id: -count for group_id, count in scenario.coming.items()})
    return replace(groups, nodes=nodes, short={})


def without(scenario: Scenario, on_nodes: Mapping[str, Resources], deltas: Mapping[str, int]) -> Scenario:
    """Return the scenario less what is reserved on existing nodes, and less so many new nodes by group; negative counts
    give nodes back."""
    groups = {group.id: group for group in scenario.groups}
    return replace(
        scenario,
        nodes=tuple(_less(node, on_nodes.get(node.name, {})) for node in scenario.nodes),
        groups=tuple(_smaller(group, deltas.get(group.id, 0)) for group in scenario.groups),
        limits=tuple(_more_used(limit, groups, deltas) for limit in scenario.limits),
    )


def _less(node: Node, reserved: Resources) -> Node:
    if not reserved:
        return node
    return replace(node, free={name: max(0, amount - reserved.get(name, 0)) for name, amount in node.free.items()})


def _smaller(group: NodeGroup, delta: int) -> NodeGroup:
    return replace(group, max_size=max(group.min_size, group.max_size - delta)) if delta else group


def _more_used(limit: Limit, groups: Mapping[str, NodeGroup], deltas: Mapping[str, int]) -> Limit:
    used: Resources = limit.used
    for group_id, delta in deltas.items():
        if group_id in groups and (limit.node_groups is None or group_id in limit.node_groups):
            more = {name: amount * delta for name, amount in groups[group_id].counted_capacity.items()}
            used = _sum(used, more)
    return replace(limit, used={name: max(0, amount) for name, amount in used.items()})


def _sum(one: Resources, other: Resources) -> Resources:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *other)}


def held_alone(plan: Plan, who: frozenset[int]) -> tuple[dict[str, Resources], dict[str, int]]:
    """Return what pods of these classes get in a plan: on existing nodes, and the new nodes by group that are theirs
    alone."""
    mine = {
        placed.node: [(plan.pod_classes[index].spec, count) for index, count in placed.pods.items() if index in who]
        for placed in plan.existing
    }
    deltas: Counter[str] = Counter()
    for nodes in plan.nodes:
        if nodes.pods and nodes.pods.keys() <= who:
            deltas[nodes.node_group] += nodes.count
    return {name: requested(pods) for name, pods in mine.items() if pods}, dict(deltas)
