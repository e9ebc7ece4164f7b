"""Which nodes a class of pods may run on, asked once per distinct set of labels and taints that its selectors can
distinguish; and nodes that are no targets, merged into what constraints between pods see of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from solver.consolidation.cluster import Cluster, Pods
from solver.model import HOSTNAME, Node, Operator, PodAffinityTerm, PodSelector, PodSpec, RunningPods
from solver.model.eligibility import node_label_keys, on_nodes, read_node_names, selects, why_not_eligible
from solver.reduction.reduced import Bools


class Eligibility:
    """Per class, the nodes it may run on by selectors, affinity, taints and volumes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        specs = [each.spec for each in cluster.classes]
        self._keys, self._by_name = sorted(node_label_keys(specs)), read_node_names(specs)
        self._numbers: dict[object, int] = {}
        self._examples: list[Node] = []
        self._sight = np.zeros(0, dtype=np.int64)
        parts: dict[PodSpec, int] = {}
        self._part_of = [parts.setdefault(on_nodes(spec), len(parts)) for spec in specs]
        self._parts = list(parts)
        self._known: dict[int, Bools] = {}

    def of(self, k: int) -> Bools:
        """Return, per node of the cluster, whether pods of the class may run there."""
        part = self._part_of[k]
        known = self._known.get(part)
        if known is None or len(known) < len(self._cluster.nodes):
            sights = self._sights()
            spec = self._parts[part]
            verdicts = [why_not_eligible(spec, n.labels, n.taints, n.name) is None for n in self._examples]
            known = self._known[part] = np.array(verdicts, dtype=bool)[sights]
        return known

    def _sights(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        nodes = self._cluster.nodes
        found = []
        for node in nodes[len(self._sight) :]:
            key = tuple(map(node.labels.get, self._keys)), node.taints, node.name if self._by_name else ""
            number = self._numbers.setdefault(key, len(self._examples))
            if number == len(self._examples):
                self._examples.append(node)
            found.append(number)
        if found:
            self._sight = np.append(self._sight, np.array(found, dtype=np.int64))
        return self._sight


class Rules:
    """Constraints between pods: which classes have any, and what nodes that are no targets mean to them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        movable = {number: cluster.specs[number] for number in cluster.class_spec}
        running = {cluster.spec_number(each.spec) for node in cluster.nodes for each in node.running}
        self._labels = {n: (cluster.specs[n].namespace, dict(cluster.specs[n].labels)) for n in {*movable, *running}}
        self._with: dict[tuple[str, str], set[int]] = defaultdict(set)
        for number, (_, labels) in self._labels.items():
            for item in labels.items():
                self._with[item].add(number)
        guards = {n for n in self._labels if cluster.specs[n].pod_anti_affinity}
        kept_out = self._counted(term.selector for n in guards for term in cluster.specs[n].pod_anti_affinity)
        self.bound = [bool(_terms(movable[n])) or n in kept_out for n in cluster.class_spec]
        """Per class, whether where other pods are matters to it."""
        seen = self._counted(term.selector for spec in movable.values() for term in _terms(spec))
        self._seen = frozenset(seen | guards)
        keys = {term.topology_key for n in {*movable, *guards} for term in _terms(cluster.specs[n])} - {HOSTNAME}
        specs = list(movable.values())
        self._keys = sorted(keys | node_label_keys(specs))
        self._by_name = read_node_names(specs)

    def others(self, targets: Iterable[int], leaving: Mapping[int, Pods]) -> Iterator[Node]:
        """Yield nodes without room that stand for all others that stay: as constraints between pods see them."""
        cluster, apart = self._cluster, set(targets)
        merged: dict[object, tuple[Node, Counter[int]]] = {}
        for number in np.flatnonzero(cluster.alive).tolist():
            if number in apart:
                continue
            node = cluster.node(number, leaving.get(number))
            key = tuple(map(node.labels.get, self._keys)), node.taints, node.name if self._by_name else ""
            sums = merged.setdefault(key, (node, Counter()))[1]
            for each in node.running:
                spec = cluster.spec_number(each.spec)
                if spec in self._seen:
                    sums[spec] += each.count
        for node, sums in merged.values():
            running = tuple(RunningPods(cluster.specs[spec], count) for spec, count in sums.items())
            yield Node(node.name, {}, node.labels, node.taints, running)

    def _counted(self, selectors: Iterable[PodSelector]) -> set[int]:
        return {number for selector in set(selectors) for number in self._select(selector)}

    def _select(self, selector: PodSelector) -> Iterator[int]:
        candidates: Iterable[int] = self._labels
        for requirement in selector.match_expressions or ():
            if requirement.operator is Operator.IN:  # of a thousand labels only these can matter
                candidates = set().union(*(self._with[requirement.key, value] for value in requirement.values))
                break
        return (number for number in candidates if selects(selector, *self._labels[number]))


def _terms(spec: PodSpec) -> tuple[PodAffinityTerm, ...]:
    """Return every term of the spec that counts other pods, wanted ones too."""
    return (
        *spec.pod_affinity,
        *spec.pod_anti_affinity,
        *(PodAffinityTerm(each.topology_key, each.selector) for each in spec.topology_spread),
        *(each.term for each in spec.preferred_pods),
    )


def is_plain(spec: PodSpec) -> bool:
    """Return whether nothing but resources, selectors and taints decides where the pod runs."""
    return not (_terms(spec) or spec.host_ports or spec.claims or spec.preferred_nodes or spec.unschedulable)
