"""From a plan to increments: who goes to which node, and which nodes have to come together. Pure; `loop` applies them.

A gang that is served on several node groups ties its nodes together: they are one increment, whole or not at all. All
other nodes of a group are an increment of their own, so that a shortage elsewhere does not take them down. Each node of
the reserve is one, too: it is let go or given back by itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from cagrpc.controllers.connected import connected
from cagrpc.controllers.planner.problem import Question, class_key
from cagrpc.controllers.planner.realising import Course
from cagrpc.controllers.state import PodRef
from cagrpc.fleet.model import LARGEST_INCREMENT, Increment, Origin, Placement
from solver.model import NodeGroup

MOST_PODS = 20_000
"""Of one increment, where no gang wants more: in a cluster it is one object, which has room for 48,000 UIDs."""


@dataclass(frozen=True, slots=True)
class NewNode:
    """One node to open."""

    node_group: str
    pods: tuple[PodRef, ...]
    gangs: Mapping[str, tuple[PodRef, ...]] = field(default_factory=dict)
    """Those of the pods that belong to gangs."""
    wave: int = 0
    placeholders: int = 0
    """Of the slack, that it has room for."""
    reserve: bool = False


@dataclass(frozen=True, slots=True)
class HandedOut:
    """Every pod of a question in its place."""

    new: tuple[NewNode, ...]
    existing: Mapping[str, tuple[PodRef, ...]]
    """By node that stands or is coming."""
    unplaced: Mapping[int, tuple[PodRef, ...]]
    """By class of the plan."""


def hand_out(carried: Course, asked: Question) -> HandedOut:
    """Each class's pods, oldest first: to nodes that stand, to those that are coming, to new ones; the youngest wait.
    Those to be bound to new nodes are pods that may be bound."""
    plan = carried.plan
    positions: Counter[int] = Counter()
    bound: Counter[int] = Counter()
    for pods in (*(placed.pods for placed in plan.existing), *(slot.pods for slot in carried.slots)):
        positions.update(pods)
    for slot in carried.slots:
        bound.update(slot.bound)
    queues = {
        each.index: _Queue(asked.pods.get(class_key(each), ()), positions[each.index], bound[each.index])
        for each in plan.pod_classes
    }
    standing_first = sorted(plan.existing, key=lambda each: each.node in asked.coming)
    existing = {placed.node: _all(_take(queues, placed.pods, {})) for placed in standing_first}
    gangs = {each.index: each.gang for each in plan.pod_classes if each.gang is not None}
    slack = {each.index for each in plan.pod_classes if each.placeholder}
    new = []
    for slot in carried.slots:
        taken = _take(queues, slot.pods, slot.bound)
        tied: defaultdict[str, tuple[PodRef, ...]] = defaultdict(tuple)
        for index, mine in taken.items():
            if mine and index in gangs and not slot.reserve:
                tied[gangs[index]] += mine
        placeholders = sum(count for index, count in slot.pods.items() if index in slack)
        new.append(NewNode(slot.node_group, _all(taken), dict(tied), slot.wave, placeholders, slot.reserve))
    unplaced = {index: queue.waiting for index, queue in queues.items() if queue.waiting}
    return HandedOut(tuple(new), existing, unplaced)


class _Queue:
    """The pods of a class, oldest first: so many have a place, and of these so many are bound to it."""

    def __init__(self, pods: tuple[PodRef, ...], places: int, bound: int) -> None:
        served, self.waiting = pods[:places], pods[places:]
        may = [pod for pod in served if pod.bindable]
        to_bind = may[len(may) - bound :] if bound else []
        kept = set(to_bind)
        self._to_bind = iter(to_bind)
        self._others = iter([pod for pod in served if pod not in kept])

    def take(self, count: int, *, bound: int) -> tuple[PodRef, ...]:
        first = tuple(islice(self._to_bind, bound))
        return (*first, *islice(self._others, count - len(first)))


def _take(
    queues: Mapping[int, _Queue], pods: Mapping[int, int], bound: Mapping[int, int]
) -> dict[int, tuple[PodRef, ...]]:
    return {index: queues[index].take(count, bound=bound.get(index, 0)) for index, count in sorted(pods.items())}


def _all(taken: Mapping[int, tuple[PodRef, ...]]) -> tuple[PodRef, ...]:
    return tuple(pod for pods in taken.values() for pod in pods)


def parts(nodes: Iterable[NewNode]) -> Iterator[tuple[NewNode, ...]]:
    """The smallest sets of nodes that must come whole: those tied together by gangs over several groups, and per group
    all others, in parts of at most `LARGEST_INCREMENT` nodes and `MOST_PODS` pods that tear no gang apart. The nodes of
    the reserve are the last."""
    alone: defaultdict[str, list[NewNode]] = defaultdict(list)
    pods: Counter[str] = Counter()
    all_nodes = list(nodes)
    every = [node for node in all_nodes if not node.reserve]
    for positions in connected([node.gangs for node in every]):
        tied = [every[position] for position in positions]
        groups = {node.node_group for node in tied}
        if len(groups) > 1:
            yield tuple(tied)
            continue
        (group_id,) = groups
        more = sum(len(node.pods) for node in tied)
        full = len(alone[group_id]) + len(tied) > LARGEST_INCREMENT or pods[group_id] + more > MOST_PODS
        if alone[group_id] and full:
            yield tuple(alone.pop(group_id))
            pods[group_id] = 0
        alone[group_id].extend(tied)
        pods[group_id] += more
    yield from map(tuple, alone.values())
    yield from ((node,) for node in all_nodes if node.reserve)


def still_wanted(part: tuple[NewNode, ...], waits: Callable[[PodRef], bool]) -> tuple[NewNode, ...] | None:
    """The part without nodes whose pods have all gone or been bound since it was planned, and that are for no
    placeholders either; spare ones, for nobody, go as soon as any other does. None where a gang has lost some of its
    pods: it has to be planned anew."""
    if any(not waits(pod) for node in part for pods in node.gangs.values() for pod in pods):
        return None
    wanted = tuple(node for node in part if node.placeholders or any(map(waits, node.pods)))
    return part if len(wanted) == sum(bool(node.pods or node.placeholders) for node in part) else wanted


def increment(part: Sequence[NewNode], groups: Mapping[str, NodeGroup], plan_id: str, gap: float) -> Increment:
    """What is asked of the fleet for one part."""
    deltas = Counter(node.node_group for node in part)
    pods = [pod for node in part for pod in node.pods]
    return Increment(
        deltas=dict(deltas),
        origin=Origin.CAGRPC,
        pods=frozenset(pod.uid for pod in pods),
        reason="reserve" if part[0].reserve else _reason(pods, sum(node.placeholders for node in part)),
        plan=plan_id,
        placements=tuple(Placement(node.node_group, tuple(pod.uid for pod in node.pods), node.wave) for node in part),
        cost_usd_per_hour=round(sum(groups[name].price_usd_per_hour * count for name, count in deltas.items()), 9),
        gap=gap,
        reserve=part[0].reserve,
    )


def _reason(pods: Sequence[PodRef], placeholders: int) -> str:
    told = [f"{len(pods)} pods, {pods[0].namespace}/{pods[0].name} among them"] if pods else []
    told += [f"{placeholders} placeholders of the slack"] if placeholders else []
    return "; ".join(told) or "spare nodes"


def told(deltas: Mapping[str, int]) -> str:
    """Nodes per group, for people."""
    return ", ".join(f"{count} x {group_id}" for group_id, count in sorted(deltas.items()))
