"""A simulated cluster for scale-down: nodes of tiers with pods on them, as cluster state and fleet report it, and the
three others who change it: the autoscaler, the scheduler and the planner."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from cagrpc.cluster.state import ClusterNode, ClusterState, PodRef, WaitingPods
from cagrpc.controllers.scale_down.choice import Bookings, Rules, Verdicts, choose
from cagrpc.controllers.scale_down.known import ReviewedNodes
from cagrpc.controllers.scale_down.relocation import Relocation
from cagrpc.controllers.scale_down.room import Room
from cagrpc.fleet.model import FleetSnapshot, GroupState, Instance, InstanceState
from solver import solve
from solver.model import Budget, Node, NodeGroup, Plan, PodSet, PodSpec, Problem, RunningPods
from solver.model.eligibility import why_not_eligible
from tests.support.clocks import any_clock

GIB = 2**30
T = TypeVar("T")

QUICK = Rules(evaluation_seconds=1e9, step_seconds=1e9)
"""Everything is looked at, however slow the machine."""


def tier(name: str, weight: int, *, cpu: int = 4000, price: float = 1.0, **more: object) -> NodeGroup:
    resources = {"cpu": cpu, "memory": 16 * GIB, "pods": 20}
    return NodeGroup(name, resources, price, weight=weight, labels={"tier": name}, **more)  # type: ignore[arg-type]


def spec(cpu: int = 1000, **more: object) -> PodSpec:
    return PodSpec((("cpu", cpu),), **more)  # type: ignore[arg-type]


NO_TIME = any_clock(lambda: 0.0)


def standing_nodes(*nodes: Node) -> list[ClusterNode]:
    """Return Ready nodes whose running pods all may move."""
    return [ClusterNode(each, f"id-{each.name}", ready=True, held=False, movable=each.running) for each in nodes]


def room_of(*nodes: Node) -> Room:
    return Room(standing_nodes(*nodes), {})


def relocation_in(room: Room) -> Relocation:
    return Relocation(room, [pods.spec for each in room.nodes for pods in each.movable])


@dataclass
class Played:
    """One node; `pods` may move."""

    name: str
    group: NodeGroup
    pods: Counter[PodSpec] = field(default_factory=Counter)

    @property
    def node(self) -> Node:
        free = dict(self.group.allocatable)
        for each, count in self.pods.items():
            for resource, amount in (*each.requests, ("pods", 1)):
                free[resource] = free.get(resource, 0) - amount * count
        labels = {**self.group.labels, "kubernetes.io/hostname": self.name}
        return Node(self.name, free, labels)

    @property
    def running(self) -> tuple[RunningPods, ...]:
        return tuple(RunningPods(each, count) for each, count in self.pods.items())

    @property
    def used(self) -> float:
        allocatable = self.group.allocatable
        return max(1 - self.node.free[name] / allocatable[name] for name in ("cpu", "memory"))


def whole(parts: Generator[object, None, T]) -> T:
    """Return what a generator returns in the end."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            found: T = end.value
            return found


@dataclass
class Play:
    nodes: list[Played]
    groups: tuple[NodeGroup, ...]
    waiting: Counter[PodSpec] = field(default_factory=Counter)
    may_go: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()

    def cluster(self) -> ClusterState:
        return ClusterState(
            tuple(
                WaitingPods(PodSet(f"w{i}", each, count), tuple(PodRef(f"w{i}-{n}", "ns", "w") for n in range(count)))
                for i, (each, count) in enumerate(self.waiting.items())
            ),
            tuple(
                ClusterNode(
                    replace(each.node, running=each.running if self.waiting else ()),  # what pods that wait see
                    f"id-{each.name}",
                    ready=True,
                    held=False,
                    movable=each.running,
                )
                for each in self.nodes
            ),
            (),
        )

    def fleet(self) -> FleetSnapshot:
        states = {}
        for group in self.groups:
            mine = [n for n in self.nodes if n.group.id == group.id]
            listed = tuple(Instance(f"id-{n.name}", group.id, InstanceState.RUNNING) for n in mine)
            states[group.id] = GroupState(group, len(mine), listed)
        return FleetSnapshot(
            version=1,
            groups=states,
            shown=(),
            group_of_instance={f"id-{n.name}": n.group.id for n in self.nodes},
        )

    def verdicts(self, rules: Rules = QUICK) -> Verdicts:
        cluster, fleet, known = self.cluster(), self.fleet(), ReviewedNodes(rules.utilisation)
        known.update(cluster.nodes, fleet)
        found = whole(
            choose(known, cluster, fleet, self.may_go, self.refused, rules, NO_TIME, Bookings(), lambda _: {})
        )
        self.may_go = frozenset(found.go)
        self.refused = frozenset() if found.swept else found.refused
        return found

    def named(self, name: str) -> Played:
        return next(each for each in self.nodes if each.name == name)

    def remove(self, names: Iterable[str]) -> None:
        """Remove nodes as CA does: their pods become pending."""
        for name in names:
            gone = self.named(name)
            self.nodes.remove(gone)
            self.waiting += gone.pods

    def schedule(self, chance: random.Random) -> None:
        """Bind pending pods as kube-scheduler's LeastAllocated, one after the other, in any order."""
        queue = list(self.waiting.elements())
        chance.shuffle(queue)
        self.waiting.clear()
        for each in queue:
            open_ = [node for node in self.nodes if _fits(each, node.node)]
            if not open_:
                self.waiting[each] += 1
                continue
            max(open_, key=lambda node: (-node.used, chance.random())).pods[each] += 1

    def planned(self) -> Plan:
        """Return the planner's plan for pending pods."""
        sets = tuple(PodSet(f"w{i}", each, count) for i, (each, count) in enumerate(self.waiting.items()))
        sizes = {group_id: state.target_size for group_id, state in self.fleet().groups.items()}
        groups = tuple(replace(g, target_size=sizes[g.id]) for g in self.groups)
        return solve(Problem(sets, groups, tuple(n.node for n in self.nodes)), Budget(deterministic_seconds=0.2))


def _fits(each: PodSpec, node: Node) -> bool:
    if any(node.free.get(resource, 0) < amount for resource, amount in (*each.requests, ("pods", 1))):
        return False
    return why_not_eligible(each, node.labels, node.taints, node.name) is None
