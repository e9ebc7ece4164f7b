"""From a fractional plan straight to an integral one: nodes are filled pattern by pattern (`packing_kernel`). The work
grows with the number of patterns, which is at most a small multiple of the number of specs, never with the number of
pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from solver.columns.patterns import Pattern
from solver.compiled import Kernel
from solver.integral.packing_kernel import Opened, Shapes, Stock, open_best, open_each
from solver.reduction.reduced import Bools, Floats, Ints, Kind, Reduced
from solver.relaxation.merged import Fluid

_FULL = 0.9
"""Nodes of the fractional plan are opened while their pods are worth this share of the price; what is left then is
packed on whichever kind suits it best."""
_LEAST_WEIGHT = 0.05
"""Of a resource that costs nothing, beside the dearest one, when pods are fitted to what is free."""
_PATTERNS_AT_ONCE = 4096

_Saved = tuple[Ints, Ints, Ints, dict[Pattern, int]]


class Packing:
    """An integral plan as it grows."""

    def __init__(self, reduced: Reduced, node_cost: Floats, values: Floats) -> None:
        """`values` per spec, positive: what serving a pod is worth."""
        self._reduced, self._cost = reduced, node_cost
        self.left = reduced.wanted.copy()
        self._room = np.array([kind.most for kind in reduced.kinds], dtype=np.int64)
        self._allowed = np.array(reduced.limits, dtype=np.int64)
        self._shapes = _shapes(reduced, node_cost, values)
        self._uses = [[(row, use) for row, use in enumerate(kind.use) if use > 0] for kind in reduced.kinds]
        self.nodes: dict[Pattern, int] = {}

    def open_all(self, kinds: Ints, nodes: Ints) -> None:
        """Open that many nodes of each kind, filled with the pods that are left."""
        nodes = np.minimum(nodes, self._room[kinds])
        self._each(kinds, np.full(len(kinds), -1.0), nodes, np.zeros_like(self.left))

    def oblige(self, kinds: Sequence[Kind]) -> None:
        """Open the nodes that must be opened in any case, empty where no pod is left for them."""
        least = np.array([kind.least for kind in kinds], dtype=np.int64)
        index = np.array([kind.index for kind in kinds], dtype=np.int64)
        before = self._room[index]
        self.open_all(index, least)
        for kind, short in zip(kinds, (least - before + self._room[index]).tolist(), strict=True):
            if short > 0:
                self.nodes[Pattern(kind.index, ())] = short
                self._room[kind.index] -= short
                self._allowed -= self._reduced.use[kind.index] * short

    def take(self, nodes: Ints, pods: Ints) -> None:
        """Open nodes (per kind) with pods (per spec) for which there is room."""
        self.left -= pods
        self._room -= nodes
        self._allowed -= nodes @ self._reduced.use

    def holds(self, nodes: Ints, pods: Ints) -> tuple[Bools, Bools]:
        """Return, for nodes per kind with pods per spec, which kinds and which specs there are enough of."""
        beyond = nodes @ self._reduced.use > self._allowed
        return (nodes <= self._room) & ~(self._reduced.use[:, beyond] > 0).any(axis=1), pods <= self.left

    def repeat(self, nodes: Mapping[Pattern, int]) -> None:
        """Open nodes known from before, as far as there are pods for all of each."""
        left, room, allowed = self.left.tolist(), self._room.tolist(), self._allowed.tolist()
        for pattern, count in nodes.items():
            kind, use = pattern.kind, self._uses[pattern.kind]
            copies = min(count, room[kind], *[left[spec] // pods for spec, pods in pattern.pods])
            copies = min([copies, *[allowed[row] // need for row, need in use]])
            if copies > 0:
                self.nodes[pattern] = self.nodes.get(pattern, 0) + copies
                room[kind] -= copies
                for spec, pods in pattern.pods:
                    left[spec] -= pods * copies
                for row, need in use:
                    allowed[row] -= need * copies
        self.left[:], self._room[:], self._allowed[:] = left, room, allowed

    def follow(self, fluid: Fluid) -> None:
        """Open nodes of a fractional plan, the most expensive kinds first, while they can be filled with nearly what
        they have there."""
        shares = np.diff(np.round(np.cumsum(fluid.placed, axis=0)), axis=0, prepend=0).astype(np.int64)
        for position in np.argsort(-self._cost[fluid.kinds], kind="stable").tolist():
            kind = fluid.kinds[position : position + 1]
            priced = fluid.prices[position] * self._reduced.free[kind[0]]
            self._shapes.weight[kind[0]] *= _LEAST_WEIGHT + priced / max(priced.max(), 1e-9)
            mine = np.minimum(shares[position], self.left)
            self._each(kind, _FULL * self._cost[kind], self._room[kind], mine)

    def finish(self, kinds: Ints, ratio: Floats) -> None:
        """Serve what is left, on whichever kind suits best; `ratio` is an upper bound on each kind's worth over
        cost."""
        self._best(kinds, np.maximum(ratio, 1e-9), np.zeros_like(self.left))

    def serve(self, kinds: Ints, mine: Ints) -> bool:
        """Open nodes for these pods (per spec, of those that are left), filled up with others; return whether all are
        served."""
        mine = np.minimum(mine, self.left)
        if mine.any():
            self._best(kinds, np.full(len(kinds), np.inf), mine)
        return not mine.any()

    def save(self) -> _Saved:
        return self.left.copy(), self._room.copy(), self._allowed.copy(), dict(self.nodes)

    def restore(self, saved: _Saved) -> None:
        self.left, self._room, self._allowed, self.nodes = saved

    def _best(self, kinds: Ints, ratio: Floats, mine: Ints) -> None:
        only_mine = mine.any()
        while kinds.size:
            opened = self._buffers()
            found = open_best(self._shapes, self._stock(mine), kinds, ratio, opened)
            self._keep(found, opened)
            if found == 0 or not self.left.any() or ratio.max() <= 0 or (only_mine and not mine.any()):
                break

    def _each(self, kinds: Ints, enough: Floats, nodes: Ints, mine: Ints) -> None:
        nodes = nodes.copy()
        while kinds.size:
            opened = self._buffers()
            found, done = open_each(self._shapes, self._stock(mine), kinds, enough, nodes, opened)
            self._keep(found, opened)
            if done < len(kinds):  # the arrays were full in the middle of a kind
                nodes[done] -= int(opened.copies[:found][opened.kind[:found] == kinds[done]].sum())
            kinds, enough, nodes = kinds[done:], enough[done:], nodes[done:]

    def _stock(self, mine: Ints) -> Stock:
        return Stock(self.left, mine, self._room, self._allowed)

    def _buffers(self) -> Opened:
        patterns = (np.zeros(_PATTERNS_AT_ONCE, dtype=np.int64) for _ in range(3))
        entries = 8 * _PATTERNS_AT_ONCE + 2 * len(self.left)
        return Opened(*patterns, *(np.zeros(entries, dtype=np.int64) for _ in range(2)))

    def _keep(self, found: int, opened: Opened) -> None:
        used = int(opened.ends[found - 1]) if found else 0
        entries = list(zip(opened.specs[:used].tolist(), opened.pods[:used].tolist(), strict=True))
        start = 0
        patterns = (opened.kind[:found], opened.copies[:found], opened.ends[:found])
        for kind, copies, end in zip(*(each.tolist() for each in patterns), strict=True):
            pattern = Pattern(kind, tuple(sorted(entries[start:end])))
            self.nodes[pattern] = self.nodes.get(pattern, 0) + copies
            start = end


def _shapes(reduced: Reduced, node_cost: Floats, values: Floats) -> Shapes:
    by_row: list[list[tuple[int, bool, int]]] = [[] for _ in reduced.rows]
    for index, exclusion in enumerate(reduced.exclusions):
        counted = dict(exclusion.counted)
        for row in {*exclusion.carriers, *counted}:
            by_row[row].append((index, row in exclusion.carriers, counted.get(row, 0)))
    links = [link for of_row in by_row for link in of_row]
    exclusions, carries, counts = zip(*links, strict=True) if links else ((), (), ())
    free = reduced.free.astype(np.float64)
    return Shapes(
        requests=reduced.requests,
        caps=reduced.caps,
        values=values,
        fits=reduced.fits,
        free=reduced.free,
        weight=np.where(free > 0, 1.0 / np.maximum(free, 1.0) ** 2, 0.0),
        cost=node_cost,
        use=reduced.use,
        spare=reduced.spare,
        first_link=np.cumsum([0, *map(len, by_row)]),
        exclusion=np.array(exclusions, dtype=np.int64),
        carries=np.array(carries, dtype=np.bool_),
        counts=np.array(counts, dtype=np.int64),
    )


def examples() -> Iterator[tuple[Kernel[..., Any], tuple[Any, ...]]]:
    """What kernels are compiled for."""
    one, none, fits = np.ones(1, dtype=np.int64), np.zeros(0, dtype=np.int64), np.ones((1, 1), dtype=np.bool_)
    table, empty = np.ones((1, 1), dtype=np.int64), np.zeros((1, 0), dtype=np.int64)
    value, weight, zero = np.ones(1), np.ones((1, 1)), np.zeros(1, dtype=np.int64)
    links = (np.zeros(2, dtype=np.int64), none, np.zeros(0, dtype=np.bool_), none)
    shapes = Shapes(table, one, value, fits, table, weight, value, empty, empty, *links)
    opened = Opened(*(np.zeros(4, dtype=np.int64) for _ in range(5)))
    stock = Stock(one, one, one, none)
    yield open_each, (shapes, stock, zero, value, one, opened)
    yield open_best, (shapes, stock, zero, value, opened)
