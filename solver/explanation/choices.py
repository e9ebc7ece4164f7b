"""Why a plan chooses its node groups: what the plan would be without each of them, and with one node of the best group
of each tier that was not chosen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from solver.explanation.model import Alternative, Difference, WhyGroup
from solver.explanation.question import LARGEST_SHARE
from solver.model import PODS, NodeGroup, NodeGroupIncrease, Plan, Problem, Status
from solver.model.allocation import why_not_allocated
from solver.model.budget import RunningBudget
from solver.model.capacity import after_daemons, on_new_node
from solver.model.eligibility import why_not_eligible
from solver.planning.solve import solve

_DUST_USD = 1e-9


def why_group(problem: Problem, plan: Plan, increment: NodeGroupIncrease, budget: RunningBudget) -> WhyGroup:
    """Plan again without the group, and once per tier with a node of the best group that was not chosen."""
    groups = {group.id: group for group in problem.node_groups}
    mine = groups[increment.node_group]
    forbidden = _resized(problem, replace(mine, min_size=0, max_size=max(0, min(mine.target_size, mine.max_size))))
    without = difference(plan, solve(forbidden, budget.next_plan(LARGEST_SHARE)))
    others = []
    for other in _candidates(problem, plan, mine):
        if budget.exhausted:
            break
        forced = solve(
            _resized(problem, replace(other, min_size=max(other.min_size, other.target_size + 1))),
            budget.next_plan(LARGEST_SHARE),
        )
        opened = any(each.node_group == other.id for each in forced.increments)
        others.append(
            Alternative(other.id, other.weight, other.price_usd_per_hour, difference(plan, forced) if opened else None)
        )
    cost = round(increment.delta * mine.price_usd_per_hour, 9)
    return WhyGroup(mine.id, increment.delta, mine.weight, cost, without, tuple(others))


def difference(plan: Plan, other: Plan) -> Difference:
    """Return what `other` has more than `plan` of everything that is minimised. Both are of the same pods and tiers."""
    tiers = {tier.weight: -tier.cost_usd_per_hour for tier in plan.certificate.tiers}
    for tier in other.certificate.tiers:
        tiers[tier.weight] = tiers.get(tier.weight, 0.0) + tier.cost_usd_per_hour
    before, after = _unserved(plan), _unserved(other)
    now = {increment.node_group: -increment.delta for increment in plan.increments}
    for increment in other.increments:
        now[increment.node_group] = now.get(increment.node_group, 0) + increment.delta
    return Difference(
        after[False] - before[False],
        after[True] - before[True],
        tuple((weight, _clean(cost)) for weight, cost in sorted(tiers.items())),
        _clean(math.fsum(tiers.values())),
        tuple(NodeGroupIncrease(group_id, delta) for group_id, delta in sorted(now.items()) if delta),
        all(each.certificate.status is not Status.FEASIBLE for each in (plan, other)),
    )


def _clean(cost: float) -> float:
    return round(cost, 9) if abs(cost) > _DUST_USD else 0.0


def _unserved(plan: Plan) -> Counter[bool]:
    """Return unserved pods: real ones under False, placeholders under True."""
    counts: Counter[bool] = Counter()
    for each in plan.unplaced:
        counts[plan.pod_classes[each.pod_class].placeholder] += each.count
    return counts


def _resized(problem: Problem, group: NodeGroup) -> Problem:
    groups = tuple(group if each.id == group.id else each for each in problem.node_groups)
    return replace(problem, node_groups=groups)


def _candidates(problem: Problem, plan: Plan, mine: NodeGroup) -> Iterator[NodeGroup]:
    """Yield, per tier, highest first, the group that would serve the most of the pods on `mine` at the lowest price, of
    those that were not chosen and can grow."""
    chosen = {increment.node_group for increment in plan.increments}
    pods: Counter[int] = Counter()
    for nodes in plan.nodes:
        if nodes.node_group == mine.id:
            pods.update({index: count * nodes.count for index, count in nodes.pods.items()})
    best: dict[int, tuple[tuple[int, float, str], NodeGroup]] = {}
    for group in problem.node_groups:
        if group.id in chosen or group.target_size >= group.max_size:
            continue
        fitting = {index: count for index, count in pods.items() if may_hold(problem, plan, group, index)}
        if fitting:
            worth = (-sum(fitting.values()), _price(problem, plan, group, fitting), group.id)
            if group.weight not in best or worth < best[group.weight][0]:
                best[group.weight] = (worth, group)
    yield from (best[weight][1] for weight in sorted(best, reverse=True))


def may_hold(problem: Problem, plan: Plan, group: NodeGroup, index: int) -> bool:
    """Return whether a new node of the group has room for a pod of the class."""
    spec, (free, devices) = plan.pod_classes[index].spec, on_new_node(group, problem.daemon_sets)
    if why_not_eligible(spec, group.labels, group.taints) is not None or why_not_allocated(devices, spec.claims):
        return False
    return all(free.get(name, 0) >= amount for name, amount in ((PODS, 1), *spec.requests))


def _price(problem: Problem, plan: Plan, group: NodeGroup, pods: Mapping[int, int]) -> float:
    """Return the price of as many nodes, in fractions, as the pods need of their scarcest resource."""
    free = after_daemons(group, problem.daemon_sets)
    load: Counter[str] = Counter()
    for index, count in pods.items():
        for name, amount in ((PODS, 1), *plan.pod_classes[index].spec.requests):
            load[name] += amount * count
    return group.price_usd_per_hour * max(amount / free[name] for name, amount in load.items() if amount)


def by_cost(problem: Problem, plan: Plan) -> list[NodeGroupIncrease]:
    """Return the increments of a plan in the order in which they are explained: the most expensive first."""
    price = {group.id: group.price_usd_per_hour for group in problem.node_groups}
    return sorted(plan.increments, key=lambda i: (-i.delta * price[i.node_group], i.node_group))
