"""The cluster that a consolidation plan is made on, as it is after the steps so far. Pods that no plan can tell apart
are one class, and room is a matrix of nodes and resources, so that nothing here takes a step for each pod."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from solver.consolidation.model import ConsolidationProblem, StandingNode
from solver.model import NODES, PODS, Limit, Node, NodeGroup, Plan, PodClass, PodSet, PodSpec, RunningPods, SharedVolume
from solver.model.allocation import after_pods
from solver.model.capacity import new_node, taken, unshared, with_nodes
from solver.model.domains import one_domain_terms
from solver.reduction.reduced import Floats, Ints, price_micros

_ClassKey = tuple[int, int, str | None, bool]

_CLOSED = "groups that a step may not open"

Pods = Counter[int]
"""Pods per class."""


def step_node_name(group: str, step: int, number: int) -> str:
    """Return what a node is called that a step opens, until it has a name: later steps of the plan name it so."""
    return f"{group}/step-{step}-{number}"


@dataclass(frozen=True, slots=True)
class NodeRemoval:
    """Nodes to take away together, and all pods that move: theirs, and those of their gangs on other nodes."""

    nodes: tuple[int, ...]
    elsewhere: Mapping[int, Pods]
    """Of nodes that stay, the pods that move all the same."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Nodes that can go together, and where their pods go."""

    nodes: tuple[int, ...]
    placed: Mapping[int, Pods] = field(default_factory=dict)
    """By node that stands."""
    opened: Sequence[tuple[str, Pods]] = ()
    """Of each new node its group, and its pods."""


