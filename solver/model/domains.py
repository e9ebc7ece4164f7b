"""Gangs that ask for one topology domain: which terms say so, and which new domains a problem can have for them.

A term says so that counts the pods that carry it, over a key that is not the hostname's, on pods of a gang. It is the
gang's own (Kueue's topology annotations, a PodGroup's scheduling constraints) or the pods' affinity.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

from solver.model.eligibility import required_affinity, selects
from solver.model.objects import (
    HOSTNAME,
    NODES,
    Limit,
    NewDomains,
    NodeGroup,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    PreferredDomain,
)
from solver.model.plan import NodeGroupIncrease, Plan, PlannedNodes, Problem

GANG_MARK = "gang.planning.cagrpc.io/"
"""The prefix of labels that only planning sees, of pods that are to be in one domain with all others that have it."""
MOST_NEW_DOMAINS = 8
"""New domains of one group that are planned at once."""
_NEW = " in new domain "

DomainTerm = tuple[str, PodSelector]
"""A topology key, and whom the term counts."""


def is_of_gang(term: PodAffinityTerm) -> bool:
    """Return whether the term ties a gang together, and is not of the pod's own affinity."""
    return any(each.key.startswith(GANG_MARK) for each in term.selector.match_expressions or ())


def one_domain_terms(spec: PodSpec) -> tuple[DomainTerm, ...]:
    """Return the terms that tie pods like this one to one domain, each with all pods that it counts, themselves among
    them."""
    terms: tuple[PodAffinityTerm, ...] = required_affinity(spec) if spec.pod_affinity else ()
    found = (
        (each.topology_key, each.selector)
        for each in terms
        if each.topology_key != HOSTNAME and selects(each.selector, spec.namespace, dict(spec.labels))
    )
    return tuple(sorted(dict.fromkeys(found), key=repr))


def gang_terms(problem: Problem) -> dict[DomainTerm, list[int]]:
    """Return the terms of gangs that ask for one domain, each with the numbers of the pod sets that carry it."""
    found: defaultdict[DomainTerm, list[int]] = defaultdict(list)
    for number, pods in enumerate(problem.pod_sets):
        if pods.gang is not None and pods.count and pods.spec.pod_affinity and not pods.spec.unschedulable:
            for term in one_domain_terms(pods.spec):
                found[term].append(number)
    return dict(found)


def wished_domains(problem: Problem) -> dict[PreferredDomain, list[int]]:
    """Return the wishes to be in few domains, each with the numbers of the pod sets that have it."""
    found: defaultdict[PreferredDomain, list[int]] = defaultdict(list)
    for number, pods in enumerate(problem.pod_sets):
        if pods.count and not pods.spec.unschedulable:
            for wish in pods.spec.preferred_domains:
                found[wish].append(number)
    return dict(found)


def name_of(domain: str) -> str:
    """Return what people call a domain, of its label's value or of what stands for it."""
    group, new, _ = domain.rpartition(_NEW)
    return f"(new of {group})" if new else domain


def _new_domain(group: NodeGroup, new: NewDomains, number: int, room: int) -> NodeGroup:
    """Return the group as it is to nodes that are ordered for one domain."""
    name = f"{group.id}{_NEW}{number}"
    size, labels = min(room, new.most_nodes), group.labels_in(name)
    return replace(group, id=name, labels=labels, new_domains=None, min_size=0, target_size=0, max_size=size)


def with_new_domains(problem: Problem, keys: Iterable[str], most: int) -> Problem:
    """Return the problem with the new domains that its groups can begin, up to `most` of each, as groups of their own
    (`folded` is the inverse for plans). Those over none of the keys stay as they are."""
    asked = set(keys)
    groups: list[NodeGroup] = []
    copies: dict[str, frozenset[str]] = {}
    limits: list[Limit] = []
    for group in problem.node_groups:
        groups.append(group)
        room, new = group.max_size - group.target_size, group.new_domains
        if room <= 0 or new is None or asked.isdisjoint(new.keys):
            continue
        numbers = range(1, min(most, room, MOST_NEW_DOMAINS) + 1)
        mine = [_new_domain(group, new, number, room) for number in numbers]
        groups += mine
        copies[group.id] = frozenset(each.id for each in mine)
        limits.append(Limit(f"the maximum size of {group.id}", {NODES: room}, {}, copies[group.id] | {group.id}))
    if not copies:
        return problem
    known = (
        each
        if each.node_groups is None
        else replace(
            each,
            node_groups=each.node_groups.union(
                *(ids for group_id, ids in copies.items() if group_id in each.node_groups)
            ),
        )
        for each in problem.limits
    )
    return replace(problem, node_groups=tuple(groups), limits=(*known, *limits))


def folded(problem: Problem, plan: Plan) -> Plan:
    """Return a plan of the problem with its new domains as one of the problem itself."""
    known = {group.id for group in problem.node_groups}

    def of(nodes: PlannedNodes) -> PlannedNodes:
        group, _, domain = nodes.node_group.rpartition(_NEW)
        return nodes if nodes.node_group in known else replace(nodes, node_group=group, domain=domain)

    nodes = tuple(map(of, plan.nodes))
    deltas = Counter[str]()
    for each in nodes:
        deltas[each.node_group] += each.count
    increments = tuple(NodeGroupIncrease(group, delta) for group, delta in sorted(deltas.items()))
    return replace(plan, nodes=nodes, increments=increments, candidates=tuple(map(of, plan.candidates)))
