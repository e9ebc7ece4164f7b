"""From a fractional plan straight to an integral one: nodes are filled pattern by pattern, compiled, each opened as
often as its pods last. The work grows with the number of patterns, which is at most a small multiple of the number of
specs, never with the number of pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from solver.columns.loops import any_left, highest
from solver.columns.patterns import Pattern
from solver.compiled import Kernel, inner, kernel
from solver.reduction.reduced import Bools, Floats, Ints, Kind, Reduced
from solver.relaxation.merged import Fluid

_QUARTER = 4
"""One part of so many is taken of what fits, so that a node is not filled with the first spec."""


class Shapes(NamedTuple):
    """What never changes while nodes are filled: specs, kinds of nodes, and what may share a node."""

    requests: Ints
    """Specs x resources."""
    caps: Ints
    """Per spec: units on one node."""
    values: Floats
    """Per spec: what serving a unit is worth."""
    fits: Bools
    """Kinds x specs."""
    free: Ints
    """Kinds x resources."""
    weight: Floats
    """Kinds x resources: how much a resource counts when pods are fitted to what is free."""
    cost: Floats
    """Per kind."""
    use: Ints
    """Kinds x limits."""
    spare: Ints
    """Kinds x exclusions: counted pods that an exclusion allows beside a carrier."""
    first_link: Ints
    """Per spec, and one more: where its links begin. A link ties a spec to an exclusion."""
    exclusion: Ints
    """Per link: the exclusion."""
    carries: Bools
    """Per link: whether the spec carries the exclusion."""
    counts: Ints
    """Per link: pods of a unit that the exclusion counts."""


class Stock(NamedTuple):
    """What is left to place, and to place it on. Filling nodes uses it up."""

    left: Ints
    """Per spec: units without a place."""
    mine: Ints
    """Per spec: of these, the ones that come first."""
    room: Ints
    """Per kind: nodes that may still be opened."""
    allowed: Ints
    """Per limit: what it still allows."""


class Opened(NamedTuple):
    """The patterns that were opened: pattern i has the entries of `specs` and `pods` before `ends[i]`."""

    kind: Ints
    copies: Ints
    ends: Ints
    specs: Ints
    pods: Ints


class _Node(NamedTuple):
    """One node while it is filled."""

    rest: Ints
    """Per resource: what is still free."""
    placed: Ints
    """Per spec: units."""
    present: Bools
    """Per exclusion: whether a carrier is there."""
    counted: Ints
    """Per exclusion: counted pods."""


@inner
def _units_beside(shapes: Shapes, kind: int, spec: int, node: _Node, units: int) -> int:
    """Return how many of `units` exclusions allow beside what is on the node."""
    for link in range(shapes.first_link[spec], shapes.first_link[spec + 1]):
        e = shapes.exclusion[link]
        if not (shapes.carries[link] or node.present[e]):
            continue
        spare = shapes.spare[kind, e] - node.counted[e]
        if spare < 0:
            return 0
        if shapes.counts[link] > 0:
            units = min(units, spare // shapes.counts[link])
    return units


@inner
def _suits(shapes: Shapes, kind: int, spec: int, rest: Ints) -> float:
    """Return how well a unit suits what is free; below 0 where it does not fit."""
    score = 0.0
    for r in range(len(rest)):
        need = shapes.requests[spec, r]
        if need > rest[r]:
            return -1.0
        score += shapes.weight[kind, r] * need * rest[r]
    return score


@inner
def _best_spec(shapes: Shapes, kind: int, node: _Node, stock: Ints, candidates: Ints, valued: bool) -> tuple[int, int]:
    """Return the candidate that suits best (-1 for none; where `valued`, for what it is worth), and how many of them
    still fit: these are moved to the front."""
    best, best_score, fitting = -1, -1.0, 0
    for spec in candidates:
        score = _suits(shapes, kind, spec, node.rest)
        units = min(stock[spec], shapes.caps[spec]) - node.placed[spec]
        if score < 0 or units <= 0 or _units_beside(shapes, kind, spec, node, units) <= 0:
            continue
        candidates[fitting] = spec
        fitting += 1
        if valued:
            score *= shapes.values[spec]
        if score > best_score:
            best, best_score = spec, score
    return best, fitting


@inner
def _place(shapes: Shapes, kind: int, spec: int, node: _Node, stock: Ints) -> None:
    """Put a part of the units that fit, at least one, on the node."""
    units = min(stock[spec], shapes.caps[spec]) - node.placed[spec]
    for r in range(len(node.rest)):
        if shapes.requests[spec, r] > 0:
            units = min(units, node.rest[r] // shapes.requests[spec, r])
    units = max(1, _units_beside(shapes, kind, spec, node, units) // _QUARTER)
    node.placed[spec] += units
    for r in range(len(node.rest)):
        node.rest[r] -= units * shapes.requests[spec, r]
    for link in range(shapes.first_link[spec], shapes.first_link[spec + 1]):
        e = shapes.exclusion[link]
        node.present[e] |= shapes.carries[link]
        node.counted[e] += units * shapes.counts[link]


@inner
def _candidates(shapes: Shapes, kind: int, units: Ints) -> Ints:
    """Return the specs of which there are units that fit the kind."""
    found, size = np.empty(len(units), np.int64), 0
    for spec in range(len(units)):
        if units[spec] > 0 and shapes.fits[kind, spec]:
            found[size] = spec
            size += 1
    return found[:size]


@inner
def _fill(shapes: Shapes, kind: int, stock: Stock, specs: Ints, pods: Ints) -> int:
    """Write one node's pattern to `specs` and `pods`, first of the units in `mine`, then of all that are left. Return
    its length."""
    count, exclusions = len(stock.left), shapes.spare.shape[1]
    node = _Node(
        shapes.free[kind].copy(),
        np.zeros(count, np.int64),
        np.zeros(exclusions, np.bool_),
        np.zeros(exclusions, np.int64),
    )
    length = 0
    for units, valued in ((stock.mine, False), (stock.left, True)):
        candidates = _candidates(shapes, kind, units)
        while len(candidates):
            best, fitting = _best_spec(shapes, kind, node, units, candidates, valued)
            if best < 0:
                break
            candidates = candidates[:fitting]
            if node.placed[best] == 0:
                specs[length] = best
                length += 1
            _place(shapes, kind, best, node, units)
    for entry in range(length):
        pods[entry] = node.placed[specs[entry]]
    return length


@inner
def _most(shapes: Shapes, kind: int, stock: Stock) -> int:
    """Return how many more nodes of the kind may be opened."""
    most = int(stock.room[kind])
    for row in range(len(stock.allowed)):
        if shapes.use[kind, row] > 0:
            most = min(most, int(stock.allowed[row] // shapes.use[kind, row]))
    return most


@inner
def _open(shapes: Shapes, kind: int, most: int, stock: Stock, specs: Ints, pods: Ints) -> int:
    """Open a pattern as often as all its pods last, and return how often."""
    copies = most
    for entry in range(len(specs)):
        spec, units = specs[entry], pods[entry]
        copies = min(copies, stock.left[spec] // units)
        if stock.mine[spec] >= units:
            copies = min(copies, stock.mine[spec] // units)
    for entry in range(len(specs)):
        spec, units = specs[entry], pods[entry]
        stock.left[spec] -= copies * units
        stock.mine[spec] = max(0, min(stock.mine[spec] - copies * units, stock.left[spec]))
    stock.room[kind] -= copies
    for row in range(len(stock.allowed)):
        stock.allowed[row] -= shapes.use[kind, row] * copies
    return copies


@inner
def _worth(shapes: Shapes, stock: Stock, specs: Ints, pods: Ints, only_mine: bool) -> float:
    """Return what a pattern's units are worth; where `only_mine`, those of `mine` alone."""
    worth = 0.0
    for entry in range(len(specs)):
        spec, units = specs[entry], pods[entry]
        worth += shapes.values[spec] * (min(units, stock.mine[spec]) if only_mine else units)
    return worth


