"""From the present cost to less by moving pods: the question that a server's consolidation asks of the same nodes,
beside a fleet of the node groups that they have and that new nodes could be of; what keeps pods on their nodes, and
nodes with them, as the cluster model has it; and the steps that `solver.consolidate` finds, as values of the report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import isclose

from cagrpc.api.capacity_quotas import LIMIT_PREFIX
from cagrpc.api.core.movability import StaysBecause
from cagrpc.cluster.quotas import quota_limits
from cagrpc.cluster.state import ClusterNode, ClusterState, PodsOnNode, ReschedulablePod
from cagrpc.controllers.assume_cache.snapshot import Snapshot
from cagrpc.controllers.consolidation.question import ConsolidationQuestion, is_being_removed, question
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.fleet.model import FleetSnapshot, GroupState
from cagrpc.offline.planning import planner_errors
from cagrpc.report.architectures import changed_by_steps
from cagrpc.report.model import (
    ClusterName,
    Consolidation,
    DisruptedNodes,
    GroupDelta,
    NameKind,
    PodThatStays,
    StayingNodes,
)
from cagrpc.report.problem import ReadCluster, RepackingQuestion
from cagrpc.report.standing import ReportedNode
from solver import Budget, consolidate
from solver.consolidation.model import ConsolidationPlan, ConsolidationProblem, ConsolidationStep
from solver.model import CPU, MEMORY, Limit, NodeGroup

SETTINGS = ConsolidationSettings()
"""A server's defaults."""
_MOST_EXAMPLES = 3


Stays = defaultdict[tuple[StaysBecause, tuple[str, ...]], list[ReschedulablePod]]
"""The pods of one node that stay, by the reason and the PodDisruptionBudgets that keep them, `namespace/name`; none
where the node itself says so."""


def obstacles(asked: ConsolidationQuestion, out: AbstractSet[str], now_seconds: float) -> dict[str, Stays]:
    """Return what keeps the nodes that are kept, by name, but for those that are `out` of the comparison."""
    state = asked.snapshot.cluster
    found: defaultdict[str, Stays] = defaultdict(lambda: defaultdict(list))
    may = {each.node.name for each in asked.problem.nodes if each.must_go is None} - out
    kept = {each.node.name for each in asked.problem.nodes if each.kept}
    for node in state.nodes:
        if node.node.name not in may & kept:
            continue
        here = state.bound.get(node.node.name, PodsOnNode())
        of = found[node.node.name]
        for because in _of_node(node, here, now_seconds):
            of[because, ()] = []
        for pod in here.reschedulable:
            if pod.because is not None:
                of[pod.because, pod.budgets].append(pod)
        if not of:
            of[StaysBecause.MINIMUM, ()] = []
    _tie_gangs(found, state, out, may)
    return found


def _of_node(node: ClusterNode, here: PodsOnNode, now_seconds: float) -> Iterator[StaysBecause]:
    """Yield why a node stays whatever its pods say."""
    if is_being_removed(node):
        yield StaysBecause.GOING
    elif node.is_to_stay:
        yield StaysBecause.NODE
    elif not node.ready:
        yield StaysBecause.NOT_READY
    if here.ending:
        yield StaysBecause.ENDING
    if node.created_at_seconds and now_seconds < node.created_at_seconds + SETTINGS.minimum_node_age_seconds:
        yield StaysBecause.YOUNG


def _tie_gangs(found: defaultdict[str, Stays], state: ClusterState, out: Iterable[str], may: AbstractSet[str]) -> None:
    """Add those of the nodes that `may` go that stay for gangs alone: of one of which a pod stays no other moves, so
    that one node may keep others."""
    where: defaultdict[str, defaultdict[str, list[ReschedulablePod]]] = defaultdict(lambda: defaultdict(list))
    on: defaultdict[str, set[str]] = defaultdict(set)
    for node, here in state.bound.items():
        for pod in here.reschedulable:
            if pod.gang is not None:
                where[pod.gang][node].append(pod)
                on[node].add(pod.gang)
    stuck = [*out, *found]
    reached, tied = set(stuck), set[str]()
    while stuck:
        for gang in on[stuck.pop()] - tied:
            tied.add(gang)
            for node, pods in where[gang].items():
                if node in may and node not in reached:
                    for pod in pods:
                        found[node][StaysBecause.GANG, pod.budgets].append(pod)
                    reached.add(node)
                    stuck.append(node)


