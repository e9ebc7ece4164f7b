"""The knapsack under pricing, compiled: the most valuable pods of one node. Plain arrays in, plain arrays out.

For one kind this is a bounded knapsack in several dimensions. Steps, each only where the one before leaves the question
open (after Kellerer, Pferschy and Pisinger, Knapsack Problems, chapters 9 and 10):

1. Lagrangian multipliers for all resources, by a subgradient method started from the last answer: an upper bound in
   microseconds, which answers "no" for most kinds. Near that bound few items can be part of a better answer; the others
   are left out.
2. One by one the items of which a node has one at most: what they leave of a node is scarce in other resources. A pod
   with all GPUs leaves cores and memory for pods without; on average over patterns, these cost too much, and the node
   would seem to be worth some percent more than it can be.
3. A table over one resource in buckets and, where there is one that is counted in a few pieces (GPUs), over that one
   exactly; the others stay relaxed. A far tighter bound, for every remainder of the node at once. Sizes are mostly
   multiples of one amount: what a node has beyond such multiples counts for nothing, and a second table with buckets of
   that amount rounds nothing.
4. Depth-first search under the table's bound, the most promising number of pods first.
5. A greedy answer, where it is better: by value for what is scarce (after Toyoda, A simplified algorithm for obtaining
   approximate solutions to zero-one programming problems, 1975). Where several resources run out together, as pods, CPU
   and memory often do, it is within a percent of the best, and a search in the time finds none.
6. Further answers, each with the pods of the one before at a discount: the relaxed master needs many different
   patterns, and would ask for them one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from solver.columns.loops import Numbers, assign, fits
from solver.compiled import Kernel, inlined, inner, kernel
from solver.reduction.reduced import Floats, Ints

_FEW_PIECES = 16
"""A resource of which a node has at most so many is kept exact in the table."""
_FEW = 3
"""Up to so many pods of a spec, the table counts them exactly."""
_MOST_ITEMS = 200
"""Specs considered for one node: the best by value for their size. More would not fit the table in the time."""
_LEAST_STATES = 500
_MOST_LARGE = 16
"""Items that take more than half of something are looked at one by one where there are no more,"""
_ROUNDS_BESIDE, _PART_BESIDE = 100, 4
"""with so many rounds for multipliers, and beside each one part in so many of the cells and steps, or as many parts as
there are of them."""
_ROUNDING = 1e-9
_SCARCE = 1e-3
"""Of a node's worth, what all of a resource is charged at least: one that is worth nothing now may run out."""
_PART = 8
"""The greedy takes one part in so many of what fits, as prices change with what is left."""
_FURTHER_STATES, _FURTHER_STEPS = 2000, 10_000
"""At most, for a further answer."""
_LEAST_DISCOUNT, _DISCOUNT = 0.01, 0.1
"""On the pods of the answers before: as much as the best is worth more than the price."""
_MISSES = 3
"""Further answers not worth the price, one after the other, until no more are sought."""


@inner
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
            assign(current, kept)
            if best <= enough:
                break
        else:
            fails += 1
            if fails >= 8:
                step, fails = step * 0.5, 0
                assign(kept, current)
                if step < 1e-4:
                    break
                continue
        norm = 0.0
        for r in range(resources):
            if free[r] > 0:
                share = slope[r] / free[r]
                norm += share * share
        if norm < 1e-18:
            break
        length = step * 0.2 * best / norm
        for r in range(resources):
            if free[r] > 0:
                current[r] = max(0.0, current[r] - length * slope[r] / (float(free[r]) * free[r]))
    return best, kept


@inner
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


class _Bounds(NamedTuple):
    """The most that the rest of the items can add, by what is left of the two resources that the table knows."""

    table: Floats
    few: int
    """The resource that is counted exactly; -1 where there is none."""
    main: int
    """The one that is counted in buckets."""
    unit: int
    """Of it, to a bucket."""
    width: int
    """Buckets, and one more."""