@inner
def _full(opened: Opened, found: int, at: int, specs: int) -> bool:
    """Return whether there may be no room to write another pattern."""
    return found >= len(opened.copies) or at + specs > len(opened.specs)


def _steps(shapes: Shapes, stock: Stock, kinds: Ints, *_: Any) -> int:
    """Return how many steps opening nodes takes where each kind is asked once, and again for each pattern that is
    opened: not many more patterns than specs."""
    units, specs = int(stock.left.sum()), int(np.count_nonzero(stock.left))
    placed = min(units, 12 * specs)  # of a node: a spec is placed by parts of what fits
    of_node = len(stock.left) + placed * (specs * (shapes.requests.shape[1] + 2) + len(shapes.exclusion))
    return int((len(kinds) + min(units, 4 * specs)) * (of_node + len(kinds)))


@kernel(_steps)
def open_each(
    shapes: Shapes, stock: Stock, kinds: Ints, enough: Floats, most_nodes: Ints, opened: Opened
) -> tuple[int, int]:
    """Open nodes kind after kind, patterns while they are worth `enough`, at most `most_nodes` nodes. Return how many
    patterns, and how many of the kinds were seen to the end before the arrays were full."""
    found, at = 0, 0
    for position in range(len(kinds)):
        kind, nodes = kinds[position], most_nodes[position]
        while nodes > 0:
            most = min(nodes, _most(shapes, kind, stock))
            if most <= 0:
                break
            if _full(opened, found, at, len(stock.left)):
                return found, position
            end = at + _fill(shapes, kind, stock, opened.specs[at:], opened.pods[at:])
            specs, pods = opened.specs[at:end], opened.pods[at:end]
            if end == at or _worth(shapes, stock, specs, pods, False) < enough[position]:
                break
            copies = _open(shapes, kind, most, stock, specs, pods)
            nodes -= copies
            at = end
            opened.kind[found], opened.copies[found], opened.ends[found] = kind, copies, at
            found += 1
    return found, len(kinds)


