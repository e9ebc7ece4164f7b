"""From what stands to less by moving pods: the steps that `solver.consolidate` finds, as values of the report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cagrpc.api.core.movability import StaysBecause
from cagrpc.errors import CagrpcError, InvalidConfiguration
from cagrpc.report.model import (
    ClusterName,
    Consolidation,
    DisruptedNodes,
    GroupDelta,
    NameKind,
    PodThatStays,
    StayingNodes,
)
from cagrpc.report.moving import MovingQuestion
from cagrpc.report.obstacles import PodsThatStay
from cagrpc.report.standing import ReportedNode
from solver import Budget, PlanRejectedError, ProblemError, consolidate
from solver.consolidation.model import ConsolidationPlan, ConsolidationStep
from solver.model import CPU, MEMORY

_MOST_EXAMPLES = 3


def consolidated(question: MovingQuestion, nodes: Sequence[ReportedNode], budget: Budget) -> Consolidation:
    """Plan the steps within the budget and return them."""
    try:
        plan = consolidate(question.problem, budget)
    except ProblemError as error:
        raise InvalidConfiguration(error.problems) from error
    except PlanRejectedError as error:
        raise CagrpcError(
            f"the consolidation was rejected by its checker: {'; '.join(error.faults)}; this is a defect of cagrpc"
        ) from error
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


def _staying(
    obstacles: Mapping[str, tuple[PodsThatStay, ...]], nodes: Iterable[ReportedNode]
) -> Iterator[StayingNodes]:
    by_reason: defaultdict[StaysBecause, list[tuple[ReportedNode, list[PodsThatStay]]]] = defaultdict(list)
    alone: Counter[StaysBecause] = Counter()
    for node in nodes:
        reasons: defaultdict[StaysBecause, list[PodsThatStay]] = defaultdict(list)
        for each in obstacles.get(node.name, ()):
            reasons[each.because].append(each)
        for because, stays in reasons.items():
            by_reason[because].append((node, stays))
        if len(reasons) == 1:
            alone.update(reasons.keys())
    for because, found in by_reason.items():
        found.sort(key=lambda each: (-_unused(each[0]), each[0].name))
        examples = [_example(node, stays) for node, kept in found[:_MOST_EXAMPLES] for stays in kept]
        yield StayingNodes(
            because,
            len(found),
            alone[because],
            sum(stays.count for _, kept in found for stays in kept),
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


def _example(node: ReportedNode, stays: PodsThatStay) -> PodThatStays:
    pod = stays.example.ref if stays.example is not None else None
    return PodThatStays(
        ClusterName(NameKind.NAMESPACE, pod.namespace if pod else ""),
        ClusterName(NameKind.POD, pod.name if pod else ""),
        ClusterName(NameKind.NODE, node.name),
        tuple(ClusterName(NameKind.BUDGET, each.partition("/")[2]) for each in stays.budgets),
    )
