"""From a fractional plan straight to an integral one, compiled: nodes are filled one pattern after the other by how
well a pod suits what is still free, and a pattern is opened as often as its pods last. The work grows with the number
of patterns, which is at most a small multiple of the number of specs, never with the number of pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from solver.columns.patterns import Pattern
from solver.compiled import compiled
from solver.reduction.reduced import Bools, Floats, Ints, Kind, Reduced
from solver.relaxation.merged import Fluid

_FULL = 0.9
"""Nodes of the fractional plan are opened while their pods are worth this share of the price; what is left then is
packed on whichever kind suits it best."""
_LEAST_WEIGHT = 0.05
"""Of a resource that costs nothing, beside the dearest one, when pods are fitted to what is free."""
_QUARTER = 4
"""One part of so many is taken of what fits, so that a node is not filled with the first spec."""
_PATTERNS_AT_ONCE = 4096


Links = tuple[Ints, Ints, Bools, Ints]
"""Exclusions by spec: where a spec's begin, and of each its index, whether the spec carries it, and how many pods of a
unit it counts."""


@compiled
def _apart(spec: int, fit: int, links: Links, spare: Ints, present: Bools, counted: Ints) -> int:
    """How many of `fit` units exclusions leave, beside what is on the node."""
    begin, which, carries, counts = links
    for i in range(begin[spec], begin[spec + 1]):
        e = which[i]
        if carries[i] or present[e]:
            if counted[e] > spare[e]:
                return 0
            if counts[i] > 0:
                fit = min(fit, (spare[e] - counted[e]) // counts[i])
    return fit


@compiled
def _fill(  # noqa: C901, PLR0912, PLR0915 - one loop, flat for speed
    requests: Ints, caps: Ints, fits: Bools, free: Ints, weight: Floats, values: Floats, left: Ints, mine: Ints,
    links: Links, spare: Ints, specs: Ints, pods: Ints,
) -> int:  # fmt: skip
    """One node's pattern, written to `specs` and `pods`: first from `mine`, then from `left`. Returns its length."""
    count, resources = requests.shape
    rest = free.copy()
    present, counted = np.zeros(len(spare), np.bool_), np.zeros(len(spare), np.int64)
    short_list = np.empty(count, np.int64)
    used = 0
    for phase in range(2):
        stock = mine if phase == 0 else left
        size = 0
        for s in range(count):
            if stock[s] > 0 and fits[s]:
                good = True
                for r in range(resources):
                    if requests[s, r] > rest[r]:
                        good = False
                        break
                if good:
                    short_list[size] = s
                    size += 1
        while size > 0:
            best, best_score, kept = -1, -1.0, 0
            for i in range(size):
                s = short_list[i]
                fit = min(stock[s], caps[s])
                for e in range(used):
                    if specs[e] == s:
                        fit -= pods[e]
                        break
                score = 0.0
                for r in range(resources):
                    if requests[s, r] > rest[r]:
                        fit = 0
                        break
                    score += weight[r] * requests[s, r] * rest[r]
                if fit > 0 and len(spare) > 0:
                    fit = _apart(s, fit, links, spare, present, counted)
                if fit <= 0:
                    continue
                short_list[kept] = s
                kept += 1
                if phase == 1:
                    score *= values[s]
                if score > best_score:
                    best, best_score = s, score
            size = kept
            if best < 0:
                break
            at = used
            for e in range(used):
                if specs[e] == best:
                    at = e
                    break
            fit = min(stock[best], caps[best]) - (pods[at] if at < used else 0)
            for r in range(resources):
                if requests[best, r] > 0:
                    fit = min(fit, rest[r] // requests[best, r])
            if len(spare) > 0:
                fit = _apart(best, fit, links, spare, present, counted)
            fit = max(1, fit // _QUARTER)
            for i in range(links[0][best], links[0][best + 1]):
                present[links[1][i]] |= links[2][i]
                counted[links[1][i]] += fit * links[3][i]
            if at == used:
                specs[at], pods[at] = best, 0
                used += 1
            pods[at] += fit
            for r in range(resources):
                rest[r] -= fit * requests[best, r]
    return used


@compiled
def _most(kind: int, room: Ints, use: Ints, allowed: Ints) -> int:
    most = int(room[kind])
    for row in range(len(allowed)):
        if use[kind, row] > 0:
            most = min(most, int(allowed[row] // use[kind, row]))
    return most


@compiled
def _take(
    kind: int, length: int, specs: Ints, pods: Ints, most: int,
    left: Ints, mine: Ints, room: Ints, use: Ints, allowed: Ints,
) -> int:  # fmt: skip
    """Opens the pattern as often as all its pods last; returns how often."""
    copies = most
    for e in range(length):
        s = specs[e]
        copies = min(copies, left[s] // pods[e])
        if mine[s] >= pods[e]:
            copies = min(copies, mine[s] // pods[e])
    for e in range(length):
        s = specs[e]
        left[s] -= copies * pods[e]
        mine[s] = max(0, min(mine[s] - copies * pods[e], left[s]))
    room[kind] -= copies
    for row in range(len(allowed)):
        allowed[row] -= use[kind, row] * copies
    return copies


@compiled
def _open_each(
    kinds: Ints, enough: Floats, most_nodes: Ints,
    requests: Ints, caps: Ints, fits: Bools, free: Ints, weight: Floats, values: Floats,
    left: Ints, mine: Ints, room: Ints, use: Ints, allowed: Ints, links: Links, spare: Ints,
    of_kind: Ints, copies: Ints, ends: Ints, specs: Ints, pods: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Kind after kind, patterns while they are worth `enough`, at most `most_nodes` nodes. Pattern i goes to
    `of_kind[i]`, `copies[i]` and the entries before `ends[i]`. Returns how many patterns, and how many of the kinds
    were seen to the end before the arrays were full."""
    found, at = 0, 0
    for position in range(len(kinds)):
        kind, nodes = kinds[position], most_nodes[position]
        while nodes > 0:
            most = min(nodes, _most(kind, room, use, allowed))
            if most <= 0:
                break
            if found >= len(copies) or at + len(left) > len(specs):
                return found, position
            length = _fill(
                requests, caps, fits[kind], free[kind], weight[kind], values, left, mine,
                links, spare[kind], specs[at:], pods[at:],
            )  # fmt: skip
            worth = 0.0
            for e in range(at, at + length):
                worth += values[specs[e]] * pods[e]
            if length == 0 or worth < enough[position]:
                break
            opened = _take(kind, length, specs[at:], pods[at:], most, left, mine, room, use, allowed)
            nodes -= opened
            at += length
            of_kind[found], copies[found], ends[found] = kind, opened, at
            found += 1
    return found, len(kinds)


@compiled
def _open_best(  # noqa: C901 - one loop, flat for speed
    kinds: Ints, cost: Floats, ratio: Floats,
    requests: Ints, caps: Ints, fits: Bools, free: Ints, weight: Floats, values: Floats,
    left: Ints, mine: Ints, room: Ints, use: Ints, allowed: Ints, links: Links, spare: Ints,
    of_kind: Ints, copies: Ints, ends: Ints, specs: Ints, pods: Ints,
) -> int:  # fmt: skip
    """Again and again the kind whose pattern is worth most for its cost, until no kind serves anything more. `ratio`
    is what each was worth when it was last asked: as pods run out it falls, so that only the best is asked again.
    Where there are pods in `mine`, they come first, only they count, and nothing is opened once they are served."""
    found, at = 0, 0
    only_mine = mine.any()
    while found < len(copies) and at + len(left) <= len(specs):
        best = 0
        for i in range(len(kinds)):
            if ratio[i] > ratio[best]:
                best = i
        if ratio[best] <= 0:
            break
        kind = kinds[best]
        length, worth = 0, 0.0
        most = _most(kind, room, use, allowed)
        if most > 0:
            length = _fill(
                requests, caps, fits[kind], free[kind], weight[kind], values, left, mine,
                links, spare[kind], specs[at:], pods[at:],
            )  # fmt: skip
            for e in range(at, at + length):
                worth += values[specs[e]] * (min(pods[e], mine[specs[e]]) if only_mine else pods[e])
        ratio[best] = worth / (cost[kind] + 1.0)
        beaten = length == 0 or worth <= 0
        for i in range(len(kinds)):
            if ratio[i] > ratio[best]:
                beaten = True
        if beaten:
            continue
        opened = _take(kind, length, specs[at:], pods[at:], most, left, mine, room, use, allowed)
        at += length
        of_kind[found], copies[found], ends[found] = kind, opened, at
        found += 1
        if only_mine and not mine.any():
            break
    return found


_Saved = tuple[Ints, Ints, Ints, dict[Pattern, int]]


class Packing:
    """An integral plan as it grows."""

    def __init__(self, reduced: Reduced, node_cost: Floats, values: Floats) -> None:
        """`values` per spec, positive: what serving a pod is worth."""
        self._reduced, self._cost, self._values = reduced, node_cost, values
        self.left = reduced.wanted.copy()
        self._room = np.array([kind.most for kind in reduced.kinds], dtype=np.int64)
        self._allowed = np.array(reduced.limits, dtype=np.int64)
        free = reduced.free.astype(np.float64)
        self._weight = np.where(free > 0, 1.0 / np.maximum(free, 1.0) ** 2, 0.0)
        self._links, self._spare = _exclusions(reduced)
        self.nodes: dict[Pattern, int] = {}

    def open_all(self, kinds: Ints, nodes: Ints) -> None:
        """That many nodes of each kind, filled with what there is."""
        nodes = np.minimum(nodes, self._room[kinds])
        self._each(kinds, np.full(len(kinds), -1.0), nodes, np.zeros_like(self.left))

    def oblige(self, kinds: Sequence[Kind]) -> None:
        """The nodes that must be opened in any case, empty where there is nothing for them."""
        least = np.array([kind.least for kind in kinds], dtype=np.int64)
        index = np.array([kind.index for kind in kinds], dtype=np.int64)
        before = self._room[index]
        self.open_all(index, least)
        for kind, short in zip(kinds, (least - before + self._room[index]).tolist(), strict=True):
            if short > 0:
                self.nodes[Pattern(kind.index, ())] = short
                self._room[kind.index] -= short
                self._allowed -= self._reduced.use[kind.index] * short

    def repeat(self, nodes: Mapping[Pattern, int]) -> None:
        """Nodes known from before, as far as there are pods for all of each."""
        for pattern, count in nodes.items():
            specs, pods = (np.array(part, dtype=np.int64) for part in zip(*pattern.pods, strict=True))
            use = self._reduced.use[pattern.kind]
            spare = [self._room[pattern.kind], *(self._allowed[use > 0] // use[use > 0])]
            copies = int(min(count, *spare, *(self.left[specs] // pods)))
            if copies > 0:
                self.nodes[pattern] = self.nodes.get(pattern, 0) + copies
                self.left[specs] -= pods * copies
                self._room[pattern.kind] -= copies
                self._allowed -= use * copies

    def follow(self, fluid: Fluid) -> None:
        """Nodes of a fractional plan, the dearest kinds first, while they can be filled with nearly what they hold
        there."""
        shares = np.diff(np.round(np.cumsum(fluid.placed, axis=0)), axis=0, prepend=0).astype(np.int64)
        for position in np.argsort(-self._cost[fluid.kinds], kind="stable").tolist():
            kind = fluid.kinds[position : position + 1]
            priced = fluid.prices[position] * self._reduced.free[kind[0]]
            self._weight[kind[0]] *= _LEAST_WEIGHT + priced / max(priced.max(), 1e-9)
            mine = np.minimum(shares[position], self.left)
            self._each(kind, _FULL * self._cost[kind], self._room[kind], mine)

    def finish(self, kinds: Ints, ratio: Floats) -> None:
        """What is left, on whichever of the kinds suits best; `ratio` is what each is worth at most, for its cost."""
        self._best(kinds, np.maximum(ratio, 1e-9), np.zeros_like(self.left))

    def serve(self, kinds: Ints, mine: Ints) -> bool:
        """Nodes for these pods (per spec, of those that are left), filled up with others; whether all are served."""
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
            out = self._buffers()
            found = _open_best(
                kinds, self._cost, ratio, self._reduced.requests, self._reduced.caps, self._reduced.fits,
                self._reduced.free, self._weight, self._values, self.left, mine, self._room, self._reduced.use,
                self._allowed, self._links, self._spare, *out,
            )  # fmt: skip
            self._keep(found, out)
            if found == 0 or not self.left.any() or ratio.max() <= 0 or (only_mine and not mine.any()):
                break

    def _each(self, kinds: Ints, enough: Floats, nodes: Ints, mine: Ints) -> None:
        nodes = nodes.copy()
        while kinds.size:
            out = self._buffers()
            found, done = _open_each(
                kinds, enough, nodes, self._reduced.requests, self._reduced.caps, self._reduced.fits,
                self._reduced.free, self._weight, self._values, self.left, mine, self._room, self._reduced.use,
                self._allowed, self._links, self._spare, *out,
            )  # fmt: skip
            self._keep(found, out)
            if done < len(kinds):  # the arrays were full in the middle of a kind
                of_kind, copies = out[0][:found], out[1][:found]
                nodes[done] -= int(copies[of_kind == kinds[done]].sum())
            kinds, enough, nodes = kinds[done:], enough[done:], nodes[done:]

    def _buffers(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        entries = 8 * _PATTERNS_AT_ONCE + 2 * len(self.left)
        few = [np.zeros(_PATTERNS_AT_ONCE, dtype=np.int64) for _ in range(3)]
        return few[0], few[1], few[2], np.zeros(entries, dtype=np.int64), np.zeros(entries, dtype=np.int64)

    def _keep(self, found: int, out: tuple[Ints, Ints, Ints, Ints, Ints]) -> None:
        of_kind, copies, ends, specs, pods = (each.tolist() for each in out)
        start = 0
        for i in range(found):
            end = ends[i]
            pattern = Pattern(of_kind[i], tuple(sorted(zip(specs[start:end], pods[start:end], strict=True))))
            self.nodes[pattern] = self.nodes.get(pattern, 0) + copies[i]
            start = end


def _exclusions(reduced: Reduced) -> tuple[Links, Ints]:
    """And per kind and exclusion the pods that it still allows beside a carrier."""
    by_row: list[list[tuple[int, bool, int]]] = [[] for _ in reduced.rows]
    for index, exclusion in enumerate(reduced.exclusions):
        counted = dict(exclusion.counted)
        for row in {*exclusion.carriers, *counted}:
            by_row[row].append((index, row in exclusion.carriers, counted.get(row, 0)))
    flat = [link for links in by_row for link in links]
    begin = np.cumsum([0, *map(len, by_row)])
    which, carries, counts = zip(*flat, strict=True) if flat else ((), (), ())
    links = (begin, np.array(which, np.int64), np.array(carries, np.bool_), np.array(counts, np.int64))
    most = np.array([exclusion.most for exclusion in reduced.exclusions], dtype=np.int64)
    running = np.array([kind.running for kind in reduced.kinds], dtype=np.int64)
    return links, most - running.reshape(len(reduced.kinds), len(most))


def warm_up() -> None:
    """Compile (or load what an earlier process compiled), so that the first plan does not wait for it."""
    one, ones, none = np.ones(1, dtype=np.int64), np.ones((1, 1), dtype=np.int64), np.zeros(0, dtype=np.int64)
    fits, weight, value = np.ones((1, 1), dtype=bool), np.ones((1, 1)), np.ones(1)
    use = np.zeros((1, 0), dtype=np.int64)
    links = (np.zeros(2, dtype=np.int64), none, np.zeros(0, dtype=np.bool_), none)
    out = [np.zeros(4, dtype=np.int64) for _ in range(5)]
    zero = np.zeros(1, dtype=np.int64)
    _open_each(
        zero,
        value,
        one,
        ones,
        one,
        fits,
        ones,
        weight,
        value,
        one.copy(),
        one.copy(),
        one.copy(),
        use,
        none,
        links,
        use,
        *out,
    )
    _open_best(
        zero,
        value,
        value,
        ones,
        one,
        fits,
        ones,
        weight,
        value,
        one.copy(),
        zero.copy(),
        one.copy(),
        use,
        none,
        links,
        use,
        *out,
    )
