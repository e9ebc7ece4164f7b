"""One step: whether these nodes can go together, where their pods go then, and whether that is better. And plans that
were not made by planning: nodes and places written down, with no bound on the cost but zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from solver.consolidation.cluster import Cluster, NodeRemoval, Pods, Replacement
from solver.consolidation.eligible import Eligibility, PodRules
from solver.consolidation.model import DisruptionReason
from solver.model import (
    Budget,
    Certificate,
    NodeGroupIncrease,
    PlacedOnNode,
    Plan,
    PlannedNodes,
    PodClass,
    PodSet,
    Problem,
    Status,
    TierCost,
)
from solver.model.capacity import emptied, unshared
from solver.model.eligibility import is_spread_over_hosts
from solver.model.objective import Goal, ObjectiveStage, StageValue
from solver.planning.solve import solve
from solver.reduction.objective import dollars
from solver.reduction.reduced import MICROS


def written(cluster: Cluster, replacement: Replacement) -> Plan:
    """Return the plan that puts pods onto nodes that stand, and onto new ones."""
    placed, opened = replacement.placed, replacement.opened
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


_MOST_TARGETS = 64
"""How many nodes with room are enough: planning over thousands takes half a second, over these some hundredths."""
_LEAST_SHARE = 0.02
"""Of what the nodes cost that go: what replacing them saves at least. For less, a whole step's pods would move."""


@dataclass(frozen=True)
class Trial:
    """A step that is worth it, not yet taken."""

    reason: DisruptionReason
    removal: NodeRemoval
    plan: Plan
    change_micros: Mapping[int, int]
    """Per weight, what its nodes cost more after the step than before, in millionths of $/h."""

    @property
    def order(self) -> tuple[int, ...]:
        """What steps for the same nodes are compared by, as plans are: cheaper from the lowest weight up."""
        return tuple(micros for _, micros in sorted(self.change_micros.items()))

    @property
    def saved_micros(self) -> int:
        return -sum(self.change_micros.values())


