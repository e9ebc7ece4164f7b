"""From the present cost down to the least that is proven, step by step: each step is planned with one kind of rule
fewer than the one before, and what it costs less is that rule's part. The parts add up to the whole, in this order and
no other. Whatever serves the pods under more rules does so under fewer, so the least cost only falls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from cagrpc.api.core.nodes import ARCH, OS
from cagrpc.offline.planning import planner_errors
from cagrpc.report.model import Cause, ClusterName, Contribution, KeptBecause, LeftOut, NameKind, workload
from cagrpc.report.problem import ReadCluster, RepackingQuestion, question
from cagrpc.report.standing import ReportedNode
from solver import Budget, Plan, Problem, solve
from solver.model import (
    ATTACHABLE_VOLUMES,
    UNLIMITED_SIZE,
    Limit,
    NodeGroup,
    NodeSelectorTerm,
    Operator,
    PodSpec,
    Requirement,
    Toleration,
)
from solver.model.eligibility import why_not_eligible
from solver.model.plan import proven

_BEST, _SAME_NODES, CONSOLIDATION = 0.3, 0.15, 0.25
"""Shares of the budget: of the best plan, of the plan on existing nodes, and of consolidation, which is not asked
here. The steps have the rest."""
_MOST_ROUNDS = 4
_EVERYTHING = (Toleration("", "Exists"),)


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
    stuck: tuple[ReportedNode, ...]
    """Nodes that it leaves as they are."""
    steps: tuple[Contribution, ...]
    least_usd_per_hour: float | None
    """No plan for these pods costs less, whatever the rules; None where nothing is proven."""
    empty: tuple[ReportedNode, ...]
    rounds: tuple[tuple[RepackingQuestion, Plan], ...]
    """The questions that were asked, and their best plans: the nodes of pods that one does not serve are kept in the
    next."""


def climb(cluster: ReadCluster, budget: Budget) -> Ladder:
    """Plan all steps within the budget."""
    nodes = cluster.nodes
    rounds = _best(cluster, budget)
    asked, plan = rounds[-1]
    free = [each for each in nodes if each.name not in asked.kept]
    present = sum(each.price_usd_per_hour or 0.0 for each in free) if nodes else None
    empty = tuple(each for each in free if cluster.packed and not each.movable)
    steps: list[Contribution] = []
    same_nodes: Plan | None = None
    stuck: tuple[ReportedNode, ...] = ()
    cost = plan.certificate.cost_usd_per_hour
    if present is not None:
        of_empty = sum(each.price_usd_per_hour or 0.0 for each in empty)
        steps.append(Contribution(Cause.EMPTY, of_empty, present - of_empty, bool(empty)))
        packed = steps[-1].left_usd_per_hour
        repacked = _repacked(cluster, asked, budget)
        if not repacked.plan.unplaced and repacked.usd_per_hour < packed:
            same_nodes, stuck, packed = repacked.plan, repacked.stuck, repacked.usd_per_hour
        saved = steps[-1].left_usd_per_hour - packed
        steps.append(Contribution(Cause.STRANDED, saved, packed, left_out=repacked.left_out))
        nothing_left_out = repacked.left_out is None and not plan.unplaced
        if cluster.read.expanded is None and same_nodes is not None and packed < cost and nothing_left_out:
            plan, cost = _on_shapes(same_nodes, plan), packed
        steps.append(Contribution(Cause.SHAPES, packed - cost, cost))
    rules = list(_relaxations(asked.problem))
    part = budget.part((1 - _BEST - _SAME_NODES - CONSOLIDATION) / max(1, sum(applies for _, _, applies in rules)))
    bound = plan.certificate.lower_bound_usd_per_hour
    last = plan
    for cause, problem, applies in rules:
        if applies:
            found = _solved(replace(problem, previous=last), part)
            as_much = sum(each.count for each in found.unplaced) <= sum(each.count for each in plan.unplaced)
            left = min(cost, found.certificate.cost_usd_per_hour) if as_much else cost
            bound = min(found.certificate.lower_bound_usd_per_hour, left) if as_much else 0.0
            last = found
        else:
            left = cost
        steps.append(Contribution(cause, cost - left, left, applies))
        cost = left
    # What costs nothing because pods are left out that need not be is no bound for these pods.
    least = None if plan.certificate.unserved_unproven and not bound else proven(cost, min(bound, cost))
    if least is not None:
        steps.append(Contribution(Cause.UNPROVEN, cost - least, least))
    return Ladder(asked, present, plan, same_nodes, stuck, tuple(steps), least, empty, rounds)


@dataclass(frozen=True, slots=True)
class _Repacked:
    """A plan on the nodes that stand, beside those that it leaves as they are."""

    plan: Plan
    stuck: tuple[ReportedNode, ...]
    left_out: LeftOut | None

    @property
    def usd_per_hour(self) -> float:
        kept = sum(each.price_usd_per_hour or 0.0 for each in self.stuck)
        return self.plan.certificate.cost_usd_per_hour + kept


def _repacked(cluster: ReadCluster, asked: RepackingQuestion, budget: Budget) -> _Repacked:
    """Return the best plan on the nodes that stand. Nodes of pods that have no place there, which may run where nothing
    new would be let in, stay as they are, and the others are packed."""
    stuck: dict[str, KeptBecause] = {}
    pods = 0
    first: tuple[RepackingQuestion, Plan] | None = None
    for _ in range(_MOST_ROUNDS):
        now = question(cluster, {**asked.kept, **stuck}) if stuck else asked
        plan = _solved(now.standing, budget.part(_SAME_NODES if now is asked else _SAME_NODES / _MOST_ROUNDS))
        pods += sum(each.count for each in plan.unplaced)
        first = first or ((now, plan) if plan.unplaced else None)
        more = now.nodes_of_unserved(plan) - stuck.keys()
        if not more:
            break
        stuck |= dict.fromkeys(more, KeptBecause.NO_PLACE)
    nodes = tuple(each for each in cluster.nodes if each.name in stuck)
    return _Repacked(plan, nodes, _left_out(*first, pods, len(nodes)) if first else None)


def _left_out(asked: RepackingQuestion, plan: Plan, pods: int, nodes: int) -> LeftOut:
    unplaced = plan.unplaced[0]
    name = asked.workload_of(plan.pod_classes[unplaced.pod_class].example)
    return LeftOut(
        pods, nodes, workload(name, unplaced.count), ClusterName(NameKind.REASON, next(iter(unplaced.reasons), ""))
    )


def _best(cluster: ReadCluster, budget: Budget) -> tuple[tuple[RepackingQuestion, Plan], ...]:
    """Return questions with their plans, the last one with a plan that serves all its pods. Nodes of pods that a plan
    does not serve are kept in the next question."""
    kept = cluster.first_kept()
    rounds: list[tuple[RepackingQuestion, Plan]] = []
    while True:
        asked = question(cluster, kept)
        plan = _solved(asked.problem, budget.part(_BEST))
        rounds.append((asked, plan))
        stuck = asked.nodes_of_unserved(plan) - kept.keys()
        if not stuck or len(rounds) == _MOST_ROUNDS:
            return tuple(rounds)
        kept = {**kept, **dict.fromkeys(stuck, KeptBecause.NO_PLACE)}


def _relaxations(problem: Problem) -> Iterator[tuple[Cause, Problem, bool]]:
    """Yield each step's problem, and whether it has anything to take away."""
    specs = {each.spec for each in problem.pod_sets}
    weights = {each.weight for each in problem.node_groups}
    limited = without_limits(problem)
    chain: tuple[tuple[Cause, Callable[[Problem], Problem], bool], ...] = (
        (Cause.WEIGHTS, without_weights, len(weights) > 1),
        (Cause.LIMITS, without_limits, limited != problem),
        (Cause.RULES, without_rules_between_pods, any(map(has_rules, specs))),
        (Cause.VOLUMES, without_volumes, any(map(has_volumes, specs))),
        (
            Cause.SELECTORS,
            without_selectors,
            any(map(has_selectors, specs)) or any(each.taints for each in problem.node_groups),
        ),
    )
    for cause, change, applies in chain:
        problem = change(problem) if applies else problem
        yield cause, problem, applies


