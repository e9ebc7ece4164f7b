"""The places of a plan as the checker reads them: every existing node, every batch of equal new nodes, and what a pod's
selectors can distinguish of them. Nothing is checked here."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

from solver.model import (
    HOSTNAME,
    Labels,
    Node,
    NodeGroup,
    Plan,
    PodSpec,
    PreferredNodes,
    Problem,
    RunningPods,
    Taint,
    TaintEffect,
)
from solver.verify.filters import HARD, fault, is_selected, matches, tolerated
from solver.verify.selecting import SeenPods

Domain = int | str
"""A value of a topology key; over hostnames the number of the place, of whose nodes each is a domain."""


@dataclass(frozen=True, slots=True)
class CheckedNodes:
    """`count` equal nodes, each with the same planned pods: class index -> pods per node."""

    index: int
    where: NodeGroup | Node
    count: int
    pods: Mapping[int, int]

    @property
    def name(self) -> str:
        """The node's name for conditions on metadata.name; empty for a node that does not exist yet."""
        return self.where.name if isinstance(self.where, Node) else ""

    @property
    def running(self) -> tuple[RunningPods, ...]:
        return self.where.running if isinstance(self.where, Node) else ()

    def domain(self, key: str) -> Domain | None:
        return self.index if key == HOSTNAME else self.where.labels.get(key)

    def __str__(self) -> str:
        return f"node {self.where.name}" if isinstance(self.where, Node) else f"a node of {self.where.id}"


class CheckedPlaces:
    """All places with pods, planned or running, and for each class those that hold it. Expects a plan whose groups,
    nodes and classes exist."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        groups = {group.id: group for group in problem.node_groups}
        onto = {placed.node: placed.pods for placed in plan.existing}

        @cache
        def new(group_id: str, domain: str) -> NodeGroup:
            """Return the group as its nodes of a domain of their own are: these share labels that no other node has."""
            group = groups[group_id]
            return replace(group, labels=group.labels_in(f"{group_id}/{domain}")) if domain else group

        found: list[tuple[NodeGroup | Node, int, Mapping[int, int]]] = [
            *((new(nodes.node_group, nodes.domain), nodes.count, nodes.pods) for nodes in plan.nodes),
            *((node, 1, onto.get(node.name, {})) for node in problem.nodes if node.running or node.name in onto),
        ]
        self.all = tuple(CheckedNodes(index, *each) for index, each in enumerate(found))
        self.of_class: dict[int, list[CheckedNodes]] = defaultdict(list)
        for place in self.all:
            for index in place.pods:
                self.of_class[index].append(place)
        self.placed = Counter(
            {index: sum(p.pods[index] * p.count for p in where) for index, where in self.of_class.items()}
        )
        self.specs = tuple(cls.spec for cls in plan.pod_classes)
        self.sights = Sights(self.specs)

    @cached_property
    def pods(self) -> SeenPods:
        """Return what selectors see of the pods, planned and running."""
        return SeenPods((*self.specs, *(each.spec for place in self.all for each in place.running)))


class Sights:
    """Nodes that no selector or toleration distinguishes share a number, and each class is compared with a number
    once."""

    def __init__(self, specs: tuple[PodSpec, ...]) -> None:
        self._specs = specs
        keys: set[str] = set()
        self._by_name = False
        for spec in specs:
            keys.update(key for key, _ in spec.node_selector)
            of_volumes = (term for terms in spec.node_terms for term in terms)
            preferred = (each.term for each in spec.preferred_nodes)
            for term in (*(spec.affinity or ()), *of_volumes, *preferred):
                keys.update(requirement.key for requirement in term.match_expressions)
                self._by_name = self._by_name or bool(term.match_fields)
        self._keys = sorted(keys)
        self._numbers: dict[object, int] = {}
        self._examples: list[tuple[Labels, tuple[Taint, ...], str]] = []
        self._of_object: dict[int, int] = {}
        self._reasons: dict[int, dict[int, str | None]] = defaultdict(dict)
        self._selected: dict[tuple[object, int], bool] = {}
        self._tolerated: dict[tuple[object, int, TaintEffect | None], bool] = {}

    def of(self, where: NodeGroup | Node) -> int:
        """Return the number of a node, or of a new node of a group."""
        known = self._of_object.get(id(where))
        if known is not None:
            return known
        name = where.name if self._by_name and isinstance(where, Node) else ""
        key = (tuple(map(where.labels.get, self._keys)), where.taints, name)
        number = self._numbers.setdefault(key, len(self._numbers))
        if number == len(self._examples):
            self._examples.append((where.labels, where.taints, name))
        self._of_object[id(where)] = number
        return number

    def why_not(self, index: int, sight: int) -> str | None:
        """Return why a pod of the class may not run there, None where it may."""
        known = self._reasons[sight]
        if index not in known:
            known[index] = fault(self._specs[index], *self._examples[sight])
        return known[index]

    def selected(self, index: int, sight: int) -> bool:
        """Return whether node selector and required node affinity of the class match."""
        spec = self._specs[index]
        if not spec.node_selector and spec.affinity is None:
            return True
        key = ((spec.node_selector, spec.affinity), sight)
        if key not in self._selected:
            labels, _, name = self._examples[sight]
            self._selected[key] = is_selected(spec, labels, name)
        return self._selected[key]

    def tolerated(self, index: int, sight: int, effect: TaintEffect | None = None) -> bool:
        """Return whether the class tolerates the node's taints: those with the effect, or all that keep pods away."""
        taints = self._examples[sight][1]
        if not taints:
            return True
        tolerations = self._specs[index].tolerations
        key = (tolerations, sight, effect)
        if key not in self._tolerated:
            self._tolerated[key] = tolerated(tolerations, taints, HARD if effect is None else (effect,))
        return self._tolerated[key]

    def preferred(self, preference: PreferredNodes, sight: int) -> bool:
        """Return whether preferred node affinity matches; an empty term matches every node, as upstream."""
        term = preference.term
        if not term.match_expressions and not term.match_fields:
            return True
        labels, _, name = self._examples[sight]
        return matches(term, labels, name)
