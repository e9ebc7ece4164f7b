"""Of many nodes that stand, those that a few pods can need, so that planning ten pods takes as long in a large cluster
as in a small one.

Why nothing is lost. Of nodes that a pod's rules cannot tell apart, as many with room are kept as there are pods. In any
plan a pod on a node that is not kept can go to one of these: at most one fewer than that are taken by others, and one
that is not taken has room, lets the pod in, and is in the same domains. Its pods may so be moved one by one until all
are on nodes that are kept. Nodes with running pods that matter to any of the pods are all kept, and so is one of every
kind of node that topology spread counts as a domain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from solver.model import CPU, HOSTNAME, PODS, HostPort, Node, PodSpec, Problem
from solver.model.eligibility import node_label_keys, ports_collide, read_node_names
from solver.reduction.node_columns import Bools, Ints, NodeColumns, open_where
from solver.reduction.selecting import PodsByLabel
from solver.reduction.terms import RunningPodIndex, Sort, Term, is_host, variants

MANY = 512
"""Below it looking for nodes to leave out takes as long as planning with them."""


def with_enough_nodes(problem: Problem, many: int = MANY) -> Problem:
    """Return the problem with the nodes that its pods can need: the optimum is the same, stage by stage. It is returned
    as it is where it has fewer than `many` nodes, where pods are many or need the company of others on their node, and
    where claims on devices decide."""
    specs = tuple(dict.fromkeys(each.spec for each in problem.pod_sets if each.count and not each.spec.unschedulable))
    pods = sum(each.count for each in problem.pod_sets)
    if len(problem.nodes) < many or 4 * pods > len(problem.nodes) or any(spec.claims for spec in specs):
        return problem
    wishes = [_Wish(spec) for spec in specs]
    if any(term.sort is Sort.AFFINITY and is_host(term) for each in wishes for term in each.terms):
        return problem
    kept = _kept(sorted(problem.nodes, key=lambda node: node.name), wishes, pods)
    if 2 * len(kept) > len(problem.nodes):
        return problem
    return replace(problem, nodes=tuple(kept))


class _Wish:
    """What pods of a spec ask for with all their preferences."""

    def __init__(self, spec: PodSpec) -> None:
        wish = variants(spec, {}, soft_taints=False)[0]
        self.spec, self.terms = spec, wish.terms
        self.labels = node_label_keys([wish.spec])
        """Of nodes, that decide where such a pod may be, or would rather be."""
        self.names = read_node_names([wish.spec])

    @property
    def counts_domains(self) -> bool:
        return any(term.sort is Sort.SPREAD and not is_host(term) for term in self.terms)


def _kept(nodes: Sequence[Node], wishes: Sequence[_Wish], pods: int) -> list[Node]:
    columns = NodeColumns(nodes)
    matter, keys = _mattering(nodes, wishes)
    kept = matter.copy()
    tightest_first = np.argsort(columns.free(CPU), kind="stable")
    for each in wishes:
        if 2 * np.count_nonzero(kept) > len(nodes):
            break  # too many to be worth it
        kinds, first = columns.alike(each.labels | keys, names=each.names)
        if each.counts_domains:
            kept[first] = True
        open_to = columns.admits(each.spec) & ~matter
        for resource, amount in (*each.spec.requests, (PODS, 1)):
            open_to &= open_where(columns.free(resource), amount)
        kept[_first_of_each(kinds, tightest_first[open_to[tightest_first]], pods)] = True
    return [nodes[position] for position in np.flatnonzero(kept).tolist()]


def _first_of_each(kinds: Ints, positions: Ints, most: int) -> Ints:
    """Return of the positions of each kind the first so many."""
    together = positions[np.argsort(kinds[positions], kind="stable")]
    _, begins, counts = np.unique(kinds[together], return_index=True, return_counts=True)
    return together[np.arange(len(together)) - np.repeat(begins, counts) < most]


def _mattering(nodes: Sequence[Node], wishes: Sequence[_Wish]) -> tuple[Bools, set[str]]:
    """Return where pods run that constraints of the pods count, or that keep some of them away, and the topology keys
    of all these constraints but hostnames."""
    running = RunningPodIndex([node.running for node in nodes])
    matter = np.zeros(len(nodes), dtype=bool)
    specs = [each.spec for each in wishes]
    waiting = PodsByLabel(enumerate(specs))
    terms: set[Term] = {term for each in wishes for term in each.terms}
    for term in terms:
        matter[list(running.counted(term))] = True
    for guard, carriers in running.guards().items():
        if waiting.mask(guard.selector):
            terms.add(guard)
            matter[list(carriers)] = True
    ports: dict[tuple[int, str], set[HostPort]] = defaultdict(set)
    for port in (port for spec in specs for port in spec.host_ports):
        ports[port.port, port.protocol].add(port)
    for other, where in running.specs().items() if ports else ():
        if any(
            ports_collide(mine, port) for port in other.host_ports for mine in ports.get((port.port, port.protocol), ())
        ):
            matter[list(where)] = True
    return matter, {term.key for term in terms} - {HOSTNAME}
