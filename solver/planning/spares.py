"""Spares of topology domains: nodes without pods that come with those that a plan opens for gangs which ask for one
domain. Later a node of the domain that must go has its pods go there. They are added to a plan that is found, as far as
there is room: no gang is left out for them, and what they cost decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from solver.model import NodeGroupIncrease, Plan, PlannedNodes, Problem
from solver.model.capacity import limits_broken, with_nodes
from solver.model.domains import one_domain_terms
from solver.model.objective import Goal
from solver.planning.write_plan import certified
from solver.reduction.objective import dollars


def with_spares(problem: Problem, plan: Plan) -> Plan:
    """Return the plan with the spares of its node groups (`NodeGroup.spares`)."""
    added = dict(_spares(problem, plan))
    if not added:
        return plan
    groups = {group.id: group for group in problem.node_groups}
    deltas = Counter({each.node_group: each.delta for each in plan.increments})
    before = {each.node_group: each.delta for each in problem.previous.increments} if problem.previous else {}
    change = -sum(abs(deltas[name] - before.get(name, 0)) for name in added)
    deltas.update(added)
    change += sum(abs(deltas[name] - before.get(name, 0)) for name in added)
    objective = []
    for each in plan.objective:
        more: float = 0
        match each.stage.goal:
            case Goal.COST:
                mine = (name for name in added if groups[name].weight == each.stage.key)
                more = dollars(groups[name].price_usd_per_hour * added[name] for name in mine)
            case Goal.NODES:
                more = sum(added.values())
            case Goal.CHANGE:
                more = change
        objective.append(replace(each, value=each.value + more))
    nodes = (*plan.nodes, *(PlannedNodes(name, count, {}) for name, count in added.items()))
    increments = tuple(NodeGroupIncrease(name, delta) for name, delta in sorted(deltas.items()))
    return certified(replace(plan, nodes=nodes, increments=increments), objective)


def _spares(problem: Problem, plan: Plan) -> Iterator[tuple[str, int]]:
    """Yield how many spares each group gets."""
    groups, limits = {group.id: group for group in problem.node_groups}, problem.limits
    deltas = {each.node_group: each.delta for each in plan.increments}
    limits = tuple(with_nodes(limit, groups, deltas) for limit in limits)
    for name in _opened_for_domains(plan):
        group, count = groups[name], 0
        room = group.max_size - group.target_size - deltas[name]
        while count < min(group.spares, room) and not limits_broken(limits, group, 1):
            limits = tuple(with_nodes(limit, groups, {name: 1}) for limit in limits)
            count += 1
        if count:
            yield name, count


def _opened_for_domains(plan: Plan) -> Mapping[str, None]:
    """Return the node groups of which nodes are opened for gangs that ask for one domain, in their order."""
    asking = {each.index for each in plan.pod_classes if each.gang is not None and one_domain_terms(each.spec)}
    return {
        each.node_group: None
        for each in plan.nodes
        if not asking.isdisjoint(i for i, pods in each.pods.items() if pods)
    }
