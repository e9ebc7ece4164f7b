"""Exact pricing: is there a pattern worth more than its node costs? Compiled, since this question is asked thousands of
times a second. Says nothing of where pod values come from; `columns` asks, `search` decides when.

For one kind this is a bounded knapsack in several dimensions. Three steps, each only where the one before leaves the
question open (after Kellerer, Pferschy and Pisinger, Knapsack Problems, chapters 9 and 10):

1. Lagrangian multipliers for all resources, by a subgradient method started from the last answer: an upper bound in
   microseconds, which answers "no" for most kinds.
2. A table over one resource in buckets and, where there is one that is counted in a few pieces (GPUs), over that one
   exactly; the others stay relaxed. A far tighter bound, for every remainder of the node at once.
3. Depth-first search under the table's bound, for several strengths of the relaxed multipliers: which one finds the
   best pattern early cannot be known beforehand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solver.compiled import compiled
from solver.patterns import Pattern, pattern_of
from solver.reduce import Bools, Floats, Ints, Reduced, most_per_node

_FEW_PIECES = 16
"""A resource of which a node has at most so many is kept exact in the table."""
_FEW = 3
"""Up to so many pods of a spec, the table counts them exactly."""
_STATES = 2000
"""Of the table, for each number of items left."""
_MOST_ITEMS = 200
"""Specs looked at for one node: the best by value for their size. More would not fit the table in the time."""
_STRENGTHS = (1.0, 0.75, 0.5)
_ROUNDING = 1e-9


@compiled
def _multipliers(  # noqa: C901, PLR0912 - flat for speed
    requests: Ints, free: Ints, values: Floats, most: Ints, start: Floats, enough: float, rounds: int
) -> tuple[float, Floats]:
    """An upper bound on what a node can be worth, and the multipliers that give it; stops once it is below `enough`."""
    items, resources = requests.shape
    current, best, kept = start.copy(), 1e300, start.copy()
    slope = np.empty(resources)
    step, fails = 0.5, 0
    for _ in range(rounds):
        bound = 0.0
        for r in range(resources):
            bound += current[r] * free[r]
            slope[r] = free[r]
        for j in range(items):
            profit = values[j]
            for r in range(resources):
                profit -= current[r] * requests[j, r]
            if profit > 0:
                bound += most[j] * profit
                for r in range(resources):
                    slope[r] -= most[j] * requests[j, r]
        if bound < best * (1 - 1e-6):
            best, fails = bound, 0
            kept[:] = current
            if best <= enough:
                break
        else:
            fails += 1
            if fails >= 8:
                step, fails = step * 0.5, 0
                current[:] = kept
                if step < 1e-4:
                    break
                continue
        norm = 0.0
        for r in range(resources):
            if free[r] > 0:
                norm += (slope[r] / free[r]) ** 2
        if norm < 1e-18:
            break
        length = step * 0.2 * best / norm
        for r in range(resources):
            if free[r] > 0:
                current[r] = max(0.0, current[r] - length * slope[r] / (free[r] * free[r]))
    return best, kept


@compiled
def _table(
    requests: Ints, profits: Floats, most: Ints, few: int, pieces: int, main: int, buckets: int, unit: int
) -> Floats:
    """For every suffix of the items and every remainder (pieces, buckets): the most that profits can add. Sizes are
    rounded down, so that the bound holds."""
    items, width = len(profits), buckets + 1
    states = (pieces + 1) * width
    table = np.zeros((items + 1, states))
    for j in range(items - 1, -1, -1):
        profit = profits[j]
        need = requests[j, few] if few >= 0 else 0
        size = requests[j, main] // unit
        gain = 0.0
        if profit > 0 and need == 0 and size == 0:
            gain = most[j] * profit
        for state in range(states):
            table[j, state] = table[j + 1, state] + gain
        if profit <= 0 or (need == 0 and size == 0):
            continue
        for piece in range(need, pieces + 1):
            for bucket in range(size, width):
                best = table[j, piece * width + bucket]
                if most[j] > _FEW:  # as often as it fits: one step instead of many, and still a bound
                    value = table[j, (piece - need) * width + bucket - size] + profit
                    if value > best:
                        table[j, piece * width + bucket] = value
                    continue
                count, left, room = 1, piece - need, bucket - size
                while count <= most[j] and left >= 0 and room >= 0:
                    value = table[j + 1, left * width + room] + count * profit
                    best = max(best, value)
                    count += 1
                    left -= need
                    room -= size
                table[j, piece * width + bucket] = best
    return table


@compiled
def _search(  # noqa: C901, PLR0912, PLR0915 - one loop, flat for speed: a backtracking search without recursion
    requests: Ints,
    free: Ints,
    values: Floats,
    profits: Floats,
    most: Ints,
    base: float,
    few: int,
    main: int,
    states: int,
    threshold: float,
    limit: int,
    found: Ints,
) -> tuple[float, float, bool]:
    """The best value above `threshold` (its pods are written to `found`), an upper bound, and whether it is proven.

    Items come in the order in which they are tried. `profits` are their values less what the relaxed resources (all
    but `few` and `main`) charge for them; `base` is what those resources are worth on an empty node.
    """
    items, resources = requests.shape
    pieces = free[few] if few >= 0 else 0
    grain = max(1, states // (pieces + 1))
    unit = max(1, (free[main] + grain - 1) // grain)
    buckets = free[main] // unit
    width = buckets + 1
    table = _table(requests, profits, most, few, pieces, main, buckets, unit)
    root = base + table[0, pieces * width + buckets]
    margin = _ROUNDING * (abs(threshold) + 1.0)
    best = threshold
    if root <= best + margin:
        return best, root, True
    count = np.zeros(items, np.int64)
    left = np.zeros((items + 1, resources), np.int64)
    for r in range(resources):
        left[0, r] = free[r]
    bound, value = np.zeros(items + 1), np.zeros(items + 1)
    bound[0] = base
    at, nodes, down = 0, 0, True
    while at >= 0:
        nodes += 1
        if nodes > limit:
            return best, root, False
        if down:
            if value[at] > best + margin:
                best = value[at]
                for j in range(items):
                    found[j] = count[j] if j < at else 0
            state = left[at, main] // unit
            if few >= 0:
                state += left[at, few] * width
            if at == items or bound[at] + table[at, state] <= best + margin:
                down = False
                at -= 1
                continue
            fits = most[at]
            for r in range(resources):
                if requests[at, r] > 0 and left[at, r] // requests[at, r] < fits:
                    fits = left[at, r] // requests[at, r]
            count[at] = fits
        elif count[at] == 0:
            at -= 1
            continue
        else:
            count[at] -= 1
        while True:
            for r in range(resources):
                left[at + 1, r] = left[at, r] - requests[at, r] * count[at]
            bound[at + 1] = bound[at] + profits[at] * count[at]
            state = left[at + 1, main] // unit
            if few >= 0:
                state += left[at + 1, few] * width
            if bound[at + 1] + table[at + 1, state] > best + margin:
                value[at + 1] = value[at] + values[at] * count[at]
                at += 1
                down = True
                break
            if count[at] == 0:
                at -= 1
                down = False
                break
            count[at] -= 1
            nodes += 1
    return best, best, True


@dataclass(frozen=True, slots=True)
class Offer:
    """The answer for one kind: the most valuable pattern found, if it is worth more than asked for; an upper bound on
    what any pattern is worth."""

    kind: int
    pattern: Pattern | None
    bound: float


class Pricer:
    """Prices the patterns of some kinds, over and over; keeps multipliers between calls."""

    def __init__(self, reduced: Reduced, active: Ints) -> None:
        self._reduced, self._active = reduced, deque(active.tolist())
        self._multipliers: dict[int, Floats] = {}
        self._most = dict(zip(self._active, most_per_node(reduced, active), strict=True))

    def offers(
        self, values: Floats, prices: Floats, share: float, limit: int, out_of_time: Callable[[], bool]
    ) -> list[Offer]:
        """Per active kind the best pattern worth more than `share` of its price (`prices` per kind), found within
        `limit` steps of search; of as many kinds as there is time for, other ones first the next time."""
        worthwhile = (values > 0) & (self._reduced.wanted > 0)
        offers = []
        for _ in range(len(self._active)):
            kind = self._active[0]
            offers.append(self._offer(kind, values, worthwhile, float(prices[kind]), share, limit))
            self._active.rotate(-1)
            if out_of_time():
                break
        return offers

    def _offer(self, kind: int, values: Floats, worthwhile: Bools, price: float, share: float, limit: int) -> Offer:
        reduced, free = self._reduced, self._reduced.free[kind]
        items = np.flatnonzero(reduced.fits[kind] & worthwhile)
        if not items.size:
            return Offer(kind, None, 0.0)
        rounds = 60
        if kind not in self._multipliers:
            rounds = 300
            self._multipliers[kind] = price * np.where(free > 0, 1.0 / np.maximum(free, 1), 0.0) / free.size
        need, worth, most = reduced.requests[items], values[items], self._most[kind][items]
        threshold = price * share
        bound, multipliers = _multipliers(need, free, worth, most, self._multipliers[kind], threshold, rounds)
        self._multipliers[kind] = multipliers
        if bound <= threshold:
            return Offer(kind, None, bound)
        few, main = _kept_exact(free, multipliers)
        best, proven = threshold, False
        pattern: Pattern | None = None
        for strength in _STRENGTHS:
            charged = multipliers * strength
            charged[main] = multipliers[main]
            order = np.argsort((need @ charged - worth) / worth, kind="stable")[:_MOST_ITEMS]
            relaxed = charged.copy()
            relaxed[[few, main] if few >= 0 else [main]] = 0.0
            profits = worth[order] - need[order] @ relaxed
            pods = np.zeros(len(order), dtype=np.int64)
            value, root, proven = _search(
                need[order], free, worth[order], profits, most[order], float(relaxed @ free), few, main,
                _STATES, best, limit, pods,
            )  # fmt: skip
            if value > best:
                best, pattern = value, pattern_of(kind, items[order], pods)
            if len(order) < len(items):
                proven = False
            else:
                bound = min(bound, root)
            if proven:
                bound = best
                break
        return Offer(kind, pattern, bound)


def _kept_exact(free: Ints, multipliers: Floats) -> tuple[int, int]:
    """The resource counted in few pieces, -1 where there is none, and the one that matters most of the others."""
    shares = multipliers * free
    pieces = np.flatnonzero((free > 0) & (free <= _FEW_PIECES) & (shares > 0))
    few = int(pieces[np.argmax(shares[pieces])]) if pieces.size else -1
    others = [r for r in np.argsort(-shares, kind="stable").tolist() if r != few]
    return (few, others[0]) if others else (-1, few)


def warm_up() -> None:
    """Compile (or load what an earlier process compiled), so that the first plan does not wait for it."""
    ones, units = np.ones(1), np.ones((1, 2), dtype=np.int64)
    free, most, found = np.full(2, 2, dtype=np.int64), np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    _multipliers(units, free, ones, most, np.ones(2), 0.0, 1)
    _search(units, free, ones, ones, most, 0.0, 0, 1, 4, 0.0, 10, found)
