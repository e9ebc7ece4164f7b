"""Node patterns: how many pods of each spec go onto one node of a kind. All maximal ones where they are few, good ones
for given pod values otherwise. Knows nothing of costs over many nodes; `columns` and `master` combine patterns.

A pattern is *maximal* when no further wanted pod fits. Since serving more than is wanted costs nothing, some optimal
plan uses maximal patterns only (surplus pods are dropped when the plan is written out).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from math import inf

import numpy as np

from solver.reduction.colocation import CoLocation
from solver.reduction.reduced import Floats, Ints, Kind, Reduced

_LOOK_EVERY = 16
_RESOURCES_A_STEP = 128
"""From so many on a step takes that much longer."""
_MOST_SPECS = 200  # the enumeration descends once per spec
_COMPARED_A_STEP, _COMPARED_A_WORTHY_STEP = 512, 32
"""Rows and exclusions that concern them, which are gone through to see whether pods may share a node, in the time of a
step: of all maximal patterns, or of those of interest, of which there are many more."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Pods on one node of kind `kind`. Only what is there is written down: a node holds few of thousands of specs."""

    kind: int
    pods: tuple[tuple[int, int], ...]
    """(spec, pods), pods > 0, by spec."""

    @property
    def total(self) -> int:
        """Return the pods of all specs."""
        return sum(pods for _, pods in self.pods)


def pattern_of(kind: int, specs: Ints | Sequence[int], pods: Ints) -> Pattern:
    """`pods` per entry of `specs`, in any order, a spec at most once; zeros are left out."""
    used = np.flatnonzero(pods)
    rows, counts = np.asarray(specs)[used].tolist(), pods[used].tolist()
    return Pattern(kind, tuple(sorted(zip(rows, counts, strict=True))))


def trimmed(colocation: CoLocation, pattern: Pattern) -> Pattern:
    """The part of a pattern that may share a node."""
    kept = colocation.trimmed(colocation.reduced.kinds[pattern.kind], dict(pattern.pods))
    return Pattern(pattern.kind, tuple(sorted(kept.items())))


@dataclass(frozen=True, slots=True)
class LeastWorth:
    """Which patterns are of interest, by what their pods are worth."""

    pods: Floats
    """Per row: the value of a unit."""
    least: Floats
    """Per kind: what a pattern is worth that is of interest."""
    prices: Mapping[int, Floats]
    """Per kind, of its resources: with good ones it is seen early that nothing of interest follows."""


def enumerate_maximal(reduced: Reduced, most: int, kinds: Container[int]) -> list[Pattern] | None:
    """Return every maximal pattern of the given usable kinds; None where there are more than `most` (or counting them
    takes too long). With all of them the master problem is the problem itself, and its bound is a true bound."""
    if np.count_nonzero(reduced.wanted) > _MOST_SPECS:
        return None
    found: list[Pattern] = []
    steps, colocation = most * 4 // (1 + reduced.requests.shape[1] // _RESOURCES_A_STEP), CoLocation(reduced)
    for kind in _usable(reduced, kinds):
        of_kind = _Maximal(reduced, colocation, kind, most - len(found), _ListingSteps(steps, _COMPARED_A_STEP))
        if not of_kind.descend(0, list(kind.free)):
            return None
        found.extend(of_kind.found)
        steps = of_kind.steps.left
    return found


