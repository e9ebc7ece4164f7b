"""Which nodes a class of pods may run on, asked once per distinct set of labels and taints that its selectors can
distinguish; and nodes that are no targets, merged into what constraints between pods see of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from solver.consolidation.cluster import Cluster, Pods
from solver.model import HOSTNAME, Node, NodeGroup, Operator, PodAffinityTerm, PodSelector, PodSpec, RunningPods
from solver.model.capacity import new_node
from solver.model.eligibility import node_label_keys, on_nodes, read_node_names, selects
from solver.reduction.node_columns import NodeColumns
from solver.reduction.reduced import Bools

Domains = tuple[tuple[str, str | None], ...]
"""Topology keys, each with a domain; None for nodes without the label."""


class Eligibility:
    """Per class, the nodes it may run on by selectors, affinity, taints and volumes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._columns = cluster, NodeColumns(tuple(cluster.nodes))
        parts: dict[PodSpec, int] = {}
        self._part_of = [parts.setdefault(on_nodes(each.spec), len(parts)) for each in cluster.classes]

    def part_of(self, k: int) -> int:
        """Return a number that classes share that may run on the same nodes."""
        return self._part_of[k]

    def of(self, k: int) -> Bools:
        """Return, per node of the cluster, whether pods of the class may run there."""
        if len(self._columns) < len(self._cluster.nodes):  # a step has come with new ones
            self._columns = NodeColumns(tuple(self._cluster.nodes))
        return self._columns.admits(self._cluster.classes[k].spec)


class NewNodeEligibility:
    """New nodes of some groups: what they have for pods, and which pods may move there."""

    def __init__(self, cluster: Cluster, groups: Iterable[NodeGroup]) -> None:
        self._cluster, self.groups = cluster, tuple(groups)
        nodes = [new_node(group, cluster.problem.daemon_sets) for group in self.groups]
        self.room = np.array(
            [[node.free.get(name, 0) for name in cluster.resources] for node in nodes], dtype=np.int64
        ).reshape(len(nodes), len(cluster.resources))
        """Groups x resources."""
        self._columns = NodeColumns(nodes)
        self._inside: dict[Domains, Bools] = {}

    def take(self, k: int, domains: Domains) -> Bools:
        """Return, per group, whether pods of the class may run there that stay in these domains."""
        if domains not in self._inside:
            inside = [all(group.labels.get(key) == domain for key, domain in domains) for group in self.groups]
            self._inside[domains] = np.array(inside, dtype=bool)
        found: Bools = self._columns.admits(self._cluster.classes[k].spec) & self._inside[domains]
        return found


class PodRules:
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
        kept_out = self.counted(term.selector for n in guards for term in cluster.specs[n].pod_anti_affinity)
        self.bound = [bool(_terms(movable[n])) or n in kept_out for n in cluster.class_spec]
        """Per class, whether where other pods are matters to it."""
        self.plain = [is_plain(movable[n]) and n not in kept_out for n in cluster.class_spec]
        """Per class, whether at most spread over domains does."""
        seen = self.counted(term.selector for spec in movable.values() for term in _terms(spec))
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
            node = cluster.nodes[number]
            key = tuple(map(node.labels.get, self._keys)), node.taints, node.name if self._by_name else ""
            sums = merged.setdefault(key, (node, Counter()))[1]
            here = cluster.running(number)
            for k, count in leaving.get(number, {}).items():
                here[cluster.class_spec[k]] -= count
            for spec, count in here.items():
                if spec in self._seen:
                    sums[spec] += count
        for node, sums in merged.values():
            running = tuple(RunningPods(cluster.specs[spec], count) for spec, count in sums.items() if count > 0)
            yield Node(node.name, {}, node.labels, node.taints, running)

    def counted(self, selectors: Iterable[PodSelector]) -> set[int]:
        """Return the specs whose pods one of the selectors counts."""
        found: set[int] = set()
        left = set(self._labels)
        for selector in set(selectors):  # each looks only at those that no other one has counted
            counted = {n for n in self._candidates(selector, left) if selects(selector, *self._labels[n])}
            found |= counted
            left -= counted
        return found

    def _candidates(self, selector: PodSelector, among: set[int]) -> set[int]:
        for requirement in selector.match_expressions or ():
            if requirement.operator is Operator.IN:  # of a thousand labels only these can matter
                return among & set().union(*(self._with[requirement.key, value] for value in requirement.values))
        return among


