"""Room on nodes that stand, and who takes it when pods have to go elsewhere. Pure: the planner is asked, nothing is
opened. Whose pods have to go and where they may go is `scale_down_choice`'s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cagrpc.cluster.node_info import fits
from cagrpc.cluster.reservations import keeping
from solver import solve
from solver.model import (
    HOSTNAME,
    Budget,
    Node,
    Plan,
    PodSet,
    PodSpec,
    Problem,
    RunningPods,
    WhenUnsatisfiable,
)

Pods = Mapping[PodSpec, int]

_TARGETS = 64
"""So many nodes with room are enough for pods that do not look at other pods: a question over thousands of nodes takes
half a second, one over these some milliseconds."""


@lru_cache(maxsize=10_000)
def required(spec: PodSpec) -> PodSpec:
    """The spec without its preferences: these do not keep a pod from moving."""
    hard = tuple(each for each in spec.topology_spread if each.when_unsatisfiable is WhenUnsatisfiable.DO_NOT_SCHEDULE)
    return replace(spec, topology_spread=hard, preferred_nodes=(), preferred_pods=())


@lru_cache(maxsize=10_000)
def looks_at_others(spec: PodSpec) -> bool:
    """Whether it asks anything of other pods."""
    return bool(spec.pod_affinity or spec.pod_anti_affinity or spec.topology_spread)


@lru_cache(maxsize=10_000)
def _keeps_others_out(spec: PodSpec) -> bool:
    """Out of more than its own node."""
    return any(term.topology_key != HOSTNAME for term in spec.pod_anti_affinity)


@dataclass(frozen=True, slots=True)
class Placed:
    """Pods by node."""

    pods: Mapping[str, Pods]
    all: bool
    """Whether everybody found a place."""


class Room:
    """Nodes by name with what is free on them. Pods are put onto them, and nodes taken away."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = {node.name: _sane(node) for node in nodes}
        self._moved: dict[str, Counter[PodSpec]] = {}
        self._watched = {name for name, node in self._nodes.items() if _watches(node)}

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._nodes.values())

    def moved_to(self, name: str) -> Pods:
        """What was put onto a node here."""
        return self._moved.get(name, Counter())

    def remove(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._moved.pop(name, None)
        self._watched.discard(name)

    def put(self, placed: Placed) -> None:
        for name, pods in placed.pods.items():
            self._nodes[name] = keeping(self._nodes[name], (RunningPods(*each) for each in pods.items()))
            self._moved.setdefault(name, Counter()).update(pods)
            if any(_keeps_others_out(spec) for spec in pods):
                self._watched.add(name)

    def place(self, pods: Pods, onto: Sequence[str], budget: Budget) -> Placed:
        """Where these pods fit on nodes of `onto` (those that are there still), as the planner has it; the first of
        them are asked first. Nothing is put."""
        hard: Counter[PodSpec] = Counter()
        for spec, count in pods.items():
            hard[required(spec)] += count
        targets = self._targets(hard, onto)
        if not all(any(fits(spec, self._nodes[name]) for name in targets) for spec in hard):
            return Placed({}, all=False)
        sets = tuple(PodSet(str(number), *each) for number, each in enumerate(hard.items()))
        return self.place_sets(sets, targets, budget)

    def place_sets(self, pod_sets: tuple[PodSet, ...], onto: Iterable[str], budget: Budget) -> Placed:
        """The same for pod sets as they are, asked of all of `onto`."""
        asked = sum(pod_set.count for pod_set in pod_sets)
        nodes = tuple(self._nodes[name] for name in onto if name in self._nodes)
        if not asked or not nodes:
            return Placed({}, all=not asked)
        plan = solve(Problem(pod_sets, nodes=nodes), budget)
        return Placed(_by_node(plan), all=not plan.unplaced)

    def _targets(self, pods: Pods, onto: Sequence[str]) -> list[str]:
        names = [name for name in onto if name in self._nodes]
        if any(looks_at_others(spec) for spec in pods):
            return names  # what is on all of them counts
        found: list[str] = []
        for name in names:
            if name in self._watched or (len(found) < _TARGETS and self._suits_one(name, pods)):
                found.append(name)
        return found

    def _suits_one(self, name: str, pods: Pods) -> bool:
        node = self._nodes[name]
        return any(fits(spec, node) for spec in pods)


def _sane(node: Node) -> Node:
    """A node may be overcommitted; it has nothing to give then."""
    if all(amount >= 0 for amount in node.free.values()):
        return node
    return replace(node, free={resource: max(0, amount) for resource, amount in node.free.items()})


def _watches(node: Node) -> bool:
    return any(_keeps_others_out(each.spec) for each in node.running)


def _by_node(plan: Plan) -> dict[str, Pods]:
    specs = {each.index: each.spec for each in plan.pod_classes}
    found: dict[str, Counter[PodSpec]] = {}
    for placed in plan.existing:
        here = found.setdefault(placed.node, Counter())
        for index, count in placed.pods.items():
            here[specs[index]] += count
    return {name: dict(pods) for name, pods in found.items()}