def _solved(problem: Problem, budget: Budget) -> Plan:
    with planner_errors():
        return solve(problem, budget)


def _on_shapes(plan: Plan, other: Plan) -> Plan:
    """Return a plan for existing nodes as one for nodes of the same shapes, of which there may be more: what is
    proven is the other's."""
    cost, bound = plan.certificate.cost_usd_per_hour, other.certificate.lower_bound_usd_per_hour
    bound = min(bound, cost)
    certificate = replace(other.certificate, cost_usd_per_hour=cost, lower_bound_usd_per_hour=bound)
    return replace(plan, certificate=certificate)


def without_weights(problem: Problem) -> Problem:
    """Return the problem with all provisioners of one weight."""
    return replace(problem, node_groups=tuple(replace(each, weight=0) for each in problem.node_groups))


def without_limits(problem: Problem) -> Problem:
    """Return the problem without maximum sizes and limits, but for those of capacity that is paid for in any case, of
    which there is no more."""
    groups = tuple(each if _bounded(each) else replace(each, max_size=UNLIMITED_SIZE) for each in problem.node_groups)
    bounded = frozenset(each.id for each in problem.node_groups if _bounded(each))
    kept = (_limited_to(each, bounded) for each in problem.limits)
    return replace(problem, node_groups=groups, limits=tuple(each for each in kept if each is not None))