@dataclass(frozen=True, slots=True)
class MovingQuestion:
    """The question, and what it leaves out."""

    problem: ConsolidationProblem
    obstacles: Mapping[str, Stays]
    """By node that stays for its pods' sake."""


def moving_question(cluster: ReadCluster, asked: RepackingQuestion) -> MovingQuestion:
    """Return the question of the nodes that are not kept, of a cluster that was read with who is bound."""
    found, fleet, now = cluster.read.found, _fleet(cluster, asked), cluster.read.reader.now_seconds
    # Nodes of files may have no providerID.
    state = replace(found.state, nodes=tuple(replace(each, provider_id=each.node.name) for each in found.state.nodes))
    snapshot = Snapshot(fleet, state, placeholders=found.pause_pods)
    of_server = question(snapshot, SETTINGS, now)
    # A node that is left out of the comparison takes no pods, as none are planned there.
    out = {name: why.value for name, why in asked.kept.items()}
    standing = tuple(
        replace(each, kept=out[each.node.name], takes_pods=False) if each.node.name in out else each
        for each in of_server.problem.nodes
    )
    return MovingQuestion(replace(of_server.problem, nodes=standing), obstacles(of_server, asked.kept.keys(), now))


def _fleet(cluster: ReadCluster, asked: RepackingQuestion) -> FleetSnapshot:
    """Return a fleet whose instances are the nodes that exist, by name, but for those that are kept. A node is of a
    group that is offered if its provisioner, instance type, zone, capacity type and price say so; else it is of one
    that does not grow."""
    may = cluster.groups()
    groups = {each.id: each for each in may}
    group_of: dict[str, str] = {}
    for shape in cluster.shapes:
        names = [each.name for each in shape.nodes if each.name not in asked.kept]
        group = _group(shape.group, groups, may, cluster) if names else None
        if group is not None:
            groups[group.id] = _with_more(group, len(names))
            group_of |= dict.fromkeys(names, group.id)
    limits = tuple(
        _limit(each, groups, group_of) for each in asked.problem.limits if not each.name.startswith(LIMIT_PREFIX)
    )
    limits += quota_limits(
        cluster.read.found.state.capacity_quotas, groups.values(), (each.seen for each in cluster.nodes)
    )
    states = {name: GroupState(each, each.target_size) for name, each in groups.items()}
    return FleetSnapshot(0, states, (), group_of, limits=limits)


def _group(
    shape: NodeGroup, groups: Mapping[str, NodeGroup], may: Sequence[NodeGroup], cluster: ReadCluster
) -> NodeGroup:
    if cluster.read.expanded is None:
        return groups[shape.id]
    same = (groups[each.id] for each in may if _is_of(shape, each))
    weight = max((each.weight for each in may if each.provisioner == shape.provisioner), default=0)
    name = shape.id
    while name in groups:
        name += "'"
    return next(same, replace(shape, id=name, max_size=0, weight=weight))


def _limit(limit: Limit, groups: Mapping[str, NodeGroup], group_of: Mapping[str, str]) -> Limit:
    """Return a limit, of which kept nodes are counted, with all that stands."""
    mine = limit.node_groups
    if mine is not None:
        pools = {groups[each].provisioner for each in mine if each in groups}
        mine = frozenset(each.id for each in groups.values() if each.id in mine or each.provisioner in pools)
    used = Counter(limit.used)
    for name in group_of.values():
        if mine is None or name in mine:
            used.update(groups[name].counted_capacity)
    return replace(limit, node_groups=mine, used=dict(used))


def _is_of(shape: NodeGroup, group: NodeGroup) -> bool:
    return _place(shape) == _place(group) and isclose(shape.price_usd_per_hour, group.price_usd_per_hour)


def _place(group: NodeGroup) -> tuple[str, str, str, str]:
    return group.provisioner, group.instance_type, group.zone, group.capacity_type


def _with_more(group: NodeGroup, count: int) -> NodeGroup:
    """Return the group with so many more existing nodes; of what is there already none is too many or missing."""
    size = group.target_size + count
    return replace(group, target_size=size, max_size=max(group.max_size, size), min_size=min(group.min_size, size))


