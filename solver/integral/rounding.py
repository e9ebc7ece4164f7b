"""From a fractional plan to an integral one by rounding: of each column as many nodes as the plan has, one more or one
fewer, and what that leaves is packed (`packing`), as in Wäscher and Gau, Heuristics for the integer one-dimensional
cutting stock problem (1996). Which columns to round up is sought by a local search: a trial takes a millisecond or two.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from solver.columns.pool import Pool, Relaxation, Weighting
from solver.integral import greedy
from solver.integral.master import Selection
from solver.integral.packing import Packing
from solver.integral.wide import at_least
from solver.model.budget import RunningBudget
from solver.reduction.reduced import Ints

_THRESHOLDS = np.linspace(0.3, 1.0, 15)
"""Fractions of a node from which on all columns are rounded up, to begin with."""
_HALF = 0.5
"""The first of them, and the only one where there is no time."""
_MOST_CHANGES = 3
"""Columns that a trial rounds otherwise."""
_FRACTIONAL = 0.85
"""Of the changes, those of columns that the plan has in fractions; the others are of any."""
_PATIENCE = 1000
"""Trials without a gain after which the search ends."""
_SECONDS_PER_TRIAL = 2e-3
"""What a trial is charged under a deterministic budget."""
_NEARLY = 1e-6
_ANY_RATIO = np.inf
"""Worth over cost, of kinds of which nothing is known."""


def rounded(pool: Pool, found: Relaxation, weights: Weighting, budget: RunningBudget, fraction: float) -> Selection:
    """Return the best plan found within the first `fraction` of the budget. Adds columns: those that the rest is packed
    into."""
    search = _Rounding(pool, found, weights)
    random = np.random.default_rng(1)
    best = search.whole + (search.share > _HALF)
    cost = search.cost(best)
    trials, last_gain = 1, 0
    least = found.objective * (1 + _NEARLY)
    while cost > least and budget.left_seconds(fraction) > 0 and trials - last_gain < _PATIENCE:
        if trials <= len(_THRESHOLDS):
            other = search.whole + (search.share > _THRESHOLDS[-trials])
        else:
            other = search.changed(best, random)
        found_cost = search.cost(other)
        budget.charge(_SECONDS_PER_TRIAL)
        if found_cost < cost:
            last_gain = trials
        if found_cost <= cost:
            best, cost = other, found_cost
        trials += 1
    return search.selection(best)


class _Rounding:
    """The fractional plan, and what rounding it in one way or another costs."""

    def __init__(self, pool: Pool, found: Relaxation, weights: Weighting) -> None:
        self._pool, self._weights, reduced = pool, weights, pool.reduced
        self._kinds, self._held = pool.kinds(), pool.entries()
        self._cost = weights.node_cost[self._kinds]
        nodes = np.zeros(len(pool.patterns))
        nodes[: len(found.nodes)] = found.nodes
        self.whole = np.floor(nodes + _NEARLY).astype(np.int64)
        self.share = nodes - self.whole
        self._fractional = np.flatnonzero(self.share > _NEARLY)
        self._used = np.flatnonzero(nodes > _NEARLY)
        self._new = np.unique(self._kinds[~reduced.existing[self._kinds]])
        self._standing = np.array([kind.index for kind in reduced.existing_kinds], dtype=np.int64)
        self._nodes = np.array([kind.most for kind in reduced.existing_kinds], dtype=np.int64)
        self._obliged = [kind for kind in reduced.kinds if kind.least]
        self._unserved = np.zeros(len(reduced.rows))
        for demand in reduced.live:
            self._unserved[demand.row] = max(self._unserved[demand.row], weights.unserved_cost[demand.index])
        values = at_least(found.duals.pods, reduced, self._new, weights.node_cost)
        if any(found.unserved.values()):  # what is left of higher priorities is packed first
            values *= self._unserved
        self._packing = Packing(reduced, weights.node_cost, values)
        self._empty = self._packing.save()
        self._known: dict[bytes, float] = {}
        """What roundings cost that were tried, by the nodes of used columns: of few columns there are few."""

    def changed(self, nodes: Ints, random: np.random.Generator) -> Ints:
        """Return the same rounding but for a few columns."""
        other = nodes.copy()
        for _ in range(random.integers(1, _MOST_CHANGES + 1)):
            if self._fractional.size and random.random() < _FRACTIONAL:
                column = random.choice(self._fractional)
                other[column] = self.whole[column] + (other[column] <= self.whole[column])
            elif self._used.size:
                column = random.choice(self._used)
                other[column] = max(0, other[column] + random.choice((-1, 1)))
        return other

    def cost(self, nodes: Ints) -> float:
        """Return what a rounding costs with the rest packed, everything weighed into one."""
        tried = nodes[self._used].tobytes()
        if tried not in self._known:
            self._known[tried] = self._packed_cost(nodes)
        return self._known[tried]

    def _packed_cost(self, nodes: Ints) -> float:
        taken = self._pack(nodes)
        kinds = [pattern.kind for pattern in self._packing.nodes]
        copies = np.fromiter(self._packing.nodes.values(), dtype=np.float64, count=len(kinds))
        return float(self._cost @ taken + self._weights.node_cost[kinds] @ copies + self._unserved @ self._packing.left)

    def selection(self, nodes: Ints) -> Selection:
        """Return the plan of a rounding, whose columns are added to the pool."""
        taken, pool = self._pack(nodes), self._pool
        opened = Counter(self._packing.nodes)
        opened.update({pool.patterns[column]: int(taken[column]) for column in np.flatnonzero(taken).tolist()})
        pool.add(opened)
        count = {column: opened[pattern] for column, pattern in enumerate(pool.patterns) if pattern in opened}
        return greedy.whole_gangs(pool, self._packing.left, count)

    def _pack(self, nodes: Ints) -> Ints:
        """Open nodes per column as far as each is full, and pack the rest. Return those of columns of which all could
        be opened; the others are among the packing's own."""
        left, room, allowed, _ = self._empty
        packing, held, pool = self._packing, self._held, self._pool
        packing.restore((left.copy(), room.copy(), allowed.copy(), {}))
        packing.oblige(self._obliged)
        taken = np.zeros_like(nodes)
        for part in (np.minimum(nodes, self.whole), nodes):
            more = part - taken
            kinds, specs = packing.holds(self._opened(more), self._served(more))
            scarce = ~kinds[self._kinds]
            scarce[held.column[~specs[held.spec]]] = True
            more[scarce] = 0
            packing.take(self._opened(more), self._served(more))
            taken += more
        left_over = nodes - taken
        packing.repeat({pool.patterns[column]: int(left_over[column]) for column in np.flatnonzero(left_over).tolist()})
        if self._standing.size:
            packing.open_all(self._standing, self._nodes)
        packing.finish(self._new, np.full(len(self._new), _ANY_RATIO))
        return taken

    def _opened(self, nodes: Ints) -> Ints:
        return np.bincount(self._kinds, nodes, minlength=len(self._pool.reduced.kinds)).astype(np.int64)

    def _served(self, nodes: Ints) -> Ints:
        pods = self._held.pods * nodes[self._held.column]
        return np.bincount(self._held.spec, pods, minlength=len(self._pool.reduced.rows)).astype(np.int64)
