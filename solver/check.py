"""The independent checker: every plan passes it before it leaves `solve`.

Its own code path on purpose: it reads the problem and the plan as a user would, in plain sums over plain values, and
shares nothing with the planner but the model and the eligibility rules.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from solver.eligibility import why_not_eligible
from solver.errors import PlanRejectedError
from solver.model import PODS, NodeGroup, Plan, Problem, Resources

_TOLERANCE_USD = 2e-6


def check(problem: Problem, plan: Plan) -> None:
    """Raises `PlanRejectedError` naming every constraint of the problem that the plan breaks."""
    faults = list(faults_of(problem, plan))
    if faults:
        raise PlanRejectedError(faults)


def faults_of(problem: Problem, plan: Plan) -> Iterator[str]:
    """One sentence per broken constraint; nothing for a valid plan."""
    groups = {group.id: group for group in problem.node_groups}
    unknown = {nodes.node_group for nodes in plan.nodes} - set(groups)
    if unknown:
        yield f"nodes of unknown groups {sorted(unknown)}"
        return
    yield from _classes(problem, plan)
    yield from _new_nodes(problem, plan, groups)
    yield from _existing_nodes(problem, plan)
    yield from _sizes(plan, groups)
    yield from _limits(problem, plan, groups)
    yield from _gangs(plan)
    yield from _certificate(plan, groups)


def _classes(problem: Problem, plan: Plan) -> Iterator[str]:
    asked: Counter[object] = Counter()
    for pods in problem.pod_sets:
        asked[pods.spec, pods.priority, pods.gang, pods.placeholder] += pods.count
    told: Counter[object] = Counter()
    for cls in plan.pod_classes:
        told[cls.spec, cls.priority, cls.gang, cls.placeholder] += cls.count
    if +asked != +told:
        yield "the pod classes are not the problem's pods"
    yield from _accounts(plan)


def _accounts(plan: Plan) -> Iterator[str]:
    placed: Counter[int] = Counter()
    for nodes in plan.nodes:
        for cls_index, count in nodes.pods.items():
            placed[cls_index] += count * nodes.count
    for node in plan.existing:
        placed.update(node.pods)
    for left in plan.unplaced:
        placed[left.pod_class] += left.count
    for cls in plan.pod_classes:
        if placed[cls.index] != cls.count:
            yield f"class {cls.index} ({cls.example}): {cls.count} pods, but {placed[cls.index]} are accounted for"
    for index, count in placed.items():
        if count < 0 or not 0 <= index < len(plan.pod_classes):
            yield f"class {index}: {count} pods of a class that does not exist, or fewer than none"


def _new_nodes(problem: Problem, plan: Plan, groups: Mapping[str, NodeGroup]) -> Iterator[str]:
    for nodes in plan.nodes:
        group = groups[nodes.node_group]
        if nodes.count <= 0:
            yield f"{nodes.node_group}: {nodes.count} nodes"
        available = dict(group.allocatable)
        for daemon in problem.daemon_sets:
            if why_not_eligible(daemon, group.labels, group.taints) is None:
                less = _without(available, dict(daemon.requests), 1)
                # A daemon that does not fit waits, and takes nothing from the node.
                available = available if min(less.values()) < 0 else less
        yield from _fits(f"a node of {group.id}", plan, nodes.pods, available, group)


def _existing_nodes(problem: Problem, plan: Plan) -> Iterator[str]:
    standing = {node.name: node for node in problem.nodes}
    for name, times in Counter(placed.node for placed in plan.existing).items():
        if times > 1 or name not in standing:
            yield f"node {name}: given {times} times, or not standing"
    for placed in plan.existing:
        node = standing.get(placed.node)
        if node is not None:
            yield from _fits(f"node {node.name}", plan, placed.pods, node.free, node, node.name)


def _fits(
    place: str, plan: Plan, pods: Mapping[int, int], available: Resources, where: object, name: str = ""
) -> Iterator[str]:
    left = dict(available)
    for index, count in pods.items():
        cls = plan.pod_classes[index]
        reason = why_not_eligible(cls.spec, where.labels, where.taints, name)  # type: ignore[attr-defined]
        if reason is not None:
            yield f"{place} holds class {index}: {reason}"
        left = _without(left, dict(cls.spec.requests), count)
    yield from (f"{place} is over-full: {resource} by {-amount}" for resource, amount in left.items() if amount < 0)


def _without(available: Mapping[str, int], requests: Resources, count: int) -> dict[str, int]:
    left = dict(available)
    for resource, amount in {**requests, PODS: 1}.items():
        left[resource] = left.get(resource, 0) - amount * count
    return left


def _sizes(plan: Plan, groups: Mapping[str, NodeGroup]) -> Iterator[str]:
    deltas: Counter[str] = Counter()
    for nodes in plan.nodes:
        deltas[nodes.node_group] += nodes.count
    if dict(deltas) != {i.node_group: i.delta for i in plan.increments}:
        yield "the increments do not add up to the nodes"
    for group in groups.values():
        delta = deltas[group.id]
        if delta and group.target_size + delta > group.max_size:
            yield f"{group.id}: {group.target_size} + {delta} nodes, at most {group.max_size} allowed"


def _limits(problem: Problem, plan: Plan, groups: Mapping[str, NodeGroup]) -> Iterator[str]:
    for limit in problem.limits:
        taken: Counter[str] = Counter()
        for increment in plan.increments:
            if limit.node_groups is None or increment.node_group in limit.node_groups:
                for resource, amount in groups[increment.node_group].counted_capacity.items():
                    taken[resource] += amount * increment.delta
        for resource, most in limit.maxima.items():
            total = limit.used.get(resource, 0) + taken[resource]
            if taken[resource] and total > most:
                yield f"limit {limit.name}: {total} {resource}, at most {most} allowed"


def _gangs(plan: Plan) -> Iterator[str]:
    left = {unplaced.pod_class: unplaced.count for unplaced in plan.unplaced}
    shares: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for cls in plan.pod_classes:
        if cls.gang is not None:
            shares[cls.gang].append((cls.count, left.get(cls.index, 0)))
    for gang, parts in shares.items():
        if any(missing for _, missing in parts) and any(missing != count for count, missing in parts):
            yield f"gang {gang} is served in part"


def _certificate(plan: Plan, groups: Mapping[str, NodeGroup]) -> Iterator[str]:
    told = plan.certificate
    costs: dict[int, float] = defaultdict(float)
    for increment in plan.increments:
        group = groups[increment.node_group]
        costs[group.weight] += group.price_usd_per_hour * increment.delta
    total = math.fsum(costs.values())
    nodes = sum(increment.delta for increment in plan.increments)
    tolerance = _TOLERANCE_USD * max(1, nodes)
    if abs(told.cost_usd_per_hour - total) > tolerance:
        yield f"cost {told.cost_usd_per_hour}, but the nodes cost {total}"
    for tier in told.tiers:
        if abs(tier.cost_usd_per_hour - costs.get(tier.weight, 0.0)) > tolerance:
            yield f"tier {tier.weight} costs {costs.get(tier.weight, 0.0)}, not {tier.cost_usd_per_hour}"
        if tier.lower_bound_usd_per_hour > tier.cost_usd_per_hour + tolerance:
            yield f"tier {tier.weight}: lower bound {tier.lower_bound_usd_per_hour} above cost {tier.cost_usd_per_hour}"
    if told.lower_bound_usd_per_hour > told.cost_usd_per_hour + tolerance:
        yield f"lower bound {told.lower_bound_usd_per_hour} above cost {told.cost_usd_per_hour}"