def _bounded(group: NodeGroup) -> bool:
    return not group.price_usd_per_hour or group.capacity_type == "reserved"


def _limited_to(limit: Limit, groups: frozenset[str]) -> Limit | None:
    left = groups if limit.node_groups is None else limit.node_groups & groups
    return replace(limit, node_groups=left) if left else None


def without_rules_between_pods(problem: Problem) -> Problem:
    """Return the problem without topology spread and without affinity and anti-affinity between pods, preferred ones
    too. Host ports stay: two pods cannot share one."""
    nodes = tuple(replace(each, running=()) for each in problem.nodes)
    return replace(_with_specs(problem, _without_rules), nodes=nodes)


def _without_rules(spec: PodSpec) -> PodSpec:
    own = tuple(each for each in spec.pod_affinity if each.alone)
    return replace(
        spec, pod_affinity=own, pod_anti_affinity=(), topology_spread=(), preferred_pods=(), preferred_domains=()
    )


def has_rules(spec: PodSpec) -> bool:
    """Return whether a pod has rules between pods that may cost something."""
    return bool(
        any(not each.alone for each in spec.pod_affinity)
        or spec.pod_anti_affinity
        or spec.preferred_pods
        or spec.preferred_domains
        or spec.topology_spread
    )


def without_volumes(problem: Problem) -> Problem:
    """Return the problem with volumes that can be anywhere, any number on a node."""
    return _with_specs(problem, _without_volumes)


def _without_volumes(spec: PodSpec) -> PodSpec:
    return replace(
        spec,
        node_terms=(),
        pod_affinity=tuple(each for each in spec.pod_affinity if not each.alone),
        requests=tuple(each for each in spec.requests if not each[0].startswith(ATTACHABLE_VOLUMES)),
        shared_volumes=(),
    )


def has_volumes(spec: PodSpec) -> bool:
    """Return whether volumes or allocated claims bind where a pod may run."""
    return _without_volumes(spec) != spec


def without_selectors(problem: Problem) -> Problem:
    """Return the problem without node selectors, node affinity and taints. A pod keeps to the operating systems and
    architectures of the node groups that it may use: its images may have no others."""
    platforms = {_platform(each) for each in problem.node_groups}

    def changed(spec: PodSpec) -> PodSpec:
        allowed = {
            _platform(each)
            for each in problem.node_groups
            if _platform(each) in platforms and why_not_eligible(spec, each.labels, each.taints) is None
        }
        affinity = None if allowed == platforms else tuple(_term(*each) for each in sorted(allowed))
        return replace(spec, node_selector=(), affinity=affinity, preferred_nodes=(), tolerations=_EVERYTHING)

    return _with_specs(problem, changed)


def has_selectors(spec: PodSpec) -> bool:
    """Return whether a pod says which nodes it may or prefers to run on."""
    return bool(spec.node_selector or spec.affinity is not None or spec.preferred_nodes)


def _platform(group: NodeGroup) -> tuple[str, str]:
    return group.labels.get(OS, ""), group.labels.get(ARCH, "")


def _term(system: str, architecture: str) -> NodeSelectorTerm:
    found = ((OS, system), (ARCH, architecture))
    return NodeSelectorTerm(
        tuple(
            Requirement(key, Operator.IN, (value,)) if value else Requirement(key, Operator.DOES_NOT_EXIST)
            for key, value in found
        )
    )


def _with_specs(problem: Problem, change: Callable[[PodSpec], PodSpec]) -> Problem:
    known: dict[PodSpec, PodSpec] = {}
    sets = []
    for each in problem.pod_sets:
        if each.spec not in known:
            known[each.spec] = change(each.spec)
        sets.append(replace(each, spec=known[each.spec]))
    return replace(problem, pod_sets=tuple(sets))


HAVING: Mapping[Cause, Callable[[PodSpec], bool]] = {
    Cause.RULES: has_rules,
    Cause.VOLUMES: has_volumes,
    Cause.SELECTORS: has_selectors,
}
"""Whether a pod has any of the rules that a step takes away."""
