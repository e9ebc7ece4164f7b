"""Nodes replaced together: their pods are packed anew, onto room that there is and onto new nodes, by filling one node
after the other (`solver.integral.balanced_kernel`). That takes milliseconds, so that there is time for all of a large
cluster. Plain pods of no gang only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

import numpy as np

from solver.consolidation.cluster import Cluster, Pods
from solver.consolidation.eligible import Domains, DomainSpread, Eligibility, NewNodeEligibility
from solver.integral import balanced_kernel as balanced
from solver.model import Limit, NodeGroup
from solver.reduction.reduced import Bools, Floats, Ints

_LEAST_VALUE = 0.05
"""Of what a pod's share of the cheapest node costs: what placing it is worth at least."""
_TIMES, _MOST_CHANGE = 5, 2.0
"""How often pods are packed, each time at what they cost the time before, and how much that may differ: what they are
worth in the whole cluster does not say which of them are hard to place here."""
_LEAST_WEIGHT = 0.05
"""Of a resource that costs nothing, beside the dearest one, when pods are fitted to what is free."""


@dataclass(frozen=True)
class PackedAnew:
    """Nodes that can go together, and where their pods go."""

    nodes: tuple[int, ...]
    placed: dict[int, Pods]
    """By node that stands."""
    opened: list[tuple[str, Pods]]
    """Of each new node its group, and its pods."""


@dataclass
class _PodRow:
    """Pods that are alike for whoever packs them."""

    example: int
    """One of their classes."""
    domains: Domains
    pods: Pods = field(default_factory=Counter)


