"""Places on existing nodes for pods that have to move, as the planner finds them. Pure; no node is opened. Whose pods
have to move, and to which nodes they may, is `choice`'s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cagrpc.cluster.drop_invalid import solve_valid
from cagrpc.cluster.node_info import ClusterCapacity, DisplacedOwner, NodeInfo
from solver.model import HOSTNAME, Budget, Node, Plan, PodSet, PodSpec, Problem, WhenUnsatisfiable

Pods = Mapping[PodSpec, int]

_MOST_TARGETS = 64
"""How many nodes with room are enough for pods without constraints between pods: planning over thousands of nodes takes
half a second, over these a few milliseconds."""


@lru_cache(maxsize=10_000)
def required(spec: PodSpec) -> PodSpec:
    """Return the spec without its preferences, which never prevent a move."""
    hard = tuple(each for each in spec.topology_spread if each.when_unsatisfiable is WhenUnsatisfiable.DO_NOT_SCHEDULE)
    return replace(spec, topology_spread=hard, preferred_nodes=(), preferred_pods=())


@lru_cache(maxsize=10_000)
def is_constrained_by_others(spec: PodSpec) -> bool:
    """Return whether it has required pod affinity or anti-affinity, or any topology spread, a `ScheduleAnyway` one too.
    Of `required` specs only `DoNotSchedule` ones are left."""
    return bool(spec.pod_affinity or spec.pod_anti_affinity or spec.topology_spread)


@lru_cache(maxsize=10_000)
def _keeps_others_out(spec: PodSpec) -> bool:
    """Return whether its anti-affinity reaches beyond its own node."""
    return any(term.topology_key != HOSTNAME for term in spec.pod_anti_affinity)


@dataclass(frozen=True, slots=True)
class Relocated:
    """Pods by the node that was found for them."""

    pods: Mapping[str, Pods]
    all: bool
    """Whether all pods have one."""


_DISPLACED = DisplacedOwner()


class Relocation:
    """Finds places on the nodes of a capacity, which changes as pods are assumed."""

    def __init__(self, capacity: ClusterCapacity) -> None:
        self._capacity = capacity
        self._watched = {node.name for node in capacity.nodes if _watches(node)}

    def assume(self, relocated: Relocated) -> None:
        """Assume pods in these places."""
        for name, pods in relocated.pods.items():
            for spec, count in pods.items():
                self._capacity[name].assume(_DISPLACED, spec, count)
            if any(_keeps_others_out(spec) for spec in pods):
                self._watched.add(name)

    def place(self, pods: Pods, onto: Sequence[str], budget: Budget) -> Relocated:
        """Return where these pods fit on those nodes of `onto` that are left, the first nodes preferred. Nothing is
        assumed."""
        hard: Counter[PodSpec] = Counter()
        for spec, count in pods.items():
            hard[required(spec)] += count
        targets = self._targets(hard, onto)
        if not all(any(self._capacity[name].fits(spec) for name in targets) for spec in hard):
            return Relocated({}, all=False)
        sets = tuple(PodSet(str(number), *each) for number, each in enumerate(hard.items()))
        return self.place_sets(sets, targets, budget)

    def place_sets(self, pod_sets: tuple[PodSet, ...], onto: Iterable[str], budget: Budget) -> Relocated:
        """Return the same for pod sets with their preferences, over all nodes of `onto`."""
        asked = sum(pod_set.count for pod_set in pod_sets)
        nodes = tuple(self._capacity.node(name) for name in onto if name in self._capacity)
        if not asked or not nodes:
            return Relocated({}, all=not asked)
        planned = solve_valid(Problem(pod_sets, nodes=nodes), budget)
        return Relocated(_by_node(planned.plan), all=planned.places_all)

    def _targets(self, pods: Pods, onto: Sequence[str]) -> list[str]:
        infos = [info for name in onto if (info := self._capacity.get(name)) is not None]
        if any(is_constrained_by_others(spec) for spec in pods):
            return [info.name for info in infos]  # pods on any of them count
        found: list[str] = []
        for info in infos:
            if info.name in self._watched or (len(found) < _MOST_TARGETS and _suits_one(info, pods)):
                found.append(info.name)
        return found


def _suits_one(info: NodeInfo, pods: Pods) -> bool:
    return any(info.fits(spec) for spec in pods)


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