class StepTrials:
    """Finds and judges steps on a cluster; changes nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.eligibility, self.rules = Eligibility(cluster), PodRules(cluster)
        self.plain = [
            each.gang is None and plain for each, plain in zip(cluster.classes, self.rules.plain, strict=True)
        ]
        self.least_micros_per_pod = cluster.problem.least_saving_usd_per_hour_per_pod * MICROS

    def planned(
        self, removal: NodeRemoval, targets: Sequence[int], budget: Budget, open_to: Iterable[str] | None = None
    ) -> Plan:
        """Plan the pods that move onto nodes of `targets`, those that have room and come first, and onto new nodes of
        the groups `open_to` (None for all)."""
        cluster, going = self.cluster, set(removal.nodes)
        moved = cluster.moved(removal)
        bound = any(self.rules.bound[k] for k in moved)
        chosen = self._useful(moved, [n for n in targets if n not in going])
        nodes = [cluster.node(number, removal.elsewhere.get(number)) for number in chosen]
        if bound:
            nodes.extend(self.rules.others({*chosen, *going}, removal.elsewhere))
        if any(is_spread_over_hosts(cluster.classes[k].spec) for k in moved):
            nodes.extend(emptied(cluster.nodes[number]) for number in removal.nodes)
        sets = tuple(_counted(cluster.classes[k], moved[k]) for k in sorted(moved))
        groups, limits = cluster.node_groups(removal.nodes), cluster.limits(open_to)
        return solve(Problem(sets, groups, tuple(nodes), limits, cluster.problem.daemon_sets), budget)

    def judged(self, removal: NodeRemoval, plan: Plan) -> Trial | None:
        """Return the step where it is possible and worth it."""
        if plan.unplaced or not self.keeps_minimum_sizes(removal, plan):
            return None
        reason = self._why(removal, plan, self._change_micros(removal, plan))
        return None if reason is None else self.trial(reason, removal, plan)

    def replaced(self, replacement: Replacement) -> Trial | None:
        """Return the step that replaces these nodes where it is possible and worth it."""
        return self.judged(NodeRemoval(replacement.nodes, {}), written(self.cluster, replacement))

    def sure(self, reason: DisruptionReason, replacement: Replacement) -> Trial:
        """Return the step that replaces these nodes, which is known to be possible and worth it."""
        return self.trial(reason, NodeRemoval(replacement.nodes, {}), written(self.cluster, replacement))

    def trial(self, reason: DisruptionReason, removal: NodeRemoval, plan: Plan) -> Trial:
        return Trial(reason, removal, plan, self._change_micros(removal, plan))

    def _why(self, removal: NodeRemoval, plan: Plan, change: Mapping[int, int]) -> DisruptionReason | None:
        """Return why the step is worth it; None where it is not."""
        cluster = self.cluster
        saved, evicted = -sum(change.values()), cluster.evicted(cluster.moved(removal))
        if not cluster.moved(removal):
            return DisruptionReason.EMPTY if not plan.increments else None
        first = next((change[weight] for weight in sorted(change) if change[weight]), 0)
        if first >= 0:
            return None
        gone = sum(cluster.micros_of(number) for number in removal.nodes)
        least = max(self.least_micros_per_pod * evicted, _LEAST_SHARE * gone if plan.increments else 0)
        if saved > 0 and saved >= least:
            dearer = any(micros > 0 for micros in change.values())
            return DisruptionReason.BETTER_WEIGHT if dearer else DisruptionReason.UNDERUTILIZED
        return DisruptionReason.BETTER_WEIGHT if self._is_better_weight(removal, plan) else None

    def keeps_minimum_sizes(self, removal: NodeRemoval, plan: Plan) -> bool:
        """Return whether no group falls below its minimum size."""
        cluster = self.cluster
        change = Counter({each.node_group: each.delta for each in plan.increments})
        change.subtract(cluster.group_of[number] for number in removal.nodes)
        return all(cluster.target[group] + n >= cluster.least[group] for group, n in change.items() if n < 0)

    def _change_micros(self, removal: NodeRemoval, plan: Plan) -> Counter[int]:
        cluster = self.cluster
        change = Counter({group.weight: 0 for group in cluster.groups.values()})
        for number in removal.nodes:
            change[cluster.weight_of(number)] -= cluster.micros_of(number)
        for each in plan.increments:
            change[cluster.groups[each.node_group].weight] += cluster.micros[each.node_group] * each.delta
        return change

    def in_order(self, nodes: Iterable[int]) -> list[int]:
        """Sort nodes: the lowest weights first, then those with the largest surplus for each pod that moves."""
        surplus = self.cluster.surplus()
        per_pod = (surplus / (1 + self.cluster.evictions[: len(surplus)])).tolist()
        return sorted(nodes, key=lambda n: (self.cluster.weight_of(n), -per_pod[n], n))

    def _is_better_weight(self, removal: NodeRemoval, plan: Plan) -> bool:
        """Return whether every pod comes onto a node of a higher weight than all nodes that go."""
        cluster = self.cluster
        worst = max(cluster.weight_of(number) for number in removal.nodes)
        onto = [cluster.groups[batch.node_group].weight for batch in plan.nodes]
        for placed in plan.existing:
            number = cluster.index[placed.node]
            if cluster.group_of[number]:
                onto.append(cluster.weight_of(number))
        return bool(onto) and min(onto) > worst

    def _useful(self, moved: Pods, targets: Sequence[int]) -> list[int]:
        """Return the first of the targets on which one of the pods has room."""
        cluster = self.cluster
        order = np.array(targets, dtype=np.int64)
        order = order[cluster.takes[order]] if len(order) else order
        useful = np.zeros(len(order), dtype=bool)
        free = cluster.free[order]
        for k in moved:  # volumes that pods share may be there
            least = cluster.row(dict(unshared(cluster.classes[k].spec)))
            useful |= self.eligibility.of(k)[order] & (free >= least).all(axis=1)
        found: list[int] = order[np.flatnonzero(useful)[:_MOST_TARGETS]].tolist()
        return found


def _counted(pods: PodSet, count: int) -> PodSet:
    return PodSet(pods.name, pods.spec, count, pods.priority, 0, pods.gang, pods.placeholder)