def enumerate_worthy(
    reduced: Reduced, most: int, kinds: Container[int], steps: int, worth: LeastWorth
) -> tuple[list[Pattern], bool]:
    """Return the maximal patterns of interest, and whether these are all: at most `most`, found in so many steps. Each
    kind has an equal part of what smaller ones leave of both."""
    found: list[Pattern] = []
    usable, colocation, every = sorted(_usable(reduced, kinds), key=lambda each: each.free), CoLocation(reduced), True
    if np.count_nonzero(reduced.wanted) > _MOST_SPECS:
        return [], False
    for number, kind in enumerate(usable):
        parts = len(usable) - number
        granted = steps // parts
        counter = _ListingSteps(granted, _COMPARED_A_WORTHY_STEP)
        of_kind = _Maximal(reduced, colocation, kind, (most - len(found)) // parts, counter, worth)
        every &= of_kind.descend(0, list(kind.free))
        found.extend(of_kind.found)
        steps -= granted - max(0, counter.left)
    return found, every


def _usable(reduced: Reduced, kinds: Container[int]) -> list[Kind]:
    return [kind for kind in reduced.kinds if kind.most and kind.index in kinds]


class _ListingSteps:
    """How many steps are left, of which some are taken in parts."""

    def __init__(self, steps: int, parts: int) -> None:
        self._parts = parts
        self._left = steps * parts

    @property
    def left(self) -> int:
        """Return how many whole ones; negative once there were too few."""
        return self._left // self._parts

    def take(self) -> bool:
        """Take one; return whether there was one."""
        self._left -= self._parts
        return self._left >= 0

    def take_parts(self, parts: int) -> None:
        """Take so many parts of steps."""
        self._left -= parts


class _Maximal:
    """The maximal patterns of one kind, `most` of them at most, in so many `steps`."""

    def __init__(
        self,
        reduced: Reduced,
        colocation: CoLocation,
        kind: Kind,
        most: int,
        steps: _ListingSteps,
        worth: LeastWorth | None = None,
    ) -> None:
        self._kind, self._most, self.steps, self._colocation = kind, most, steps, colocation
        specs = [s for s in range(len(reduced.rows)) if kind.fits[s] and reduced.wanted[s]]
        # Large pods first: the last spec is filled up in one step, so it should be the one with the most values.
        share = [max(r / f for r, f in zip(reduced.requests[s].tolist(), kind.free, strict=True) if f) for s in specs]
        self._specs = [s for _, s in sorted(zip(share, specs, strict=True), key=lambda pair: (-pair[0], pair[1]))]
        self._compared: list[int] = [1] * len(specs)
        """Per position: what is gone through of its pods where not everything may share a node."""
        if not colocation.anything_goes:
            self._compared = (1 + np.diff(reduced.links.first)[self._specs]).tolist()
        self._requests: list[list[int]] = [reduced.requests[s].tolist() for s in self._specs]
        self._wanted: list[int] = np.minimum(reduced.wanted, reduced.caps)[self._specs].tolist()
        self._pods = np.zeros(len(specs), dtype=np.int64)
        self._least = -inf if worth is None else float(worth.least[kind.index])
        self._values: list[float] = [0.0] * len(specs) if worth is None else worth.pods[self._specs].tolist()
        self._prices: list[float] = [0.0] * len(kind.free) if worth is None else worth.prices[kind.index].tolist()
        # Per position: what the pods from there on can add to the prices of what is left.
        profits = (
            most * max(0.0, value - sum(p * r for p, r in zip(self._prices, requests, strict=True)))
            for most, value, requests in zip(self._wanted, self._values, self._requests, strict=True)
        )
        self._profits: list[float] = [*accumulate(reversed(list(profits)), initial=0.0)][::-1]
        self.found: list[Pattern] = []

    def descend(self, position: int, left: list[int], worth: float = 0.0) -> bool:
        """Return False when there are too many."""
        if not self.steps.take():
            return False
        if worth < self._least and self._promise(position, left, worth) < self._least:
            return True
        if position == len(self._specs):
            return self._keep(left)
        top = self._room(left, position)
        lowest = top if position == len(self._specs) - 1 and self._colocation.anything_goes else 0
        for count in range(top, lowest - 1, -1):
            self._pods[position] = count
            rest = [have - need * count for have, need in zip(left, self._requests[position], strict=True)]
            if not self.descend(position + 1, rest, worth + count * self._values[position]):
                return False
        self._pods[position] = 0
        return True

    def _keep(self, left: list[int]) -> bool:
        """Keep the pattern if it is a maximal one; return False when there are too many."""
        fine = self._admits() and self._full(left)
        if self.steps.left < 0 or (fine and len(self.found) == self._most):
            return False
        if fine:
            self.found.append(pattern_of(self._kind.index, self._specs, self._pods))
        return True

    def _promise(self, position: int, left: list[int], worth: float) -> float:
        """Return what the pattern can be worth in the end, at most."""
        if position == len(self._specs):
            return worth
        prices: Iterable[float] = (price * have for price, have in zip(self._prices, left, strict=True))
        return worth + self._profits[position] + sum(prices)

    def _room(self, left: list[int], position: int) -> int:
        count = self._wanted[position]
        for have, need in zip(left, self._requests[position], strict=True):
            if need and have // need < count:
                count = have // need
        return count

    def _admits(self, extra: int | None = None) -> bool:
        """Whether the pattern, with one more unit at position `extra`, may share a node."""
        if self._colocation.anything_goes:
            return True
        pods = self._pods.tolist()
        units = {spec: count for spec, count in zip(self._specs, pods, strict=True) if count}
        self.steps.take_parts(len(pods) + sum(compress(self._compared, pods)))
        if extra is not None:
            units[self._specs[extra]] = units.get(self._specs[extra], 0) + 1
        return self._colocation.admits(self._kind, units)

    def _full(self, left: list[int]) -> bool:
        # Of those that others need there may be too many: patterns with fewer of them count too.
        return all(
            spec in self._colocation.helpers
            or self._pods[p] == self._wanted[p]
            or self._room(left, p) == 0
            or self.steps.left < 0
            or not self._admits(p)
            for p, spec in enumerate(self._specs)
        )


def fill(reduced: Reduced, kind: Kind, orders: Ints, wanted: Ints) -> list[Pattern]:
    """Greedy patterns, one per row of `orders` (a row lists specs in the order in which they are packed, each as often
    as it fits and is wanted)."""
    rows = orders.shape[0]
    left = np.tile(reduced.free[kind.index], (rows, 1))
    packed = np.zeros(orders.shape, dtype=np.int64)
    usable = reduced.fits[kind.index]
    most = np.minimum(wanted, reduced.caps)
    smallest = reduced.requests[np.unique(orders)].min(axis=0) if orders.size else 0
    for step in range(orders.shape[1]):
        if step % _LOOK_EVERY == 0 and (left < smallest).any(axis=1).all():
            break  # nothing fits anywhere any more
        spec = orders[:, step]
        need = reduced.requests[spec]
        with np.errstate(divide="ignore"):
            fit = np.where(need > 0, left // np.maximum(need, 1), np.iinfo(np.int64).max).min(axis=1)
        count = np.where(usable[spec], np.minimum(fit, most[spec]), 0)
        packed[:, step] = count
        left -= need * count[:, None]
    return [pattern_of(kind.index, order, pods) for order, pods in zip(orders, packed, strict=True)]
