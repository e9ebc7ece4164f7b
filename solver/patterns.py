"""Node patterns: how many pods of each spec go onto one node of a kind. All maximal ones where they are few, good ones
for given pod values otherwise. Knows nothing of costs over many nodes; `columns` and `master` combine patterns.

A pattern is *maximal* when no further wanted pod fits. Since serving more than is wanted costs nothing, some optimal
plan uses maximal patterns only (surplus pods are dropped when the plan is written out).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from solver.reduce import Ints, Kind, Reduced

_LOOK_EVERY = 16
_MOST_SPECS = 200  # the enumeration descends once per spec


@dataclass(frozen=True, slots=True)
class Pattern:
    """Pods on one node of kind `kind`. Only what is there is written down: a node holds few of thousands of specs."""

    kind: int
    pods: tuple[tuple[int, int], ...]
    """(spec, pods), pods > 0, by spec."""

    @property
    def total(self) -> int:
        """Pods of all specs."""
        return sum(pods for _, pods in self.pods)


def pattern_of(kind: int, specs: Ints | Sequence[int], pods: Ints) -> Pattern:
    """`pods` per entry of `specs`, in any order, a spec at most once; zeros are left out."""
    used = np.flatnonzero(pods)
    rows, counts = np.asarray(specs)[used].tolist(), pods[used].tolist()
    return Pattern(kind, tuple(sorted(zip(rows, counts, strict=True))))


def enumerate_maximal(reduced: Reduced, most: int, kinds: Container[int]) -> list[Pattern] | None:
    """Every maximal pattern of the given usable kinds; None where there are more than `most` (or it takes too long to
    tell). With all of them the master problem is the problem itself, and its bound is a true bound."""
    found: list[Pattern] = []
    steps = [most * 4]
    if np.count_nonzero(reduced.wanted) > _MOST_SPECS:
        return None
    for kind in reduced.kinds:
        if kind.most == 0 or kind.index not in kinds:
            continue
        rows = _maximal_of(reduced, kind, most - len(found), steps)
        if rows is None:
            return None
        found.extend(rows)
    return found


def _maximal_of(reduced: Reduced, kind: Kind, most: int, steps: list[int]) -> list[Pattern] | None:
    specs = [s for s in range(len(reduced.specs)) if kind.fits[s] and reduced.wanted[s]]
    # Large pods first: the last spec is filled up in one step, so it should be the one with the most values.
    free = list(kind.free)
    share = [max(r / f for r, f in zip(reduced.requests[s].tolist(), free, strict=True) if f) for s in specs]
    specs = [s for _, s in sorted(zip(share, specs, strict=True), key=lambda pair: (-pair[0], pair[1]))]
    requests: list[list[int]] = [reduced.requests[s].tolist() for s in specs]
    wanted = [int(reduced.wanted[s]) for s in specs]
    results: list[Pattern] = []
    pods = np.zeros(len(specs), dtype=np.int64)

    def room(left: list[int], position: int) -> int:
        count = wanted[position]
        for have, need in zip(left, requests[position], strict=True):
            if need and have // need < count:
                count = have // need
        return count

    def descend(position: int, left: list[int]) -> bool:
        steps[0] -= 1
        if steps[0] < 0:
            return False
        if position == len(specs):
            if all(pods[p] == wanted[p] or room(left, p) == 0 for p in range(len(specs))):
                results.append(pattern_of(kind.index, specs, pods))
            return len(results) <= most
        top = room(left, position)
        lowest = top if position == len(specs) - 1 else 0
        for count in range(top, lowest - 1, -1):
            pods[position] = count
            rest = [have - need * count for have, need in zip(left, requests[position], strict=True)]
            if not descend(position + 1, rest):
                return False
        pods[position] = 0
        return True

    return results if descend(0, free) else None


def fill(reduced: Reduced, kind: Kind, orders: Ints, wanted: Ints) -> list[Pattern]:
    """Greedy patterns, one per row of `orders` (a row lists specs in the order in which they are packed, each as often
    as it fits and is wanted)."""
    rows = orders.shape[0]
    left = np.tile(reduced.free[kind.index], (rows, 1))
    packed = np.zeros(orders.shape, dtype=np.int64)
    usable = reduced.fits[kind.index]
    smallest = reduced.requests[np.unique(orders)].min(axis=0) if orders.size else 0
    for step in range(orders.shape[1]):
        if step % _LOOK_EVERY == 0 and (left < smallest).any(axis=1).all():
            break  # nothing fits anywhere any more
        spec = orders[:, step]
        need = reduced.requests[spec]
        with np.errstate(divide="ignore"):
            fit = np.where(need > 0, left // np.maximum(need, 1), np.iinfo(np.int64).max).min(axis=1)
        count = np.where(usable[spec], np.minimum(fit, wanted[spec]), 0)
        packed[:, step] = count
        left -= need * count[:, None]
    return [pattern_of(kind.index, order, pods) for order, pods in zip(orders, packed, strict=True)]
