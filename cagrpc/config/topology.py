"""From what a configuration says of topology domains to node groups: one for each domain that is known, with its labels
and a limit for what it has room for, and for nodes that come in domains of their own what these share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cagrpc.config.schema.provisioners import TopologyDomainForm, TopologyForm
from solver.model import NODES, UNLIMITED_SIZE, Labels, Limit, NewDomains, NodeGroup


def in_domains(
    groups: Sequence[NodeGroup], form: TopologyForm | None, place: str, problems: list[str]
) -> tuple[tuple[NodeGroup, ...], tuple[Limit, ...]]:
    """Return the groups in their topology domains, and the limits over these. Adds to `problems` what contradicts."""
    if form is None:
        return tuple(groups), ()
    problems += _contradictions(groups, form, place)
    groups = [replace(each, shared_fate=form.shared_fate or "", spares=form.spares) for each in groups]
    if form.new_domains is not None:
        most = form.new_domains.max_nodes
        new = NewDomains(tuple(form.new_domains.keys), UNLIMITED_SIZE if most is None else most)
        return tuple(replace(each, new_domains=new) for each in groups), ()
    found: list[NodeGroup] = []
    limits: list[Limit] = []
    within: defaultdict[str, set[str]] = defaultdict(set)
    for group in groups:
        mine = []
        for path, labels, most in _leaves(form.domains, (), {}):
            each = replace(
                group,
                id=f"{group.id}/{'/'.join(path)}",
                labels={**group.labels, **labels},
                max_size=group.max_size if most is None else min(group.max_size, most),
            )
            mine.append(each)
            for depth in range(len(path)):
                within["/".join(path[: depth + 1])].add(each.id)
        found += mine
        if group.max_size < UNLIMITED_SIZE:
            ids = frozenset(each.id for each in mine)
            limits.append(Limit(f"max_size of {group.id}", {NODES: group.max_size}, node_groups=ids))
    for path, most in _sizes(form.domains, ()):
        name = "/".join(path)
        limits.append(Limit(f"topology domain {name}", {NODES: most}, node_groups=frozenset(within[name])))
    return tuple(found), tuple(limits)


def _contradictions(groups: Sequence[NodeGroup], form: TopologyForm, place: str) -> Iterator[str]:
    for group in groups:
        keys = {*form.keys()} & group.labels.keys()
        if keys:
            yield f'{place}: node group "{group.id}" has the label {min(keys)}, and so does its topology; take one out'
        if group.min_size and form.domains:
            yield (
                f'{place}: node group "{group.id}" has min_size {group.min_size}, and nothing says in which domain;'
                " write a node group for each domain instead"
            )


def _leaves(
    domains: Sequence[TopologyDomainForm], path: tuple[str, ...], labels: Labels
) -> Iterator[tuple[tuple[str, ...], Labels, int | None]]:
    """Yield the innermost domains: the values that lead to them, their labels, and what they have room for."""
    for each in domains:
        here, mine = (*path, ",".join(each.labels.values())), {**labels, **each.labels}
        if each.domains:
            yield from _leaves(each.domains, here, mine)
        else:
            yield here, mine, each.max_nodes


def _sizes(domains: Sequence[TopologyDomainForm], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the domains of bounded size."""
    for each in domains:
        here = (*path, ",".join(each.labels.values()))
        if each.max_nodes is not None:
            yield here, each.max_nodes
        yield from _sizes(each.domains, here)
