"""From a plan to increments: which pod goes to which node, and which nodes are one increment. Pure; `controller`
applies them.

A gang that is served on several node groups ties its nodes together: they are one increment, whole or not at all. All
other nodes of a group are an increment of their own, so that a shortage elsewhere does not roll them back.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cagrpc.cluster.connected import connected
from cagrpc.cluster.state import PodRef
from cagrpc.controllers.planning.problem import Question
from cagrpc.fleet.model import ExpectedPod, IncrementSpec, Origin, Placement
from solver.model import NodeGroup, Plan
from solver.model.domains import one_domain_terms
from solver.model.plan import class_key
from solver.model.quantities import pluralize

MOST_NODES = 10_000
"""The most nodes of one increment, unless a gang has more: what need not be whole is not rolled back together, and in a
cluster an increment is one object."""
MOST_PODS = 20_000
"""The most pods of one increment, for the same reasons."""


@dataclass(frozen=True, slots=True)
class NewNode:
    """One node to open."""

    node_group: str
    pods: tuple[PodRef, ...]
    gangs: Mapping[str, tuple[PodRef, ...]] = field(default_factory=dict)
    """Those of the pods that belong to gangs."""
    placeholders: int = 0
    """How many placeholders of the slack it has room for."""
    domain: str = ""
    """Which new topology domain of its group; empty where no pod asks for one."""
    is_tied: bool = False
    """Whether it has to be in one domain with the others of this one, for a gang that asks for that."""

    @property
    def is_spare(self) -> bool:
        """Whether it stays empty for the others of its topology domain."""
        return not (self.pods or self.placeholders)


@dataclass(frozen=True, slots=True)
class AssignedPods:
    """Which pod of a question goes where."""

    new: tuple[NewNode, ...]
    existing: Mapping[str, tuple[PodRef, ...]]
    """By node that exists or is in flight."""
    unplaced: Mapping[int, tuple[PodRef, ...]]
    """By class of the plan."""
    gangs_on_existing: Mapping[str, tuple[PodRef, ...]] = field(default_factory=dict)
    """Those of `existing` that belong to gangs."""

    def pods(self) -> Iterator[PodRef]:
        """Yield the pods with a place."""
        for node in self.new:
            yield from node.pods
        for pods in self.existing.values():
            yield from pods

    def replacing(self, others: Mapping[ExpectedPod, PodRef]) -> AssignedPods:
        """Return the same with other pods in the places of these, by key. None of them belongs to a gang."""
        if not others:
            return self

        def replaced(pods: tuple[PodRef, ...]) -> tuple[PodRef, ...]:
            return tuple(others.get(pod.key, pod) if isinstance(pod.key, ExpectedPod) else pod for pod in pods)

        return replace(
            self,
            new=tuple(replace(node, pods=replaced(node.pods)) for node in self.new),
            existing={name: replaced(pods) for name, pods in self.existing.items()},
        )


def assign_pods(plan: Plan, asked: Question) -> AssignedPods:
    """Assign the pods of each class, oldest first: to existing nodes, to those in flight, to new ones; the youngest are
    left unplaced."""
    queues = {each.index: _Queue(asked.pods.get(class_key(each), ())) for each in plan.pod_classes}
    standing_first = sorted(plan.existing, key=lambda each: each.node in asked.coming)
    gangs = {each.index: each.gang for each in plan.pod_classes if each.gang is not None}
    existing: dict[str, tuple[PodRef, ...]] = {}
    on_existing: defaultdict[str, tuple[PodRef, ...]] = defaultdict(tuple)
    for placed in standing_first:
        taken = _take(queues, placed.pods)
        existing[placed.node] = _all(taken)
        for name, mine in _tied(taken, gangs).items():
            on_existing[name] += mine
    slack = {each.index for each in plan.pod_classes if each.placeholder}
    tied = {each.index for each in plan.pod_classes if each.gang is not None and one_domain_terms(each.spec)}
    new = []
    for nodes in plan.nodes:
        placeholders = sum(count for index, count in nodes.pods.items() if index in slack)
        for _ in range(nodes.count):
            taken = _take(queues, nodes.pods)
            is_tied = not nodes.pods or not tied.isdisjoint(nodes.pods)  # or a spare
            of_gangs = _tied(taken, gangs)
            new.append(NewNode(nodes.node_group, _all(taken), of_gangs, placeholders, nodes.domain, is_tied))
    unplaced = {index: queue.waiting for index, queue in queues.items() if queue.waiting}
    return AssignedPods(tuple(new), existing, unplaced, on_existing)


def _tied(taken: Mapping[int, tuple[PodRef, ...]], gangs: Mapping[int, str]) -> dict[str, tuple[PodRef, ...]]:
    """Return those of the pods that belong to gangs, by gang."""
    tied: defaultdict[str, tuple[PodRef, ...]] = defaultdict(tuple)
    for index, mine in taken.items():
        if mine and index in gangs:
            tied[gangs[index]] += mine
    return dict(tied)


class _Queue:
    """The pods of a class without a place, oldest first."""

    def __init__(self, pods: tuple[PodRef, ...]) -> None:
        self._pods = pods
        self._next = 0

    @property
    def waiting(self) -> tuple[PodRef, ...]:
        return self._pods[self._next :]

    def take(self, count: int) -> tuple[PodRef, ...]:
        taken = self._pods[self._next : self._next + count]
        self._next += count
        return taken


def _take(queues: Mapping[int, _Queue], pods: Mapping[int, int]) -> dict[int, tuple[PodRef, ...]]:
    return {index: queues[index].take(count) for index, count in sorted(pods.items())}


def _all(taken: Mapping[int, tuple[PodRef, ...]]) -> tuple[PodRef, ...]:
    return tuple(pod for pods in taken.values() for pod in pods)


def parts(nodes: Iterable[NewNode]) -> Iterator[tuple[NewNode, ...]]:
    """Yield the sets of nodes that each become one increment: those tied together by gangs over several groups, those
    of a new topology domain, and per group all others, in parts of at most `MOST_NODES` nodes and `MOST_PODS` pods that
    split no gang. Spares come with the first others of their domain."""
    every = list(nodes)
    spares: defaultdict[tuple[str, str], list[NewNode]] = defaultdict(list)
    for node in every:
        if node.is_spare:
            spares[node.node_group, node.domain].append(node)
    for part in _parts_with_pods([node for node in every if not node.is_spare]):
        domains = dict.fromkeys((node.node_group, node.domain) for node in part)
        yield (*part, *(spare for each in domains for spare in spares.pop(each, ())))


def _parts_with_pods(every: Sequence[NewNode]) -> Iterator[tuple[NewNode, ...]]:
    alone: defaultdict[tuple[str, str], list[NewNode]] = defaultdict(list)
    pods: Counter[tuple[str, str]] = Counter()
    for positions in connected([(*node.gangs, *_domain(node)) for node in every]):
        tied = [every[position] for position in positions]
        groups = {(node.node_group, node.domain) for node in tied}
        if len(groups) > 1:
            yield tuple(tied)
            continue
        (group_id,) = groups
        more = sum(len(node.pods) for node in tied)
        full = len(alone[group_id]) + len(tied) > MOST_NODES or pods[group_id] + more > MOST_PODS
        if alone[group_id] and full:
            yield tuple(alone.pop(group_id))
            pods[group_id] = 0
        alone[group_id].extend(tied)
        pods[group_id] += more
    yield from map(tuple, alone.values())


def _domain(node: NewNode) -> tuple[str, ...]:
    return (f"new domain {node.domain} of {node.node_group}",) if node.domain else ()


def still_wanted(part: tuple[NewNode, ...], waits: Callable[[PodRef], bool]) -> tuple[NewNode, ...] | None:
    """Return the part without nodes whose pods are all gone or bound by now and that have no placeholders either. None
    where a gang has lost some of its pods: it has to be planned anew."""
    if any(not waits(pod) for node in part for pods in node.gangs.values() for pod in pods):
        return None
    left = tuple(node for node in part if node.is_spare or node.placeholders or any(map(waits, node.pods)))
    return left if any(not node.is_spare for node in left) else ()


def increment(
    part: Sequence[NewNode], groups: Mapping[str, NodeGroup], plan_id: str, gap: float | None
) -> IncrementSpec:
    """Return what to order for one part."""
    deltas = Counter(node.node_group for node in part)
    pods = [pod for node in part for pod in node.pods]
    return IncrementSpec(
        deltas=dict(deltas),
        origin=Origin.CAGRPC,
        pods=frozenset(pod.key for pod in pods),
        reason=_reason(pods, sum(node.placeholders for node in part)),
        plan=plan_id,
        placements=tuple(
            Placement(node.node_group, tuple(pod.key for pod in node.pods), domain=node.domain if node.is_tied else "")
            for node in part
        ),
        cost_usd_per_hour=round(sum(groups[name].price_usd_per_hour * count for name, count in deltas.items()), 9),
        gap=gap,
        waiting_since_seconds=min((pod.created_at_seconds for pod in pods if pod.created_at_seconds), default=None),
    )


def _reason(pods: Sequence[PodRef], placeholders: int) -> str:
    described = [f"{pluralize(len(pods), 'pod')}, {pods[0].namespace}/{pods[0].name} among them"] if pods else []
    described += [f"{pluralize(placeholders, 'placeholder')} of the slack"] if placeholders else []
    return "; ".join(described)


def format_deltas(deltas: Mapping[str, int]) -> str:
    """Return nodes per group, for messages."""
    return ", ".join(f"{count} x {group_id}" for group_id, count in sorted(deltas.items()))
