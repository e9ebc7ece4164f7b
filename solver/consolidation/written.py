"""Plans that were not made by planning: nodes and places written down, with no bound on the cost but zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from solver.consolidation.cluster import Cluster, Pods
from solver.model import (
    Certificate,
    NodeGroupIncrease,
    PlacedOnNode,
    Plan,
    PlannedNodes,
    PodClass,
    Status,
    TierCost,
)
from solver.model.objective import Goal, ObjectiveStage, StageValue
from solver.reduction.objective import dollars


def written(cluster: Cluster, placed: Mapping[int, Pods], opened: Sequence[tuple[str, Pods]] = ()) -> Plan:
    """Return the plan that puts pods onto nodes that stand, and onto new ones: (node group, pods) each."""
    total: Pods = Counter()
    for pods in (*placed.values(), *(pods for _, pods in opened)):
        total.update(pods)
    number = {k: index for index, k in enumerate(sorted(total))}
    classes = []
    for k, index in number.items():
        each = cluster.classes[k]
        classes.append(PodClass(index, each.spec, total[k], each.name, each.priority, each.gang, each.placeholder))
    existing = tuple(
        PlacedOnNode(cluster.nodes[node].name, _numbered(pods, number)) for node, pods in sorted(placed.items()) if pods
    )
    nodes = tuple(PlannedNodes(group, 1, _numbered(pods, number)) for group, pods in opened)
    deltas = Counter(group for group, _ in opened)
    price = {group: cluster.groups[group].price_usd_per_hour for group in deltas}
    costs: dict[int, list[float]] = {group.weight: [] for group in cluster.groups.values()}
    for group, delta in deltas.items():
        costs[cluster.groups[group].weight].append(price[group] * delta)
    tiers = tuple(TierCost(weight, dollars(parts), 0.0) for weight, parts in sorted(costs.items(), reverse=True))
    cost = dollars(tier.cost_usd_per_hour for tier in tiers)
    status = Status.FEASIBLE if cost else Status.OPTIMAL
    certificate = Certificate(status, cost, 0.0, tiers, 0.0)
    increments = tuple(NodeGroupIncrease(group, delta) for group, delta in sorted(deltas.items()))
    stages = _stages(classes, tiers, len(opened))
    return Plan(tuple(classes), increments, nodes, existing, (), certificate, 0.0, stages)


def _numbered(pods: Pods, number: Mapping[int, int]) -> dict[int, int]:
    return {number[k]: count for k, count in sorted(pods.items()) if count}


def _stages(classes: Sequence[PodClass], tiers: Sequence[TierCost], nodes: int) -> tuple[StageValue, ...]:
    priorities = sorted({each.priority for each in classes if not each.placeholder}, reverse=True)
    served = [ObjectiveStage(goal, p) for p in priorities for goal in (Goal.UNSERVED, Goal.WAITING)]
    if any(each.placeholder for each in classes):
        served.append(ObjectiveStage(Goal.PLACEHOLDERS))
    costs = [
        StageValue(ObjectiveStage(Goal.COST, tier.weight), tier.cost_usd_per_hour, 0.0) for tier in reversed(tiers)
    ]
    opened = StageValue(ObjectiveStage(Goal.NODES), float(nodes), 0.0)
    return (*(StageValue(stage, 0.0, 0.0) for stage in served), *costs, opened)