@kernel(_steps)
def open_best(shapes: Shapes, stock: Stock, kinds: Ints, ratio: Floats, opened: Opened) -> int:
    """Open, again and again, the kind whose pattern is worth most for its cost, until no kind serves anything more.
    Return how many patterns.

    `ratio` is what each was worth when it was last asked: as pods run out it falls, so that only the best is asked
    again. Where there are pods in `mine`, they come first, only they count, and nothing is opened once they are served.
    """
    found, at = 0, 0
    only_mine = any_left(stock.mine)
    while not _full(opened, found, at, len(stock.left)):
        best = highest(ratio)
        if ratio[best] <= 0:
            break
        kind = kinds[best]
        end, worth = at, 0.0
        most = _most(shapes, kind, stock)
        if most > 0:
            end = at + _fill(shapes, kind, stock, opened.specs[at:], opened.pods[at:])
            worth = _worth(shapes, stock, opened.specs[at:end], opened.pods[at:end], only_mine)
        ratio[best] = worth / (shapes.cost[kind] + 1.0)
        if worth <= 0 or ratio[highest(ratio)] > ratio[best]:
            continue
        copies = _open(shapes, kind, most, stock, opened.specs[at:end], opened.pods[at:end])
        at = end
        opened.kind[found], opened.copies[found], opened.ends[found] = kind, copies, at
        found += 1
        if only_mine and not any_left(stock.mine):
            break
    return found


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
    links = reduced.links
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
        first_link=links.first,
        exclusion=links.exclusion,
        carries=links.carries,
        counts=links.counts,
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