class _Branch(NamedTuple):
    """A branch of the search: what is chosen of the items before each position, and what that leaves."""

    chosen: Ints
    """Per item: pods."""
    promised: Floats
    """Per item: the promise of the number of pods that was tried last."""
    left: Ints
    """Per position: what is free."""
    bound: Floats
    """Per position: the profits of what is chosen."""
    value: Floats
    """Per position: its values."""


@inner
def _common_divisor(requests: Ints, values: Floats, resource: int, few: int) -> int:
    """Return the greatest amount of which all items that are worth something take a multiple, but those that take
    `few` (-1 for none); 0 where they take nothing."""
    divisor = 0
    for j in range(len(values)):
        if values[j] > 0 and (few < 0 or requests[j, few] == 0):
            other = requests[j, resource]
            while other:
                divisor, other = other, divisor % other
    return divisor


@inner
def _within_reach(requests: Ints, values: Floats, free: Ints) -> Ints:
    """Return how much of what is free the items can take at most, as they take multiples of their common divisor."""
    reach = free.copy()
    for r in range(len(free)):
        divisor = _common_divisor(requests, values, r, -1)
        if divisor:
            reach[r] -= free[r] % divisor
    return reach


@inner
def _whole_bucket(requests: Ints, profits: Floats, few: int, main: int, least: int) -> int:
    """Return the size of a bucket, at least so much, of which all items take whole ones, or else all that take none of
    the `few` pieces: of the others a node has few. `least` where there is none."""
    exact = _common_divisor(requests, profits, main, -1)
    if exact >= least or few < 0:
        return max(exact, least)
    nearly = _common_divisor(requests, profits, main, few)
    parts = max(1, nearly // least)
    while nearly % parts:
        parts -= 1
    return max(nearly // parts, least)


@inner
def _bucket(free: Ints, few: int, main: int, states: int) -> int:
    """Return the size of a bucket that makes a table of about so many states for each item."""
    pieces = free[few] if few >= 0 else 0
    grain = max(1, states // (pieces + 1))
    return int(max(1, (free[main] + grain - 1) // grain))


@inner
def _bounds(requests: Ints, free: Ints, profits: Floats, most: Ints, few: int, main: int, unit: int) -> _Bounds:
    """Return a table with buckets of this size."""
    pieces = free[few] if few >= 0 else 0
    buckets = free[main] // unit
    table = _table(requests, profits, most, few, pieces, main, buckets, unit)
    return _Bounds(table, few, main, unit, buckets + 1)


@inner
def _state(bounds: _Bounds, left: Ints) -> int:
    """Return the column of the table for what is left."""
    state = int(left[bounds.main] // bounds.unit)
    return state + int(left[bounds.few]) * bounds.width if bounds.few >= 0 else state


@inlined
def _next_number(
    requests: Ints, profits: Floats, most: Ints, bounds: _Bounds, branch: _Branch, at: int, least: float
) -> tuple[int, float]:
    """Return the next best number of pods of an item after those that were tried, by what the table promises for the
    rest, and that promise; -1 where none promises more than `least`."""
    table, few, main, unit, width = bounds
    left = branch.left
    fits = most[at]
    for r in range(requests.shape[1]):
        if requests[at, r] > 0 and left[at, r] // requests[at, r] < fits:
            fits = left[at, r] // requests[at, r]
    tried, last, bound = branch.promised[at], branch.chosen[at], branch.bound[at]
    chosen, best = -1, least
    for pods in range(fits, -1, -1):
        state = (left[at, main] - requests[at, main] * pods) // unit
        if few >= 0:
            state += (left[at, few] - requests[at, few] * pods) * width
        promise = bound + profits[at] * pods + table[at + 1, state]
        if promise > best and (promise < tried or (promise == tried and pods < last)):
            chosen, best = pods, promise
    return chosen, best


@inner
def _search(  # noqa: C901 - flat for speed
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
    """Return the best value above `threshold` (its pods are written to `found`), an upper bound, and whether it is
    proven, after at most `limit` steps: depth first, the number of pods with the best promise first, without recursion.

    `profits` are the values less what the relaxed resources (all but `few` and `main`) charge for them; `base` is what
    those resources are worth on an empty node.
    """
    items, resources = requests.shape
    unit = _bucket(free, few, main, states)
    bounds = _bounds(requests, free, profits, most, few, main, unit)
    root = base + bounds.table[0, _state(bounds, free)]
    margin = _ROUNDING * (abs(threshold) + 1.0)
    best = threshold
    if root > best + margin and threshold > 0:
        whole = _whole_bucket(requests, profits, few, main, unit)
        if whole > unit:
            # Nothing is rounded, which proves more. Searching by it finds patterns that plans are less easily made of.
            exact = _bounds(requests, free, profits, most, few, main, whole)
            root = min(root, base + exact.table[0, _state(exact, free)])
    if root <= best + margin:
        return best, root, True
    branch = _Branch(
        np.zeros(items, np.int64),
        np.zeros(items),
        np.zeros((items + 1, resources), np.int64),
        np.zeros(items + 1),
        np.zeros(items + 1),
    )
    for r in range(resources):
        branch.left[0, r] = free[r]
    branch.bound[0] = base
    at, steps, down = 0, 0, True
    while at >= 0:
        steps += 1
        if steps > limit:
            return best, root, False
        if down and branch.value[at] > best + margin:
            best = branch.value[at]
            for j in range(items):
                found[j] = branch.chosen[j] if j < at else 0
        if at == items:
            down = False
            at -= 1
            continue
        if down:
            branch.promised[at], branch.chosen[at] = np.inf, -1
        chosen, promise = _next_number(requests, profits, most, bounds, branch, at, best + margin)
        down = chosen >= 0
        if not down:
            at -= 1
            continue
        branch.promised[at], branch.chosen[at] = promise, chosen
        for r in range(resources):
            branch.left[at + 1, r] = branch.left[at, r] - requests[at, r] * chosen
        branch.bound[at + 1] = branch.bound[at] + profits[at] * chosen
        branch.value[at + 1] = branch.value[at] + values[at] * chosen
        at += 1
    return best, best, True


@inner
def _kept_exact(free: Ints, multipliers: Floats) -> tuple[int, int]:
    """The resource counted in few pieces, -1 where there is none, and the one that matters most of the others."""
    few, main = -1, -1
    most, share = 0.0, -1.0
    for r in range(len(free)):
        if 0 < free[r] <= _FEW_PIECES and multipliers[r] * free[r] > most:
            few, most = r, multipliers[r] * free[r]
    for r in range(len(free)):
        if r != few and multipliers[r] * free[r] > share:
            main, share = r, multipliers[r] * free[r]
    return (few, main) if main >= 0 else (-1, few)


@inner
def _useful(requests: Ints, values: Floats, most: Ints, multipliers: Floats, spare: float) -> tuple[Ints, Ints]:
    """The items that can be part of an answer `spare` below the multipliers' bound, and how many of each: a pod that
    is charged more than it is worth uses up some of what can be spared."""
    items, resources = requests.shape
    kept, capped, size = np.zeros(items, np.int64), most.copy(), 0
    for j in range(items):
        loss = -values[j]
        for r in range(resources):
            loss += multipliers[r] * requests[j, r]
        if loss > 0 and spare / loss < capped[j]:
            capped[j] = int(spare / loss)
        if values[j] > 0 and capped[j] > 0:
            kept[size] = j
            size += 1
    return kept[:size], _at(capped, kept[:size])


@inner
def _rows(table: Ints, places: Ints) -> Ints:
    """Return the rows in these places. Loops compile far faster than what numpy has for it."""
    rows = np.empty((len(places), table.shape[1]), np.int64)
    for row, place in enumerate(places):
        for column in range(table.shape[1]):
            rows[row, column] = table[place, column]
    return rows


@inner
def _at(numbers: Numbers, places: Ints) -> Numbers:
    """Return the numbers in these places."""
    taken = np.empty(len(places), numbers.dtype)
    for index, place in enumerate(places):
        taken[index] = numbers[place]
    return taken


@inner
def _ascending(keys: Floats) -> Ints:
    """Return the places of the keys in ascending order, equal ones as they stand: numpy's own takes a second to
    compile."""
    order, merged = np.arange(len(keys)), np.empty(len(keys), np.int64)
    width = 1
    while width < len(keys):
        for start in range(0, len(keys), 2 * width):
            left, middle = start, min(start + width, len(keys))
            right, end = middle, min(start + 2 * width, len(keys))
            for at in range(start, end):
                if left < middle and (right == end or keys[order[left]] <= keys[order[right]]):
                    merged[at] = order[left]
                    left += 1
                else:
                    merged[at] = order[right]
                    right += 1
        order, merged = merged, order
        width *= 2
    return order


@inner
def _best_for_their_size(requests: Ints, values: Floats, prices: Floats) -> Ints:
    """Return the items to consider, those that cost least for their value first."""
    items, resources = requests.shape
    score = np.zeros(items)
    for j in range(items):
        for r in range(resources):
            score[j] += prices[r] * requests[j, r]
        score[j] /= values[j]
    return _ascending(score)[:_MOST_ITEMS]


@inner
def _attempt(
    requests: Ints,
    free: Ints,
    values: Floats,
    most: Ints,
    multipliers: Floats,
    states: int,
    threshold: float,
    limit: int,
    found: Ints,
) -> tuple[float, float, bool]:
    """One search; as `_search`. The items that are best for their size come first."""
    items, resources = requests.shape
    few, main = _kept_exact(free, multipliers)
    order = _best_for_their_size(requests, values, multipliers)
    need, worth = _rows(requests, order), _at(values, order)
    profits, base = worth.copy(), 0.0
    for r in range(resources):
        if r not in (few, main):
            base += multipliers[r] * free[r]
            for j in range(len(order)):
                profits[j] -= multipliers[r] * need[j, r]
    pods = np.zeros(len(order), np.int64)
    best, root, proven = _search(
        need, free, worth, profits, _at(most, order), base, few, main, states, threshold, limit, pods
    )
    if best > threshold:
        found[:] = 0
        for index, place in enumerate(order):
            found[place] = pods[index]
    if len(order) < items:
        return best, np.inf, False
    return best, root, proven


@inner
def _differ(one: Ints, other: Ints) -> bool:
    """Return whether two patterns are not the same."""
    for j in range(len(one)):  # noqa: SIM110 - generators are not compiled
        if one[j] != other[j]:
            return True
    return False


@inner
def _by_scarcity(  # noqa: C901 - flat for speed
    requests: Ints, free: Ints, values: Floats, most: Ints, multipliers: Floats, found: Ints
) -> float:
    """Return the value of a greedy answer, whose pods are written to `found`: a resource costs its multiplier, and the
    more the less of it is left."""
    resources = len(free)
    left, price = free.copy(), np.zeros(resources)
    found[:] = 0
    node, value = 0.0, 0.0
    for r in range(resources):
        node += multipliers[r] * free[r]
    candidates = _best_for_their_size(requests, values, multipliers)
    size = len(candidates)
    while True:
        for r in range(resources):
            price[r] = 0.0
            if left[r] > 0:
                spent = free[r] / left[r]
                price[r] = (multipliers[r] + _SCARCE * node / free[r]) * spent * spent
        chosen, units, best, fitting = -1, 0, 0.0, 0
        for index in range(size):
            j = candidates[index]
            fits = most[j] - found[j]
            cost = _ROUNDING
            for r in range(resources):
                if requests[j, r] > 0:
                    fits = min(fits, left[r] // requests[j, r])
                    cost += price[r] * requests[j, r]
            if fits <= 0:  # nor will it later
                continue
            candidates[fitting] = j
            fitting += 1
            if values[j] > best * cost:
                chosen, units, best = j, fits, values[j] / cost
        if chosen < 0:
            return value
        size = fitting
        units = max(1, units // _PART)
        found[chosen] += units
        value += values[chosen] * units
        for r in range(resources):
            left[r] -= requests[chosen, r] * units


@inner
def _top_up(requests: Ints, free: Ints, most: Ints, order: Ints, found: Ints) -> None:
    """What else fits comes along for nothing."""
    resources = len(free)
    left = free.copy()
    for j in range(len(found)):
        for r in range(resources):
            left[r] -= requests[j, r] * found[j]
    for j in order:
        more = most[j] - found[j]
        for r in range(resources):
            if requests[j, r] > 0 and left[r] // requests[j, r] < more:
                more = left[r] // requests[j, r]
        if more > 0:
            found[j] += more
            for r in range(resources):
                left[r] -= requests[j, r] * more


@inner
def _best_of_all(
    requests: Ints,
    free: Ints,
    values: Floats,
    most: Ints,
    multipliers: Floats,
    threshold: float,
    bound: float,
    cells: int,
    limit: int,
    found: Ints,
) -> tuple[float, float]:
    """Return the best value above `threshold` (its pods are written to `found`), and an upper bound; `bound` is one
    already."""
    reach = _within_reach(requests, values, free)
    states = max(_LEAST_STATES, cells // len(values))
    best, root, proven = _attempt(requests, reach, values, most, multipliers, states, threshold, limit, found)
    if proven:
        return best, best
    greedy = np.zeros(len(values), np.int64)
    value = _by_scarcity(requests, free, values, most, multipliers, greedy)
    if value > best:
        best = value
        assign(greedy, found)
    return best, max(best, min(bound, root))


@inner
def _large(requests: Ints, free: Ints, most: Ints) -> Ints:
    """Return the items of which a node has one at most, as they take more than half of something; none where these are
    many."""
    large, size = np.zeros(_MOST_LARGE, np.int64), 0
    for j in range(len(most)):
        half = False
        for r in range(len(free)):
            half = half or 2 * requests[j, r] > free[r]
        if half and most[j] > 0 and fits(requests, j, free):
            if size == _MOST_LARGE:
                return large[:0]
            large[size] = j
            size += 1
    return large[:size]


@inner
def _fitting(requests: Ints, most: Ints, room: Ints) -> Ints:
    """Return how many of each item there may be, none of those for which there is no room."""
    result = most.copy()
    for j in range(len(most)):
        if not fits(requests, j, room):
            result[j] = 0
    return result


@inner
def _and_none(items: Ints) -> Ints:
    """Return the items, and -1 for none of them."""
    result = np.full(len(items) + 1, -1)
    for index in range(len(items)):
        result[index] = items[index]
    return result


@inner
def _best(
    requests: Ints,
    free: Ints,
    values: Floats,
    most: Ints,
    multipliers: Floats,
    threshold: float,
    cells: int,
    limit: int,
    found: Ints,
) -> tuple[float, float]:
    """As `_best_of_all`, beside each large item, and beside none: what these leave of a node has other multipliers
    each, and no average of them says what it can be worth."""
    large, others = _large(requests, free, most), most.copy()
    best, highest = threshold, threshold
    for item in _and_none(large):
        rest, value, part = free.copy(), 0.0, 1
        if item >= 0:
            others[item], value, part = 0, values[item], max(_PART_BESIDE, len(large))
            for r in range(len(free)):
                rest[r] -= requests[item, r]
        least, beside = best - value, _fitting(requests, others, rest)
        bound, tight = _multipliers(requests, rest, values, beside, multipliers, least, _ROUNDS_BESIDE)
        if bound <= least:
            continue
        kept, capped = _useful(requests, values, beside, tight, bound - least)
        pods, more = np.zeros(len(kept), np.int64), max(0.0, least)
        if len(kept):
            need, worth = _rows(requests, kept), _at(values, kept)
            more, bound = _best_of_all(
                need, rest, worth, capped, tight, more, bound, cells // part, limit // part, pods
            )
        else:
            bound = more
        highest = max(highest, value + bound)
        if more > least:
            best = value + more
            for j in range(len(found)):
                found[j] = 0
            for index in range(len(kept)):
                found[kept[index]] = pods[index]
            if item >= 0:
                found[item] = 1
    return best, max(best, highest)


def _steps(requests: Ints, *others: Any) -> int:
    """Return how many steps `best_patterns` takes: tables and searches mostly use up what they may."""
    items, resources = requests.shape
    rounds, _, cells, limit, answers = others[-5:]
    one_answer = min(_FURTHER_STATES * items, cells) + min(_FURTHER_STEPS, limit) * resources
    return int(rounds * items * resources + cells + limit * resources + answers * one_answer)


@kernel(_steps)
def best_patterns(  # noqa: C901 - flat for speed
    requests: Ints,
    free: Ints,
    values: Floats,
    most: Ints,
    multipliers: Floats,
    rounds: int,
    threshold: float,
    cells: int,
    limit: int,
    answers: int,
) -> tuple[Ints, float]:
    """Up to `answers` patterns (rows of pods per item), the best first, all worth more than `threshold`, and an upper
    bound on the value of any. `multipliers` are where to start from and are left at what was found. Tables have up to
    `cells` entries, searches up to `limit` steps."""
    bound, tight = _multipliers(requests, free, values, most, multipliers, threshold, rounds)
    assign(tight, multipliers)
    found = np.zeros((answers, len(values)), np.int64)
    if bound <= threshold:
        return found[:0], bound
    kept, capped = _useful(requests, values, most, multipliers, bound - threshold)
    if not len(kept):
        return found[:0], threshold
    need, worth = _rows(requests, kept), _at(values, kept)
    reach = _within_reach(need, worth, free)
    pods = np.zeros(len(kept), np.int64)
    best, highest = _best(need, reach, worth, capped, tight, threshold, cells, limit, pods)
    bound = min(bound, highest)
    if best <= threshold:
        return found[:0], bound
    states, greedy = max(_LEAST_STATES, cells // len(kept)), np.zeros(len(kept), np.int64)
    order = _at(kept, _ascending(-worth))
    further_states, further_steps = min(_FURTHER_STATES, states), min(_FURTHER_STEPS, limit // 5)
    discount = _DISCOUNT if threshold <= 0 else min(_DISCOUNT, max(_LEAST_DISCOUNT, best / threshold - 1))
    size, misses, discounted = 0, 0, worth.copy()
    while True:
        value = 0.0
        for j in range(len(kept)):
            found[size, kept[j]] = pods[j]
            value += worth[j] * pods[j]
            if pods[j]:
                discounted[j] *= 1 - discount
        if value > threshold:
            _top_up(requests, free, most, order, found[size])
            fresh = True
            for other in range(size):
                fresh = fresh and _differ(found[other], found[size])
            misses = 0 if fresh else misses + 1
            size += fresh
        else:
            misses += 1
        if size == answers or misses == _MISSES:
            return found[:size], bound
        value, _, _ = _attempt(
            need, reach, discounted, capped, multipliers, further_states, 0.0, further_steps, pods
        )  # fmt: skip
        if _by_scarcity(need, free, discounted, capped, tight, greedy) > value:
            pods = greedy.copy()


def examples() -> Iterator[tuple[Kernel[..., Any], tuple[Any, ...]]]:
    """What kernels are compiled for."""
    units, free, one = np.ones((1, 2), dtype=np.int64), np.full(2, 2, dtype=np.int64), np.ones(1, dtype=np.int64)
    yield best_patterns, (units, free, np.ones(1), one, np.ones(2), 1, 0.0, 4, 10, 2)