def consolidated(question: MovingQuestion, nodes: Sequence[ReportedNode], budget: Budget) -> Consolidation:
    """Plan the steps within the budget and return them."""
    with planner_errors():
        plan = consolidate(question.problem, budget)
    return values(question, plan, nodes)


def values(question: MovingQuestion, plan: ConsolidationPlan, nodes: Sequence[ReportedNode]) -> Consolidation:
    """Return a plan for the question as values of the report."""
    group_of = {each.node.name: each.node_group for each in question.problem.nodes if each.node_group}
    steps = tuple(_steps(plan, group_of))
    return Consolidation(
        plan.cost_before_usd_per_hour,
        plan.cost_after_usd_per_hour,
        plan.least_usd_per_hour,
        plan.least_if_all_moved_usd_per_hour,
        len(group_of),
        len(group_of) + sum(delta.nodes for step in steps for delta in step.deltas),
        sum(each.pods_moved for each in steps),
        steps,
        tuple(sorted(_staying(question.obstacles, nodes), key=lambda each: -each.unused_usd_per_hour)),
        changed_by_steps(question.problem, plan),
    )


def _steps(plan: ConsolidationPlan, group_of: dict[str, str]) -> Iterator[DisruptedNodes]:
    left = plan.cost_before_usd_per_hour
    for step in plan.steps:
        left -= step.saving_usd_per_hour
        yield DisruptedNodes(
            step.reason,
            tuple(ClusterName(NameKind.NODE, each) for each in step.nodes),
            tuple(_deltas(step, group_of)),
            step.pods_moved,
            step.saving_usd_per_hour,
            step.saving_usd_per_hour / step.pods_moved if step.pods_moved else None,
            left,
        )


def _deltas(step: ConsolidationStep, group_of: Mapping[str, str]) -> Iterator[GroupDelta]:
    """Yield which nodes go, then which come; a node group may have both."""
    gone = Counter(group_of[each] for each in step.nodes)
    for group, count in sorted(gone.items()):
        yield GroupDelta(ClusterName(NameKind.GROUP, group), -count)
    for each in step.plan.increments:
        yield GroupDelta(ClusterName(NameKind.GROUP, each.node_group), each.delta)


def _staying(obstacles: Mapping[str, Stays], nodes: Iterable[ReportedNode]) -> Iterator[StayingNodes]:
    by_reason: defaultdict[StaysBecause, list[tuple[ReportedNode, dict[tuple[str, ...], list[ReschedulablePod]]]]] = (
        defaultdict(list)
    )
    alone: Counter[StaysBecause] = Counter()
    for node in nodes:
        stays = obstacles.get(node.name, Stays())
        reasons = tuple(dict.fromkeys(because for because, _ in stays))
        for because in reasons:
            mine = {budgets: pods for (of, budgets), pods in stays.items() if of is because}
            by_reason[because].append((node, mine))
        if len(reasons) == 1:
            alone.update(reasons)
    for because, found in by_reason.items():
        found.sort(key=lambda each: (-_unused(each[0]), each[0].name))
        examples = [_example(node, *each) for node, kept in found[:_MOST_EXAMPLES] for each in kept.items()]
        yield StayingNodes(
            because,
            len(found),
            alone[because],
            sum(len(pods) for _, kept in found for pods in kept.values()),
            sum(node.price_usd_per_hour or 0.0 for node, _ in found),
            sum(_unused(node) for node, _ in found),
            tuple(examples[:_MOST_EXAMPLES]),
        )


def _unused(node: ReportedNode) -> float:
    """Return the part of a node's price, in US dollars per hour, that no pod asks for."""
    asked = Counter(node.requested(overhead=True))
    asked.update(node.requested(overhead=False))
    used = max(
        (asked[each] / node.allocatable[each] for each in (CPU, MEMORY) if node.allocatable.get(each)), default=0
    )
    return (node.price_usd_per_hour or 0.0) * max(0.0, 1 - used)


def _example(node: ReportedNode, budgets: Iterable[str], pods: Sequence[ReschedulablePod]) -> PodThatStays:
    pod = pods[0].ref if pods else None
    return PodThatStays(
        ClusterName(NameKind.NAMESPACE, pod.namespace if pod else ""),
        ClusterName(NameKind.POD, pod.name if pod else ""),
        ClusterName(NameKind.NODE, node.name),
        tuple(ClusterName(NameKind.BUDGET, each.partition("/")[2]) for each in budgets),
    )
