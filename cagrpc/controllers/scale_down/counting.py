"""Nodes that matter to pods that move by what they count only: no pod goes there, but constraints over zones, or any
domain but hostnames, see who runs there. Nodes that these constraints cannot tell apart stand as one. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cagrpc.cluster.state import ClusterNode
from cagrpc.controllers.scale_down.constraints import (
    Relevance,
    counts,
    domain_keys,
    full_at,
    has_partners,
    is_partner,
    keep_apart,
    keys_kept_out_of,
)
from cagrpc.controllers.scale_down.room import Room
from solver.model import HOSTNAME, Node, PodSpec, RunningPods
from solver.model.eligibility import node_label_keys, read_node_names
from solver.reduction.node_columns import Bools, Ints


@dataclass(frozen=True, slots=True)
class _SpecPlaces:
    """Where pods of one spec are, and how many on each of the nodes."""

    spec: PodSpec
    positions: Ints
    counts: Ints


class CountingNodes:
    """For one thread."""

    def __init__(self, room: Room, seen: Callable[[ClusterNode], Sequence[RunningPods]]) -> None:
        """`seen` returns a node's running pods as constraints see them."""
        self._room = room
        self._seen = seen
        self._closed: dict[PodSpec, Bools] = {}

    @cached_property
    def _running(self) -> tuple[_SpecPlaces, ...]:
        nodes = enumerate(self._room.nodes)
        return tuple(_by_spec((position, of.spec, of.count) for position, each in nodes for of in self._seen(each)))

    def closed_to(self, spec: PodSpec) -> Bools:
        """Return where pods that run keep such a pod out by constraints over hostnames, or host ports."""
        if spec not in self._closed:
            closed = self._nowhere()
            for each in self._running:
                if keep_apart(spec, each.spec):
                    closed[each.positions] = True
            for spread, full in full_at(spec):
                there = np.zeros(len(closed), dtype=np.int64)
                for each in self._running:
                    if counts(spread, spec, each.spec):
                        np.add.at(there, each.positions, each.counts)
                closed |= there >= full
            self._closed[spec] = closed
        return self._closed[spec]

    def partners_of(self, spec: PodSpec) -> Bools | None:
        """Return where pods are that its affinity over hostnames selects; None without one."""
        if not has_partners(spec):
            return None
        found = self._nowhere()
        for each in self._all():
            if is_partner(each.spec, spec):
                found[each.positions] = True
        return found

    def beside(self, targets: Collection[int], specs: Collection[PodSpec]) -> list[Node]:
        """Return nodes without room that stand for all but the targets, with the pods that matter to pods of these
        specs."""
        relevance = Relevance(specs)
        matter = [each for each in self._all() if relevance.of(each.spec)]
        keys = domain_keys(specs).union(*(keys_kept_out_of(each.spec) for each in matter))
        spread = any(each.topology_key != HOSTNAME for spec in specs for each in spec.topology_spread)
        if spread:  # an empty domain counts too, where such a pod may run
            keys |= node_label_keys(specs)
        kinds, _ = self._room.columns.alike(sorted(keys), names=spread and read_node_names(specs))
        others = self._room.there.copy()
        others[list(targets)] = False
        running: dict[int, list[RunningPods]] = defaultdict(list)
        for each in matter:
            mine = others[each.positions]
            sums = np.bincount(kinds[each.positions[mine]], weights=each.counts[mine])
            for kind in np.flatnonzero(sums).tolist():
                running[kind].append(RunningPods(each.spec, int(sums[kind])))
        positions = np.flatnonzero(others)
        present, first = np.unique(kinds[positions], return_index=True)
        found = []
        for kind, position in zip(present.tolist(), positions[first].tolist(), strict=True):
            if spread or kind in running:
                node = self._room.nodes[position].node
                found.append(Node(node.name, {}, node.labels, node.taints, tuple(running[kind])))
        return found

    def _all(self) -> Iterator[_SpecPlaces]:
        """Yield all pods, those that run, then those that are assumed."""
        yield from self._running
        yield from _by_spec(self._room.all_assumed())

    def _nowhere(self) -> Bools:
        return np.zeros(len(self._room.nodes), dtype=bool)


def _by_spec(pods: Iterable[tuple[int, PodSpec, int]]) -> Iterator[_SpecPlaces]:
    found: dict[int, tuple[PodSpec, list[int], list[int]]] = {}  # equal ones are mostly the same object
    for position, spec, count in pods:
        _, positions, counts = found.setdefault(id(spec), (spec, [], []))
        positions.append(position)
        counts.append(count)
    for spec, positions, counts in found.values():
        yield _SpecPlaces(spec, np.array(positions, dtype=np.int64), np.array(counts, dtype=np.int64))