class ManyForMany:
    """New nodes that may replace others, and what pods are worth on them."""

    def __init__(
        self,
        cluster: Cluster,
        eligibility: Eligibility,
        spread: DomainSpread,
        plain: Sequence[bool],
        open_to: Iterable[str] | None,
    ) -> None:
        """Groups `open_to` are of better weights than the nodes that go; None for those of the nodes' own weight."""
        self._cluster, self._eligibility, self._spread, self._plain = cluster, eligibility, spread, plain
        self._better = open_to is not None
        by_weight: dict[int, list[NodeGroup]] = defaultdict(list)
        for name in cluster.groups if open_to is None else open_to:
            by_weight[cluster.groups[name].weight].append(cluster.groups[name])
        self._offers = {weight: _Offers(cluster, groups) for weight, groups in sorted(by_weight.items(), reverse=True)}
        room = np.concatenate([offers.room for offers in self._offers.values()])
        micros = np.concatenate([offers.cost for offers in self._offers.values()])
        self._values = np.maximum(cluster.pod_worth, _LEAST_VALUE * _shares(cluster.requests, room, micros) + 1e-6)
        largest = np.maximum(room.max(axis=0), 1).astype(np.float64)
        worth = _worth_of_resources(cluster.requests / largest, self._values)
        self._weight = (_LEAST_WEIGHT + worth / max(float(worth.max()), 1e-9)) / largest**2
        self._worth = worth / largest
        """Of a unit of each resource: pods are worth no more than what they take."""

    def can_pack(self, node: int) -> bool:
        """Return whether all of the node's pods are such as are packed here."""
        pods = self._cluster.pods[node]
        return bool(pods) and all(self._plain[k] and self._spread.stay_in(k, node) is not None for k in pods)

    def found(self, nodes: Iterable[int], targets: Ints) -> PackedAnew | None:
        """Return those of the nodes, all of one weight, that may go together, and where their pods go: onto `targets`,
        nodes that stand, then onto new ones, all of the highest weight that has room for them. None where none has, or
        for no less than the nodes cost."""
        going = self._sized(nodes)
        rows = self._rows(going)
        for weight, offers in self._offers.items() if rows else ():
            if self._better or weight == self._cluster.weight_of(going[0]):
                found = self._packed(going, rows, targets, offers)
                if found is not None:
                    return found
        return None

    def _packed(
        self, going: Sequence[int], rows: Sequence[_PodRow], targets: Ints, offers: _Offers
    ) -> PackedAnew | None:
        cluster, examples = self._cluster, [row.example for row in rows]
        requests, wanted = cluster.requests[examples], np.array([row.pods.total() for row in rows], dtype=np.int64)
        targets = targets[(cluster.free[targets] >= requests.min(axis=0)).all(axis=1)]
        standing = balanced.Standing(cluster.free[targets], self._fits(rows, targets))
        kinds, groups = offers.kinds(rows)
        # To a better weight pods go at any price.
        most = np.inf if self._better else float(sum(map(cluster.micros_of, going)))
        values, least, best = self._values[examples], np.inf, None
        for _ in range(_TIMES):
            left, out = wanted.copy(), balanced.room_for(int(wanted.sum()))
            worth = self._worth * float((values / (requests @ self._worth)).max())
            now = kinds._replace(
                ratio=kinds.free @ worth / (kinds.cost + 1.0), room=kinds.room.copy(), allowed=kinds.allowed.copy()
            )
            opened, entries = balanced.fill(
                balanced.PodRows(requests, values, left), standing, now, self._weight, most, out
            )
            cost = float(kinds.cost[out.kind[:opened]].sum())
            if left.any():
                break
            if cost < least:
                least, best = cost, (opened, entries, out)
            values = _paid(values, kinds.cost, len(targets), opened, entries, out)
        return None if best is None else _written(going, rows, targets, groups, *best)

    def _sized(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes without those that keep their groups at their minimum sizes."""
        left, going = Counter(self._cluster.target), []
        for node in nodes:
            group = self._cluster.group_of[node]
            if left[group] > self._cluster.least[group]:
                left[group] -= 1
                going.append(node)
        return going

    def _rows(self, nodes: Iterable[int]) -> list[_PodRow]:
        rows: dict[object, _PodRow] = {}
        for node in nodes:
            for k, count in self._cluster.pods[node].items():
                domains = self._spread.stay_in(k, node)
                assert domains is not None  # as `can_pack` says
                key = self._cluster.requests[k].tobytes(), self._eligibility.part_of(k), domains
                rows.setdefault(key, _PodRow(k, domains)).pods[k] += count
        return list(rows.values())

    def _fits(self, rows: Sequence[_PodRow], targets: Ints) -> Bools:
        """Return targets x rows."""
        fits = np.zeros((len(targets), len(rows)), dtype=bool)
        for number, row in enumerate(rows):
            fits[:, number] = self._eligibility.of(row.example)[targets]
            if row.domains:
                fits[:, number] &= self._spread.nodes_in(row.domains)[targets]
        return fits


class _Offers:
    """New nodes of one weight, as the kernel is told of them: groups that no pods tell apart are one kind."""

    def __init__(self, cluster: Cluster, groups: Sequence[NodeGroup]) -> None:
        self._cluster, self._new = cluster, NewNodeEligibility(cluster, groups)
        self.room = self._new.room
        self.cost = np.array([float(cluster.micros[group.id]) for group in groups])
        self._limits = [(number, name) for number, limit in enumerate(cluster.problem.limits) for name in limit.maxima]
        use = [[_use(cluster.problem.limits[number], name, group) for number, name in self._limits] for group in groups]
        self._use = np.array(use, dtype=np.int64).reshape(len(groups), len(self._limits))
        self._same = [(self.room[i].tobytes(), self.cost[i], self._use[i].tobytes()) for i in range(len(groups))]

    def kinds(self, rows: Sequence[_PodRow]) -> tuple[balanced.NewNodeKinds, list[Iterator[str]]]:
        """Return the kinds as they are now, and per kind the group of each new node."""
        cluster, groups = self._cluster, self._new.groups
        fits = np.ascontiguousarray(np.array([self._new.take(row.example, row.domains) for row in rows]).T)
        room = np.array([max(0, each.max_size - cluster.target[each.id]) for each in groups], dtype=np.int64)
        members: dict[object, list[int]] = defaultdict(list)
        for index in range(len(groups)):
            members[self._same[index], fits[index].tobytes()].append(index)
        first = [each[0] for each in members.values()]
        names: list[Iterator[str]] = [
            chain.from_iterable(repeat(groups[index].id, int(room[index])) for index in each)
            for each in members.values()
        ]
        allowed = (
            max(0, cluster.problem.limits[number].maxima[name] - cluster.used[number].get(name, 0))
            for number, name in self._limits
        )
        kinds = balanced.NewNodeKinds(
            self.room[first],
            fits[first],
            self.cost[first],
            np.full(len(first), np.inf),
            np.array([room[each].sum() for each in members.values()], dtype=np.int64),
            self._use[first],
            np.array(list(allowed), dtype=np.int64),
        )
        return kinds, names


def _paid(values: Floats, cost: Floats, standing: int, opened: int, entries: int, out: balanced.Filled) -> Floats:
    """Return what pods cost on the new nodes, each its part of its node's price by its value."""
    new = np.flatnonzero(out.node[:entries] >= standing)
    node, row = out.node[new] - standing, out.row[new]
    parts = out.pods[new] * values[row]
    parts *= (cost[out.kind[:opened]] / np.maximum(np.bincount(node, parts, opened), 1e-9))[node]
    count = np.bincount(row, out.pods[new], len(values))
    paid = np.where(count > 0, np.bincount(row, parts, len(values)) / np.maximum(count, 1), values)
    return np.clip(paid, values / _MOST_CHANGE, values * _MOST_CHANGE)


def _written(
    going: Sequence[int],
    rows: Sequence[_PodRow],
    targets: Ints,
    groups: Sequence[Iterator[str]],
    opened: int,
    entries: int,
    out: balanced.Filled,
) -> PackedAnew:
    placed: dict[int, Pods] = defaultdict(Counter)
    filled: list[tuple[str, Pods]] = [(next(groups[kind]), Counter()) for kind in out.kind[:opened].tolist()]
    stock = [list(row.pods.items()) for row in rows]
    for node, row, count in zip(*(each[:entries].tolist() for each in (out.node, out.row, out.pods)), strict=True):
        onto = placed[int(targets[node])] if node < len(targets) else filled[node - len(targets)][1]
        onto.update(_taken(stock[row], count))
    return PackedAnew(tuple(sorted(going)), dict(placed), filled)


def _use(limit: Limit, resource: str, group: NodeGroup) -> int:
    """Return how much of a limit one node of the group takes."""
    bounded = limit.node_groups is None or group.id in limit.node_groups
    return group.counted_capacity.get(resource, 0) if bounded else 0


def _shares(requests: Ints, room: Ints, micros: Floats) -> Floats:
    """Return, per class, what its share of a node costs where that is least; 0 where it has no room on any."""
    found = np.full(len(requests), np.inf)
    for free, cost in zip(room, micros, strict=True):
        share = (requests / np.maximum(free, 1)).max(axis=1)
        np.minimum(found, np.where(share <= 1, share * cost, np.inf), out=found)
    return np.where(np.isfinite(found), found, 0.0)


def _worth_of_resources(taken: Floats, values: Floats) -> Floats:
    """Return what resources are worth so that no pod is worth more than what it takes of them, and hardly less."""
    worth = np.maximum(np.linalg.lstsq(taken, values, rcond=None)[0], 0.0)
    worth = np.maximum(worth, 1e-3 * worth.max(initial=1e-6))  # none nothing: some pods may take it alone
    scaled: Floats = worth * float((values / (taken @ worth)).max(initial=0.0))
    return scaled


def _taken(stock: list[tuple[int, int]], count: int) -> Pods:
    """Take so many pods out of the stock: classes with how many there are of each."""
    taken: Pods = Counter()
    while count:
        k, there = stock.pop()
        taken[k] = min(count, there)
        count -= taken[k]
        if there > taken[k]:
            stock.append((k, there - taken[k]))
    return taken
