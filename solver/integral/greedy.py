"""A whole integral plan at once: the incumbent that later steps start from, and the result when there is no time for
them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np

from solver.columns.patterns import Pattern, fill
from solver.columns.pool import Pool, Weighting
from solver.integral.master import Selection
from solver.reduction.reduced import Bools, Floats, Ints, Reduced

_WASTE = 0.1
_KINDS_TRIED = 8
_SPECS_TRIED = 60


def select(
    pool: Pool,
    weights: Weighting,
    values: Floats,
    begun: Ints | None = None,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Selection:
    """Open nodes until nothing more can be served, or time is up: first `begun` (nodes per column), then repeatedly the
    column whose pods are worth most per cost, as often as it stays full. May add columns to the pool."""
    state = _State(pool, weights, np.maximum(values, 1e-6))
    state.force_least()
    if begun is not None:
        state.take(begun)
    while not out_of_time() and state.step():
        pass
    while not out_of_time() and state.extend() and state.step():
        while not out_of_time() and state.step():
            pass
    return whole_gangs(pool, state.left, state.nodes)


class _State:
    def __init__(self, pool: Pool, weights: Weighting, values: Floats) -> None:
        reduced = pool.reduced
        self.pool, self.values, self.cost = pool, values, weights.node_cost
        self.left = reduced.wanted.copy()
        self.room = np.array([kind.most for kind in reduced.kinds], dtype=np.int64)
        self.allowed = np.array(reduced.limits, dtype=np.int64)
        self.use = reduced.use
        self.nodes: defaultdict[int, int] = defaultdict(int)
        self._load()

    def _load(self) -> None:
        self.kinds, self._entries = self.pool.kinds(), self.pool.entries()

    def force_least(self) -> None:
        """Open nodes that must be opened in any case, with the pods they serve best."""
        for kind in self.pool.reduced.kinds:
            for _ in range(kind.least):
                columns = np.flatnonzero(self.kinds == kind.index)
                worth = self._worth()[columns]
                column = int(columns[int(np.argmax(worth))])
                short = kind.least - (kind.most - int(self.room[kind.index]))
                self._open(column, self._copies(column, short) if worth.max() > 0 else short)
                if kind.most - self.room[kind.index] >= kind.least:
                    break

    def take(self, nodes: Ints) -> None:
        for column in np.flatnonzero(nodes):
            self._open(int(column), int(min(nodes[column], self._most(int(column)))))

    def step(self) -> bool:
        """Open the best column as often as it stays full; return False when no column serves anything more."""
        worth = np.where(self._open_kinds()[self.kinds], self._worth(), 0.0)
        if not worth.size or worth.max() <= 0:
            return False
        column = int(np.argmax(worth / (self.cost[self.kinds] + 1.0)))
        self._open(column, self._copies(column, self._most(column)))
        return True

    def extend(self) -> bool:
        """Add, for pods that no column serves any more, columns of kinds that still have room: those that serve the
        most valuable of these pods at the least cost, filled up with the others. Return whether any is new."""
        reduced = self.pool.reduced
        wanting = np.flatnonzero(self.left)
        wanting = wanting[np.argsort(-self.values[wanting], kind="stable")]
        open_kinds = self._open_kinds()
        patterns: list[Pattern] = []
        for first in wanting.tolist():
            need = np.maximum(reduced.requests[first], 1)
            fit = np.where(reduced.requests[first] > 0, reduced.free // need, np.iinfo(np.int64).max).min(axis=1)
            usable = np.flatnonzero(open_kinds & reduced.fits[:, first])
            price = self.cost[usable] / np.minimum(fit[usable], self.left[first])
            for index in usable[np.argsort(price, kind="stable")[:_KINDS_TRIED]].tolist():
                kind = reduced.kinds[index]
                others = wanting[(wanting != first) & reduced.fits[index, wanting]][:_SPECS_TRIED]
                filled = fill(reduced, kind, np.concatenate([[first], others])[None, :], self.left)
                patterns.extend(pattern for pattern in filled if pattern.pods)
            if patterns:
                break
        added = self.pool.add(patterns)
        self._load()
        return added > 0

    def _worth(self) -> Floats:
        """Return the value per column of the remaining pods that would find room in it."""
        held = self._entries
        useful = np.minimum(held.pods, self.left[held.spec]) * self.values[held.spec]
        return np.asarray(np.bincount(held.column, weights=useful, minlength=len(self.kinds)), dtype=np.float64)

    def _held(self, column: int) -> tuple[Ints, Ints]:
        """Return the specs of the column, and the pods of each."""
        held = self._entries
        first, last = np.searchsorted(held.column, [column, column + 1])
        return held.spec[first:last], held.pods[first:last]

    def _open_kinds(self) -> Bools:
        return (self.room > 0) & (self.use <= self.allowed).all(axis=1)

    def _most(self, column: int) -> int:
        kind = self.kinds[column]
        use = self.use[kind]
        spare = self.allowed[use > 0] // use[use > 0]
        return int(min([self.room[kind], *spare.tolist()]))

    def _copies(self, column: int, most: int) -> int:
        """Return how often the column can be opened until a tenth of its present worth would go to waste."""
        specs, pods = self._held(column)
        useful = self.left[specs] > 0
        specs, pods = specs[useful], pods[useful]
        order = np.argsort(self.left[specs] // pods, kind="stable")
        worth = (np.minimum(pods, self.left[specs]) * self.values[specs])[order]
        within = np.cumsum(worth) > _WASTE * worth.sum()
        full = (self.left[specs] // pods)[order][within]
        return max(1, min(int(most), int(full[0])))

    def _open(self, column: int, count: int) -> None:
        if count <= 0:
            return
        kind = self.kinds[column]
        self.nodes[column] += count
        self.room[kind] -= count
        self.allowed -= self.use[kind] * count
        specs, pods = self._held(column)
        self.left[specs] = np.maximum(0, self.left[specs] - pods * count)


def whole_gangs(pool: Pool, left: Ints, opened: Mapping[int, int], lost: frozenset[str] = frozenset()) -> Selection:
    """Return the selection of `opened` nodes per column in which the pods `left` per spec are taken from the lowest
    priorities; a gang that cannot be whole is not served at all. Gangs known to be `lost` give way before anything
    else."""
    reduced = pool.reduced
    unserved = _missing(reduced, left, lost)
    broken = {d.gang for d in reduced.live if d.gang is not None and unserved[d.index]}
    for demand in reduced.live:
        if demand.gang in broken and demand.gang is not None:
            unserved[demand.index] = demand.count
    nodes = tuple(opened.get(column, 0) for column in range(len(pool.patterns)))
    return Selection(nodes, unserved)


def _missing(reduced: Reduced, left: Ints, lost: frozenset[str]) -> dict[int, int]:
    short = left.tolist()
    unserved = {}
    for demand in sorted(
        reduced.live, key=lambda d: (d.gang not in lost, not d.placeholder, d.priority, d.gang is not None)
    ):
        unserved[demand.index] = min(demand.count, short[demand.row])
        short[demand.row] -= unserved[demand.index]
    return unserved
