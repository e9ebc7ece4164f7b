"""Patterns near others, compiled: pods of one node exchanged for others that are worth more. Plain arrays in and out.

A pattern that the relaxation uses is worth what its node costs. Those that pay for the next pod values are mostly an
exchange or two away from it, and found in a fraction of the time that a search from nothing takes (local search for
multidimensional knapsacks: Kellerer, Pferschy and Pisinger, Knapsack Problems, chapter 9).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from solver.columns.loops import assign, fits
from solver.compiled import Kernel, inner, kernel
from solver.reduction.reduced import Floats, Ints

_MOST_EXCHANGES = 50
_MOST_STEPS = 2_000_000
"""Exchanges of one pattern that are looked at: some milliseconds. With thousands of items there are billions."""
_ROUNDING = 1e-9


@inner
def _change(requests: Ints, item: int, pods: int, room: Ints) -> None:
    """Take the room of so many pods of an item; -1 takes none."""
    if item >= 0:
        for r in range(len(room)):
            room[r] -= pods * requests[item, r]


@inner
def _put(requests: Ints, found: Ints, left: Ints, item: int, pods: int) -> None:
    """Put so many pods of an item into the pattern; -1 puts none."""
    if item >= 0:
        found[item] += pods
    _change(requests, item, pods, left)


def _steps(requests: Ints, *others: Ints) -> int:
    """Return how many steps `exchange` takes where it gains a few times."""
    items, resources = requests.shape
    pairs = (int(np.count_nonzero(others[-1])) + 1) ** 2
    return int(min(_MOST_STEPS, 4 * pairs * items * items) * resources)


@kernel(_steps)
def exchange(  # noqa: C901, PLR0912 - flat for speed
    requests: Ints, free: Ints, values: Floats, most: Ints, order: Ints, found: Ints
) -> float:
    """Exchange one or two pods of a pattern for one or two others, always the exchange that gains most, until none
    gains; return what the pattern, which is changed in place, is worth then. `order` has the items by value, the most
    valuable first."""
    items = len(values)
    left, room, rest = free.copy(), free.copy(), free.copy()
    worth, steps = 0.0, 0
    for j in range(items):
        worth += values[j] * found[j]
        _change(requests, j, found[j], left)
    for _ in range(_MOST_EXCHANGES):
        gain, out, out_too, into, into_too = _ROUNDING * worth, -1, -1, -1, -1
        for a in range(-1, items):
            if a >= 0 and found[a] == 0:
                continue
            for b in range(a, items):
                if steps > _MOST_STEPS or (b >= 0 and found[b] < (2 if b == a else 1)):
                    continue
                given = (values[a] if a >= 0 else 0.0) + (values[b] if b >= 0 else 0.0)
                assign(left, room)
                _change(requests, a, -1, room)
                _change(requests, b, -1, room)
                for index in range(items):
                    c = order[index]
                    steps += 1
                    if steps > _MOST_STEPS or 2 * values[c] - given <= gain:
                        break
                    if c in (a, b) or found[c] == most[c] or not fits(requests, c, room):
                        continue
                    if values[c] - given > gain:
                        gain, out, out_too, into, into_too = values[c] - given, a, b, c, -1
                    assign(room, rest)
                    _change(requests, c, 1, rest)
                    for other in range(index, items):
                        steps += 1
                        d = order[other]
                        if values[c] + values[d] - given <= gain:
                            break
                        if d not in (a, b) and found[d] + (d == c) < most[d] and fits(requests, d, rest):
                            gain, out, out_too, into, into_too = values[c] + values[d] - given, a, b, c, d
        if into < 0:
            break
        worth += gain
        _put(requests, found, left, out, -1)
        _put(requests, found, left, out_too, -1)
        _put(requests, found, left, into, 1)
        _put(requests, found, left, into_too, 1)
    return worth


def examples() -> Iterator[tuple[Kernel[..., Any], tuple[Any, ...]]]:
    """What kernels are compiled for."""
    units, free, one = np.ones((1, 2), dtype=np.int64), np.full(2, 2, dtype=np.int64), np.ones(1, dtype=np.int64)
    yield exchange, (units, free, np.ones(1), one, np.zeros(1, dtype=np.int64), one)
