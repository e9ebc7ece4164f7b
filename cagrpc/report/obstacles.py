"""What keeps pods on their nodes, and nodes with them, as the cluster model has it: what pods and nodes say themselves,
PodDisruptionBudgets, and gangs of which a pod stays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from cagrpc.api.core.movability import StaysBecause
from cagrpc.cluster.state import ClusterNode, ClusterState, PodsOnNode, ReschedulablePod
from cagrpc.controllers.consolidation.question import ConsolidationQuestion, is_being_removed


@dataclass(frozen=True, slots=True)
class PodsThatStay:
    """Pods of one node that stay for one reason."""

    because: StaysBecause
    budgets: tuple[str, ...]
    """PodDisruptionBudgets that keep them, `namespace/name`."""
    count: int
    example: ReschedulablePod | None
    """None where the node itself says so."""


Found = defaultdict[str, dict[tuple[StaysBecause, tuple[str, ...]], PodsThatStay]]


def obstacles(
    state: ClusterState, asked: ConsolidationQuestion, out: AbstractSet[str]
) -> dict[str, tuple[PodsThatStay, ...]]:
    """Return what keeps the nodes that are kept, by name, but for those that are `out` of the comparison."""
    found: Found = defaultdict(dict)
    may = {each.node.name for each in asked.problem.nodes if each.must_go is None} - out
    kept = {each.node.name for each in asked.problem.nodes if each.kept}
    for node in state.nodes:
        if node.node.name not in may & kept:
            continue
        here = state.bound.get(node.node.name, PodsOnNode())
        of = found[node.node.name]
        for because in _of_node(node, here):
            of[because, ()] = PodsThatStay(because, (), 0, None)
        for pod in here.reschedulable:
            if pod.because is not None:
                _add(of, pod.because, pod)
        if not of:
            of[StaysBecause.MINIMUM, ()] = PodsThatStay(StaysBecause.MINIMUM, (), 0, None)
    _tie_gangs(found, state, out, may)
    return {node: tuple(stays.values()) for node, stays in found.items()}


def _of_node(node: ClusterNode, here: PodsOnNode) -> Iterator[StaysBecause]:
    """Yield why a node stays whatever its pods say."""
    if is_being_removed(node):
        yield StaysBecause.GOING
    elif node.is_to_stay:
        yield StaysBecause.NODE
    elif not node.ready:
        yield StaysBecause.NOT_READY
    if here.ending:
        yield StaysBecause.ENDING


def _tie_gangs(found: Found, state: ClusterState, out: Iterable[str], may: AbstractSet[str]) -> None:
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
                        _add(found[node], StaysBecause.GANG, pod)
                    reached.add(node)
                    stuck.append(node)


def _add(
    found: dict[tuple[StaysBecause, tuple[str, ...]], PodsThatStay], because: StaysBecause, pod: ReschedulablePod
) -> None:
    before = found.get((because, pod.budgets))
    found[because, pod.budgets] = (
        replace(before, count=before.count + 1) if before else PodsThatStay(because, pod.budgets, 1, pod)
    )
