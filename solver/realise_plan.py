"""A simulated outcome as a plan: pods where the kube-scheduler put them, with the certificate of the plan that it was
made from. Nothing is decided here but which preferences were given up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from solver.check import faults_of
from solver.errors import PlanRejectedError
from solver.model import (
    Certificate,
    Increment,
    PlacedOnNode,
    Plan,
    PlannedNodes,
    PodClass,
    Problem,
    Relaxed,
    Status,
    TaintEffect,
    TierCost,
    Unplaced,
)
from solver.objectives import dollars
from solver.realise_fleet import Fleet
from solver.scheduler import Outcome
from solver.terms import variants

_PENDING = ("the kube-scheduler, as simulated, leaves it pending: it fills the nodes in its own order",)


def realised_plan(
    problem: Problem, plan: Plan, fleet: Fleet, held: Mapping[int, Mapping[int, int]], seconds: float
) -> Plan:
    """`held`: node -> class -> pods, nodes numbered as in `Outcome`; `seconds` is what realising took.

    Raises `PlanRejectedError` where pods are where they must not be, which would be a fault of the simulation."""
    groups, standing = fleet.groups(), len(problem.nodes)
    batches: Counter[tuple[str, tuple[tuple[int, int], ...]]] = Counter()
    for number, group in enumerate(groups.tolist(), standing):
        batches[problem.node_groups[group].id, tuple(sorted(held.get(number, {}).items()))] += 1
    nodes = tuple(PlannedNodes(group, count, dict(pods)) for (group, pods), count in sorted(batches.items()))
    existing = tuple(
        PlacedOnNode(node.name, dict(sorted(held[number].items())))
        for number, node in enumerate(problem.nodes)
        if held.get(number)
    )
    deltas = Counter({group.id: 0 for group in problem.node_groups})
    for each in nodes:
        deltas[each.node_group] += each.count
    told = replace(
        plan,
        increments=tuple(Increment(group, delta) for group, delta in sorted(deltas.items()) if delta),
        nodes=nodes,
        existing=tuple(sorted(existing, key=lambda placed: placed.node)),
        unplaced=_unplaced(plan, held),
        elapsed_seconds=plan.elapsed_seconds + seconds,
    )
    return _judged(problem, plan, told)


def whole_gangs(classes: Sequence[PodClass], outcome: Outcome) -> dict[int, dict[int, int]]:
    """Node -> class -> pods, without gangs of which some pods stay pending: in part they are of no use, and a plan does
    not serve them."""
    landed = outcome.landed
    broken = {cls.gang for cls in classes if cls.gang is not None and landed[cls.index] < cls.count}
    lost = {cls.index for cls in classes if cls.gang in broken}
    pods = outcome.pods()
    return {node: {who: n for who, n in mine.items() if who not in lost} for node, mine in pods.items()}


def _unplaced(plan: Plan, held: Mapping[int, Mapping[int, int]]) -> tuple[Unplaced, ...]:
    landed: Counter[int] = Counter()
    for pods in held.values():
        landed.update(pods)
    reasons = {left.pod_class: left.reasons for left in plan.unplaced}
    return tuple(
        Unplaced(cls.index, cls.count - landed[cls.index], reasons.get(cls.index, _PENDING))
        for cls in plan.pod_classes
        if landed[cls.index] < cls.count
    )


def _judged(problem: Problem, plan: Plan, told: Plan) -> Plan:
    """With preferences, certificate and objective. Where the scheduler reads spread and affinity less strictly than a
    plan (docs/realisation.md), only the rest is checked."""
    faults: list[str] = []
    for relaxed in _relaxed(problem, told):
        judged = _certified(problem, plan, replace(told, relaxed=relaxed))
        faults = list(faults_of(problem, judged))
        if not faults:
            return judged
    if list(faults_of(problem, judged, between_pods=False)):
        raise PlanRejectedError(faults)
    return judged


def _relaxed(problem: Problem, told: Plan) -> Iterator[tuple[Relaxed, ...]]:
    """Guesses of what was given up: nothing, the same as planned, or everything by whoever has preferences."""
    placed: Counter[int] = Counter()
    for nodes in told.nodes:
        placed.update({who: pods * nodes.count for who, pods in nodes.pods.items()})
    for each in told.existing:
        placed.update(each.pods)
    yield ()
    kept: dict[int, int] = defaultdict(int)
    for relaxed in told.relaxed:
        kept[relaxed.pod_class] += relaxed.count
    if told.relaxed and all(kept[who] <= placed[who] for who in kept):
        yield told.relaxed
    taints = chain.from_iterable([g.taints for g in problem.node_groups] + [n.taints for n in problem.nodes])
    soft = any(taint.effect is TaintEffect.PREFER_NO_SCHEDULE for taint in taints)
    everything = []
    for cls in told.pod_classes:
        given_up = variants(cls.spec, soft_taints=soft)[-1].given_up
        if given_up and placed[cls.index]:
            everything.append(Relaxed(cls.index, placed[cls.index], given_up))
    yield tuple(everything)


def _certified(problem: Problem, plan: Plan, told: Plan) -> Plan:
    groups = {group.id: group for group in problem.node_groups}
    costs: dict[int, list[float]] = defaultdict(list)
    for each in told.increments:
        group = groups[each.node_group]
        costs[group.weight].append(group.price_usd_per_hour * each.delta)
    before = plan.certificate
    tiers = tuple(
        TierCost(tier.weight, cost, min(cost, tier.lower_bound_usd_per_hour))
        for tier in before.tiers
        for cost in (dollars(costs[tier.weight]),)
    )
    cost = dollars(tier.cost_usd_per_hour for tier in tiers)
    bound = dollars(tier.lower_bound_usd_per_hour for tier in tiers)
    objective, bounds = _objective(problem, plan, told, [tier.cost_usd_per_hour for tier in reversed(tiers)])
    same = objective == plan.objective
    nothing = sum(left.count for left in told.unplaced) == sum(cls.count for cls in told.pod_classes) > 0
    status = before.status if same else Status.INFEASIBLE if nothing else Status.FEASIBLE
    certificate = Certificate(
        status, cost, bound, (cost - bound) / cost if cost else 0.0, tiers, before.price_of_priority_usd_per_hour
    )
    return replace(told, certificate=certificate, objective=objective, bounds=bounds)


def _objective(
    problem: Problem, plan: Plan, told: Plan, costs: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:  # fmt: skip
    """The vector and its bounds, which are the plan's; a stage that the plan did not need is bounded by nothing."""
    classes = told.pod_classes
    left = {each.pod_class: each.count for each in told.unplaced}
    values: list[float] = []
    for priority in sorted({cls.priority for cls in classes if not cls.placeholder}, reverse=True):
        mine = [cls for cls in classes if not cls.placeholder and cls.priority == priority]
        values.append(sum(left.get(cls.index, 0) for cls in mine))
        values.append(sum(_waiting(problem, cls, left.get(cls.index, 0)) for cls in mine))
    if any(cls.placeholder for cls in classes):
        values.append(sum(left.get(cls.index, 0) for cls in classes if cls.placeholder))
    served, bounds = len(values), plan.bounds
    last: list[float] = [*costs, float(sum(each.delta for each in told.increments))]
    if problem.previous is not None:
        now = {each.node_group: each.delta for each in told.increments}
        before = {each.node_group: each.delta for each in problem.previous.increments}
        last.append(
            sum(abs(now.get(name, 0) - before.get(name, 0)) for name in {group.id for group in problem.node_groups})
        )
    given_up = sum(relaxed.count * len(relaxed.preferences) for relaxed in told.relaxed)
    asked = len(plan.objective) > served + len(last)
    if asked or given_up:
        values.append(given_up)
        if not asked:
            bounds = (*bounds[:served], 0.0, *bounds[served:])
    values += last
    return tuple(float(value) for value in values), tuple(map(min, bounds, values))


def _waiting(problem: Problem, cls: PodClass, left: int) -> int:
    """Seconds that so many pods have waited, the youngest of the class."""
    total = 0
    mine = [
        (pods.waiting_seconds, pods.count)
        for pods in problem.pod_sets
        if left
        and (pods.spec, pods.priority, pods.gang, pods.placeholder)
        == (cls.spec, cls.priority, cls.gang, cls.placeholder)
    ]
    for age, count in sorted(mine):
        taken = min(count, left)
        total, left = total + age * taken, left - taken
    return total