class DomainSpread:
    """Topology spread where pods stay in their domains: moved so, they change no count, so it is kept where it was."""

    def __init__(self, cluster: Cluster, rules: PodRules) -> None:
        self._cluster = cluster
        self._counts: dict[PodAffinityTerm, Counter[str]] = {}
        self._least: dict[PodAffinityTerm, int] = {}
        self._kept: dict[tuple[int, Domains], bool] = {}
        self._inside: dict[Domains, Bools] = {}
        specs = {number: cluster.specs[number] for number in cluster.class_spec}
        spreads = {each for spec in specs.values() for each in spec.topology_spread if each.topology_key != HOSTNAME}
        counted = {each: rules.counted((each,)) for each in {spread.selector for spread in spreads}}
        keys: dict[int, set[str]] = {number: set() for number in specs}
        for spread in spreads:
            for number in counted[spread.selector] & keys.keys():
                keys[number].add(spread.topology_key)
        for number, spec in specs.items():
            keys[number].update(each.topology_key for each in spec.topology_spread if each.topology_key != HOSTNAME)
        self._keys = [sorted(keys[number]) for number in cluster.class_spec]
        """Per class, the topology keys of which its pods stay in their domains."""
        if spreads:
            self._count({PodAffinityTerm(s.topology_key, s.selector): counted[s.selector] for s in spreads})

    def stay_in(self, k: int, node: int) -> Domains | None:
        """Return the domains that pods of the class do not leave when the node goes; None where some of their spread is
        not kept even now."""
        labels = self._cluster.nodes[node].labels
        domains = tuple((key, labels.get(key)) for key in self._keys[k])
        if domains and (k, domains) not in self._kept:
            self._kept[k, domains] = self._is_kept(k, dict(domains))
        return domains if not domains or self._kept[k, domains] else None

    def _is_kept(self, k: int, domains: Mapping[str, str | None]) -> bool:
        for each in self._cluster.classes[k].spec.topology_spread:
            term, domain = PodAffinityTerm(each.topology_key, each.selector), domains[each.topology_key]
            emptiest = self._least[term] if each.min_domains == 1 else 0
            if domain is None or self._counts[term][domain] > each.max_skew + emptiest:
                return False
        return True

    def nodes_in(self, domains: Domains) -> Bools:
        """Return, per node of the cluster, whether it is in all of the domains."""
        count = len(self._cluster.nodes)
        known = self._inside.get(domains)
        if known is None or len(known) < count:
            nodes = self._cluster.nodes[0 if known is None else len(known) :]
            inside = [all(d is not None and node.labels.get(key) == d for key, d in domains) for node in nodes]
            fresh = np.array(inside, dtype=bool)
            known = self._inside[domains] = fresh if known is None else np.concatenate([known, fresh])
        return known

    def _count(self, counted: Mapping[PodAffinityTerm, set[int]]) -> None:
        cluster = self._cluster
        keys = sorted({term.topology_key for term in counted})
        per_domain: dict[str, dict[str, Counter[int]]] = {key: defaultdict(Counter) for key in keys}
        for number in np.flatnonzero(cluster.alive).tolist():
            here = cluster.running(number)
            for key, domains in per_domain.items():
                domain = cluster.nodes[number].labels.get(key)
                if domain is not None:
                    domains[domain].update(here)
        for key, found in per_domain.items():
            every = {group.labels[key] for group in cluster.groups.values() if key in group.labels} | set(found)
            for term, specs in counted.items():
                if term.topology_key == key:
                    sums = Counter({domain: sum(found[domain][spec] for spec in specs) for domain in every})
                    self._counts[term], self._least[term] = sums, min(sums.values(), default=0)


def _terms(spec: PodSpec) -> tuple[PodAffinityTerm, ...]:
    """Return every term of the spec that counts other pods, wanted ones too."""
    return (
        *spec.pod_affinity,
        *spec.pod_anti_affinity,
        *(PodAffinityTerm(each.topology_key, each.selector) for each in spec.topology_spread),
        *(each.term for each in spec.preferred_pods),
    )


def is_plain(spec: PodSpec) -> bool:
    """Return whether nothing decides where the pod runs but resources, selectors, taints, and spread over domains."""
    return not (
        spec.pod_affinity
        or spec.pod_anti_affinity
        or any(each.topology_key == HOSTNAME for each in spec.topology_spread)
        or spec.preferred_pods
        or spec.preferred_nodes
        or spec.host_ports
        or spec.claims
        or spec.shared_volumes
        or spec.unschedulable
    )
