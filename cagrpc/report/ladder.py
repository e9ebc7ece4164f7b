"""From the present cost down to the least that is proven, step by step: each step is planned with one kind of rule
fewer than the one before, and what it costs less is that rule's part. The parts add up to the whole, in this order and
no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from cagrpc.offline.planning import planner_errors
from cagrpc.report import relaxed
from cagrpc.report.model import Cause, Contribution, KeptBecause
from cagrpc.report.problem import ReadCluster, RepackingQuestion, question
from cagrpc.report.standing import ReportedNode
from solver import Budget, Plan, Problem, solve
from solver.model.plan import proven

_BEST, _SAME_NODES, CONSOLIDATION = 0.3, 0.15, 0.25
"""Shares of the budget: of the best plan, of the plan on existing nodes, and of consolidation, which is not asked
here. The steps have the rest."""
_MOST_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Ladder:
    """The plans and their steps. Costs are without those of nodes that are kept."""

    question: RepackingQuestion
    present_usd_per_hour: float | None
    """None where nothing stands."""
    plan: Plan
    """The best plan found under all rules; its problem is the question's."""
    same_nodes: Plan | None
    """The best one on existing shapes, where it is better than the present nodes."""
    steps: tuple[Contribution, ...]
    least_usd_per_hour: float | None
    """No plan for these pods costs less, whatever the rules; None where nothing is proven."""
    empty: tuple[ReportedNode, ...]


def climb(cluster: ReadCluster, budget: Budget) -> Ladder:
    """Plan all steps within the budget."""
    nodes = cluster.nodes
    asked, plan = _best(cluster, budget)
    free = [each for each in nodes if each.name not in asked.kept]
    present = sum(each.price_usd_per_hour or 0.0 for each in free) if nodes else None
    empty = tuple(each for each in free if cluster.packed and not each.movable)
    steps: list[Contribution] = []
    same_nodes = None
    cost = plan.certificate.cost_usd_per_hour
    if present is not None:
        of_empty = sum(each.price_usd_per_hour or 0.0 for each in empty)
        steps.append(Contribution(Cause.EMPTY, of_empty, present - of_empty, bool(empty)))
        found = _solved(asked.standing, budget.part(_SAME_NODES))
        if _serves_all(found) and found.certificate.cost_usd_per_hour < steps[-1].left_usd_per_hour:
            same_nodes = found
        packed = same_nodes.certificate.cost_usd_per_hour if same_nodes else steps[-1].left_usd_per_hour
        steps.append(Contribution(Cause.STRANDED, steps[-1].left_usd_per_hour - packed, packed))
        if cluster.read.expanded is None and same_nodes is not None and packed < cost and _serves_all(plan):
            plan, cost = _on_shapes(same_nodes, plan), packed
        steps.append(Contribution(Cause.SHAPES, packed - cost, cost))
    rules = list(_relaxations(asked.problem))
    part = budget.part((1 - _BEST - _SAME_NODES - CONSOLIDATION) / max(1, sum(applies for _, _, applies in rules)))
    bound = plan.certificate.lower_bound_usd_per_hour
    last = plan
    for cause, problem, applies in rules:
        if applies:
            found = _solved(replace(problem, previous=last), part)
            left = min(cost, found.certificate.cost_usd_per_hour) if _serves_as_much(found, plan) else cost
            bound = min(found.certificate.lower_bound_usd_per_hour, left) if _serves_as_much(found, plan) else 0.0
            last = found
        else:
            left = cost
        steps.append(Contribution(cause, cost - left, left, applies))
        cost = left
    # What costs nothing because pods are left out that need not be is no bound for these pods.
    least = None if plan.certificate.unserved_unproven and not bound else proven(cost, min(bound, cost))
    if least is not None:
        steps.append(Contribution(Cause.UNPROVEN, cost - least, least))
    return Ladder(asked, present, plan, same_nodes, tuple(steps), least, empty)


def _best(cluster: ReadCluster, budget: Budget) -> tuple[RepackingQuestion, Plan]:
    """Return the question with a plan that serves all its pods. Nodes of pods that no node group takes are kept."""
    kept = cluster.first_kept()
    for rounds in range(_MOST_ROUNDS):
        asked = question(cluster, kept)
        plan = _solved(asked.problem, budget.part(_BEST))
        stuck = asked.nodes_of_unserved(plan) - kept.keys()
        if not stuck or rounds == _MOST_ROUNDS - 1:
            break
        kept = {**kept, **dict.fromkeys(stuck, KeptBecause.NO_GROUP)}
    return asked, plan


def _relaxations(problem: Problem) -> Iterator[tuple[Cause, Problem, bool]]:
    """Yield each step's problem, and whether it has anything to take away."""
    specs = {each.spec for each in problem.pod_sets}
    weights = {each.weight for each in problem.node_groups}
    limited = relaxed.without_limits(problem)
    chain: tuple[tuple[Cause, Callable[[Problem], Problem], bool], ...] = (
        (Cause.WEIGHTS, relaxed.without_weights, len(weights) > 1),
        (Cause.LIMITS, relaxed.without_limits, limited != problem),
        (Cause.RULES, relaxed.without_rules_between_pods, any(map(relaxed.has_rules, specs))),
        (Cause.VOLUMES, relaxed.without_volumes, any(map(relaxed.has_volumes, specs))),
        (
            Cause.SELECTORS,
            relaxed.without_selectors,
            any(map(relaxed.has_selectors, specs)) or any(each.taints for each in problem.node_groups),
        ),
    )
    for cause, change, applies in chain:
        problem = change(problem) if applies else problem
        yield cause, problem, applies


def _solved(problem: Problem, budget: Budget) -> Plan:
    with planner_errors():
        return solve(problem, budget)


def _serves_all(plan: Plan) -> bool:
    return not plan.unplaced


def _serves_as_much(plan: Plan, other: Plan) -> bool:
    return sum(each.count for each in plan.unplaced) <= sum(each.count for each in other.unplaced)


def _on_shapes(plan: Plan, other: Plan) -> Plan:
    """Return a plan for existing nodes as one for nodes of the same shapes, of which there may be more: what is
    proven is the other's."""
    cost, bound = plan.certificate.cost_usd_per_hour, other.certificate.lower_bound_usd_per_hour
    bound = min(bound, cost)
    certificate = replace(other.certificate, cost_usd_per_hour=cost, lower_bound_usd_per_hour=bound)
    return replace(plan, certificate=certificate)


def kept_by_reason(kept: Mapping[str, KeptBecause]) -> dict[KeptBecause, tuple[str, ...]]:
    """Return the names of kept nodes by reason."""
    return {
        reason: tuple(sorted(name for name, why in kept.items() if why is reason))
        for reason in KeptBecause
        if reason in kept.values()
    }