class Cluster:
    """Changed by `remove` alone. Nodes are numbered, first those of the problem, then those of steps."""

    def __init__(self, problem: ConsolidationProblem) -> None:
        self.problem = problem
        self.groups = {group.id: group for group in problem.node_groups}
        self.micros = {group.id: price_micros(group) for group in problem.node_groups}
        self.target = {group.id: group.target_size for group in problem.node_groups}
        self.least = {group.id: min(group.min_size, group.target_size) for group in problem.node_groups}
        self._limits = problem.limits
        self.steps = 0
        self._numbers: dict[PodSpec, int] = {}
        self._number_of: dict[int, int] = {}
        self.specs: list[PodSpec] = []
        self.classes: list[PodSet] = []
        self._class_of: dict[_ClassKey, int] = {}
        self.nodes: list[Node] = [standing.node for standing in problem.nodes]
        self.standing: list[StandingNode | None] = list(problem.nodes)
        """None for nodes of steps."""
        self.micros_per_node = np.array([self.micros.get(each.node_group, 0) for each in problem.nodes], dtype=np.int64)
        self.index = {node.name: number for number, node in enumerate(self.nodes)}
        self.group_of = [standing.node_group for standing in problem.nodes]
        self.pods: list[Pods] = [self._pods(standing) for standing in problem.nodes]
        self.alive = np.ones(len(self.nodes), dtype=bool)
        self.takes = np.array([s.takes_pods and s.must_go is None for s in problem.nodes], dtype=bool)
        self._came: dict[int, Counter[int]] = defaultdict(Counter)
        """Pods per spec that moved to a node, less those that left it."""
        self._devices = {number: node.devices for number, node in enumerate(self.nodes) if node.devices}
        self.resources = (*sorted({name for each in self.classes for name, _ in each.spec.requests}), PODS)
        column = {name: number for number, name in enumerate(self.resources)}
        self.requests = np.zeros((len(self.classes), len(self.resources)), dtype=np.int64)
        self.requests[:, -1] = 1
        for number, each in enumerate(self.classes):
            for name, amount in each.spec.requests:
                self.requests[number, column[name]] = amount
        self._volumes: dict[int, frozenset[SharedVolume]] = {
            number: node.volumes for number, node in enumerate(self.nodes) if node.volumes
        }
        """By node, volumes that pods share and that are attached there; none is given back before the node goes."""
        self.free = np.array([self.row(node.free) for node in self.nodes], dtype=np.int64).reshape(
            len(self.nodes), len(self.resources)
        )
        self._templates: dict[str, Node] = {}
        self.gangs: dict[str, set[int]] = defaultdict(set)
        """By gang: nodes on which pods of it are."""
        self.frozen: set[str] = set()
        """Gangs of which a pod is on a node that is kept, be it that it moved there."""
        for number, here in enumerate(self.pods):
            self._enter_gangs(number, here)
        real = np.array([not each.placeholder for each in self.classes], dtype=np.int64)
        self.evictions = np.array([self.summed(real, here) for here in self.pods], dtype=np.int64)
        """Per node, how many of its pods are real ones."""
        self._real = real
        self.set_worth(np.zeros(len(self.classes)))

    def set_worth(self, micros: Floats) -> None:
        """Take note of what a pod of each class is worth, in millionths of $/h."""
        self.pod_worth = micros
        self.worth = np.array([self.summed(micros, here) for here in self.pods])
        """Per node, what its pods are worth."""

    def surplus(self) -> Floats:
        """Return, per node of the problem, what it costs more than its pods are worth, in millionths of $/h."""
        found: Floats = self.micros_per_node - self.worth[: len(self.micros_per_node)]
        return found

    @staticmethod
    def summed(per_class: Ints | Floats, pods: Mapping[int, int]) -> float:
        """Return the sum over pods of what each counts by its class."""
        return float(sum(per_class.item(k) * count for k, count in pods.items()))

    def spec_number(self, spec: PodSpec) -> int:
        """Return a number that equal specs share. Equal specs are mostly one object."""
        known = self._number_of.get(id(spec))
        if known is None:
            known = self._numbers.setdefault(spec, len(self.specs))
            if known == len(self.specs):
                self.specs.append(spec)
            self._number_of[id(spec)] = known
        return known

    @cached_property
    def class_spec(self) -> list[int]:
        return [self.spec_number(each.spec) for each in self.classes]

    def class_of(self, pods: PodSet | PodClass) -> int:
        return self._class_of[self._key(pods)]

    def micros_of(self, node: int) -> int:
        return self.micros[self.group_of[node]] if self.group_of[node] else 0

    def weight_of(self, node: int) -> int:
        return self.groups[self.group_of[node]].weight if self.group_of[node] else 0

    def may_go(self, node: int) -> bool:
        """Return whether the node stands and nothing but cost keeps it. Nodes of steps stay."""
        standing = self.standing[node]
        return (
            bool(self.alive[node])
            and standing is not None
            and bool(standing.node_group)
            and not (standing.kept or standing.spare)
            and not any(self.classes[k].gang in self.frozen for k in self.pods[node])
        )

    def removal(self, nodes: Iterable[int]) -> NodeRemoval:
        """Return what moves where these nodes go. Nodes that only held pods of their gangs go, too."""
        going = set(nodes)
        gangs = {gang for n in going for k in self.pods[n] if (gang := self.classes[k].gang) is not None}
        elsewhere: dict[int, Pods] = {}
        for other in sorted({n for gang in gangs for n in self.gangs[gang]} - going):
            mine = Counter({k: n for k, n in self.pods[other].items() if self.classes[k].gang in gangs})
            if len(mine) == len(self.pods[other]) and self.may_go(other):
                going.add(other)
            else:
                elsewhere[other] = mine
        return NodeRemoval(tuple(sorted(going)), elsewhere)

    def domain_keys(self, node: int) -> frozenset[str]:
        """Return the topology keys of the domains that gangs with pods on the node ask for."""
        gangs = (each for k in self.pods[node] if (each := self.classes[k]).gang is not None)
        return frozenset(key for each in gangs for key, _ in one_domain_terms(each.spec))

    def sharing(self, node: int, key: str) -> list[int]:
        """Return the nodes of the problem that stand in the same domain of a topology key, itself among them."""
        value = self.nodes[node].labels.get(key)
        alive = (other for other, each in enumerate(self.standing) if each is not None and self.alive[other])
        return [other for other in alive if value is not None and self.nodes[other].labels.get(key) == value]

    def moved(self, removal: NodeRemoval) -> Pods:
        total: Pods = Counter()
        for node in removal.nodes:
            total.update(self.pods[node])
        for pods in removal.elsewhere.values():
            total.update(pods)
        return total

    def evicted(self, pods: Pods) -> int:
        """Return how many of the pods are real ones."""
        return sum(count for k, count in pods.items() if not self.classes[k].placeholder)

    def node(self, number: int, without: Pods | None = None) -> Node:
        """Return the node as it is now; `without` pods that leave it, as far as constraints between pods see them.
        Their room and their devices are free only when they are gone."""
        node, came = self.nodes[number], self._came.get(number)
        if came or without:
            change = Counter(came or {})
            for k, count in (without or {}).items():
                change[self.class_spec[k]] -= count
            node = replace(node, running=self._running(node, change))
        free = dict(node.free)
        free.update(zip(self.resources, self.free[number].tolist(), strict=True))
        devices, volumes = self._devices.get(number, ()), self._volumes.get(number, frozenset())
        return replace(node, free=free, devices=devices, volumes=volumes)

    def running(self, number: int) -> Counter[int]:
        """Return the pods on a node that constraints between pods see, by spec."""
        found = Counter(self._came.get(number, {}))
        for each in self.nodes[number].running:
            found[self.spec_number(each.spec)] += each.count
        return found

    def node_groups(self, going: Iterable[int] = ()) -> tuple[NodeGroup, ...]:
        """Return the groups as they are now; obliged to open what keeps them at their minimum sizes when these nodes
        are gone."""
        lost = Counter(self.group_of[node] for node in going)
        result = []
        for group in self.groups.values():
            least = min(self.least[group.id] + lost[group.id], group.max_size) if lost[group.id] else 0
            result.append(replace(group, target_size=self.target[group.id], min_size=least))
        return tuple(result)

    def limits(self, open_to: Iterable[str] | None = None) -> tuple[Limit, ...]:
        """Return the limits with what is used now; where only some groups are to grow, another one that says so.
        Their sizes do not: domains of groups at their maximum are none to spread over."""
        if open_to is None:
            return self._limits
        return (*self._limits, Limit(_CLOSED, {NODES: 0}, {}, frozenset(self.groups) - frozenset(open_to)))

    def remove(self, removal: NodeRemoval, plan: Plan) -> None:
        """Carry out a step that places all pods."""
        for number in removal.nodes:
            self.alive[number] = self.takes[number] = False
            self._leave_gangs(number, self.pods[number])
            self._count(self.group_of[number], -1)
        for number, pods in removal.elsewhere.items():
            self._leave_gangs(number, pods)
            self.pods[number] -= pods
            self._weigh(number, pods, -1)
            for k, count in pods.items():
                self.free[number] += self.row(dict(unshared(self.classes[k].spec))) * np.int64(count)
                self._came[number][self.class_spec[k]] -= count
        classes = [self.class_of(each) for each in plan.pod_classes]
        for placed in plan.existing:
            self._place(self.index[placed.node], Counter({classes[i]: n for i, n in placed.pods.items()}))
        number = len(self.nodes)
        self._open([batch.node_group for batch in plan.nodes for _ in range(batch.count)])
        for batch in plan.nodes:
            for _ in range(batch.count):
                self._place(number, Counter({classes[i]: n for i, n in batch.pods.items()}))
                number += 1
        self.steps += 1

    def _open(self, groups: Sequence[str]) -> None:
        opened: Counter[str] = Counter()
        for group_id in groups:
            self._add(group_id, step_node_name(group_id, self.steps, opened[group_id]))
            opened[group_id] += 1
        count, rows = len(groups), [self.row(self._templates[group_id].free) for group_id in groups]
        self.worth = np.append(self.worth, np.zeros(count))
        self.evictions = np.append(self.evictions, np.zeros(count, dtype=np.int64))
        self.alive, self.takes = (np.append(each, np.ones(count, dtype=bool)) for each in (self.alive, self.takes))
        self.free = np.vstack([self.free, np.array(rows, dtype=np.int64).reshape(count, len(self.resources))])

    def _add(self, group_id: str, name: str) -> None:
        number = len(self.nodes)
        if group_id not in self._templates:
            self._templates[group_id] = new_node(self.groups[group_id], self.problem.daemon_sets)
        node = replace(self._templates[group_id], name=name)
        self.nodes.append(node)
        self.standing.append(None)
        self.index[name] = number
        self.group_of.append(group_id)
        self.pods.append(Counter())
        if node.devices:
            self._devices[number] = node.devices
        self._count(group_id, 1)

    def _place(self, number: int, pods: Pods) -> None:
        there = self._volumes.get(number, frozenset())
        self.free[number] -= self.row(taken(((self.classes[k].spec, n) for k, n in pods.items()), there))
        more = there.union(*(self.classes[k].spec.shared_volumes for k in pods))
        if more:
            self._volumes[number] = more
        for k, count in pods.items():
            self._came[number][self.class_spec[k]] += count
        claims = [self.classes[k].spec.claims for k, n in pods.items() if self.classes[k].spec.claims for _ in range(n)]
        if claims:
            self._devices[number] = after_pods(self._devices.get(number, ()), claims)
        self.pods[number].update(pods)
        self._weigh(number, pods, 1)
        self._enter_gangs(number, pods)

    def _weigh(self, number: int, pods: Pods, sign: int) -> None:
        self.worth[number] += sign * self.summed(self.pod_worth, pods)
        self.evictions[number] += sign * round(self.summed(self._real, pods))

    def _count(self, group_id: str, nodes: int) -> None:
        self.target[group_id] += nodes
        self._limits = tuple(with_nodes(limit, self.groups, {group_id: nodes}) for limit in self._limits)

    def _running(self, node: Node, change: Counter[int]) -> tuple[RunningPods, ...]:
        left, result = Counter(change), []
        for each in node.running:
            number = self.spec_number(each.spec)
            count = max(0, each.count + left[number]) if left[number] < 0 else each.count
            left[number] += each.count - count
            if count:
                result.append(each if count == each.count else replace(each, count=count))
        result.extend(RunningPods(self.specs[number], count) for number, count in left.items() if count > 0)
        return tuple(result)

    def row(self, amounts: Mapping[str, int]) -> Ints:
        """Return amounts by resource, in the order of `resources`."""
        return np.array([amounts.get(name, 0) for name in self.resources], dtype=np.int64)

    def _key(self, pods: PodSet | PodClass) -> _ClassKey:
        return self.spec_number(pods.spec), pods.priority, pods.gang, pods.placeholder

    def _pods(self, standing: StandingNode) -> Pods:
        pods: Pods = Counter()
        for each in standing.pods:
            if each.count:
                k = self._class_of.setdefault(self._key(each), len(self.classes))
                if k == len(self.classes):
                    self.classes.append(replace(each, count=0, waiting_seconds=0))
                pods[k] += each.count
        return pods

    def _enter_gangs(self, number: int, pods: Pods) -> None:
        for k in pods:
            gang = self.classes[k].gang
            if gang is not None:
                self.gangs[gang].add(number)
                standing = self.standing[number]
                if standing is not None and standing.kept:
                    self.frozen.add(gang)

    def _leave_gangs(self, number: int, pods: Pods) -> None:
        for k in pods:
            gang = self.classes[k].gang
            if gang is not None:
                self.gangs[gang].discard(number)
