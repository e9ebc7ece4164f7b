"""Spares of topology domains: nodes that stay empty beside those of gangs, for the pods of one that must go. Which ones
follows from the cluster: so many empty nodes of each domain that is in use, of a node group that has spares, whatever
they were ordered for. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from cagrpc.cluster.fleet_capacity import deleting_instances
from cagrpc.cluster.node_info import Reservation, Reservations, SpareOwner
from cagrpc.cluster.state import ClusterState
from cagrpc.fleet.model import FleetSnapshot
from solver.model import PODS, Node, NodeGroup, PodSpec
from solver.model.domains import one_domain_terms
from solver.model.eligibility import selects


@dataclass(slots=True)
class _Domain:
    """The nodes of one group in one topology domain."""

    used: bool = False
    empty: list[tuple[str, ...]] = field(default_factory=list)
    """The names of each node without pods."""


def spare_nodes(state: ClusterState, fleet: FleetSnapshot, planned: AbstractSet[str]) -> frozenset[str]:
    """Return the names of spares, those that are coming among them. On `planned` nodes pods have places."""
    groups = {name: each.group for name, each in fleet.groups.items() if each.group.spares}
    if not groups:
        return frozenset()
    domains: defaultdict[tuple[str, ...], _Domain] = defaultdict(_Domain)
    for domain, names, used in (*_standing(state, fleet, groups), *_coming(state, fleet, groups)):
        if used or not planned.isdisjoint(names):
            domains[domain].used = True
        else:
            domains[domain].empty.append(names)
    spared = ((groups[group], each.empty) for (group, *_), each in domains.items() if each.used)
    return frozenset(name for group, empty in spared for names in sorted(empty)[: group.spares] for name in names)


_Found = Iterator[tuple[tuple[str, ...], tuple[str, ...], bool]]
"""Of each node its domain, its names, and whether it has pods."""


def _standing(state: ClusterState, fleet: FleetSnapshot, groups: dict[str, NodeGroup]) -> _Found:
    away = deleting_instances(fleet) | {each.instance_id for status in fleet.increments for each in status.nodes}
    for node in state.nodes:
        group = groups.get(fleet.group_of_instance.get(node.provider_id, ""))
        if group is not None and node.ready and node.provider_id not in away:
            keys = group.new_domains.keys if group.new_domains is not None else ()
            yield (group.id, *(node.node.labels.get(key, "") for key in keys)), (node.node.name,), bool(node.movable)


def _coming(state: ClusterState, fleet: FleetSnapshot, groups: dict[str, NodeGroup]) -> _Found:
    names = {each.provider_id: each.node.name for each in state.nodes}
    for status in fleet.increments:
        for each in status.nodes:
            if each.node_group in groups:
                known = (names[each.instance_id],) if each.instance_id in names else ()
                of = (each.domain,) if each.domain else ()
                yield (each.node_group, *of), (each.name, *known), bool(each.pods or each.requests)


def as_spared(
    groups: Sequence[NodeGroup], state: ClusterState, fleet: FleetSnapshot, names: AbstractSet[str]
) -> tuple[NodeGroup, ...]:
    """Return the groups with the spares that they lack: nodes of one that is a domain stand there already."""
    if not names:
        return tuple(groups)
    there = Counter(
        fleet.group_of_instance.get(each.provider_id, "") for each in state.nodes if each.node.name in names
    )
    there.update(each.node_group for status in fleet.increments for each in status.nodes if each.name in names)
    return tuple(
        replace(each, spares=max(0, each.spares - there[each.id])) if each.new_domains is None else each
        for each in groups
    )


def kept_free(names: AbstractSet[str], nodes: Collection[Node], state: ClusterState) -> Reservations:
    """Return the room of these nodes, but in domains to which pods that wait are tied: a gang has the spares of its own
    domain."""
    if not names:
        return {}
    terms = {term for each in state.waiting if each.pod_set.gang for term in one_domain_terms(each.pod_set.spec)}
    tied = {
        (key, node.labels[key])
        for key, selector in terms
        for node in nodes
        if key in node.labels
        and any(selects(selector, each.spec.namespace, dict(each.spec.labels)) for each in node.running)
    }
    return {
        node.name: (Reservation(SpareOwner(), _whole(node)),)
        for node in nodes
        if node.name in names and tied.isdisjoint(node.labels.items())
    }


def _whole(node: Node) -> PodSpec:
    return PodSpec(tuple(sorted((name, amount) for name, amount in node.free.items() if amount and name != PODS)))
