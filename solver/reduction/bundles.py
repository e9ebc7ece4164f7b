"""Pods that must all share one node, as bundles: rows of which one unit is several pods. Which pods, and which numbers
of them, are tried; `rows` makes rows of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import itemgetter

import numpy as np

from solver.reduction.terms import Term, Variant

_MOST_BUNDLES = 256
_MOST_ROTATED = 64
"""Of the bundles that are tried where these are too many, those without pods from some class on."""
_FEW = 8
"""Pods up to twice as many as which one more is left out at a time, and then an eighth more."""
_MANY = 32
"""Pods of a class up to which all numbers of them are tried together; above, so many numbers more."""


@dataclass(frozen=True, slots=True)
class RowPart:
    """Pods of one class in one variant; `spec` is the class's, with all its preferences."""

    spec: int
    """Index of `Layout.specs`."""
    variant: Variant
    pods: int = 1


def components(together: Mapping[Term, Sequence[tuple[int, RowPart]]]) -> list[list[tuple[int, RowPart]]]:
    """Members that terms bind to each other, directly or through others."""
    groups: list[list[tuple[int, RowPart]]] = []
    for members in together.values():
        touching = [group for group in groups if any(member in group for member in members)]
        merged = list(dict.fromkeys(member for group in (*touching, members) for member in group))
        groups = [group for group in groups if group not in touching] + [merged]
    return groups


def bundles_of(
    members: Sequence[tuple[int, RowPart]], pods: Sequence[int], requests: Sequence[Mapping[str, int]]
) -> tuple[list[tuple[tuple[int, RowPart], ...]], bool]:
    """Return pods that may share one node, fewer of them where not all fit, and whether these are all choices: every
    number of every class where that is not too much, otherwise ever fewer of them. `pods` is per demand, `requests` per
    class."""
    whole: dict[int, list[RowPart]] = defaultdict(list)
    for demand, part in members:
        whole[demand].append(replace(part, pods=pods[demand]))
    sizes = {demand: _sizes(pods[demand]) for demand in whole}
    ways = np.prod([len(parts) * len(sizes[demand]) + 1 for demand, parts in whole.items()], dtype=np.float64)
    if ways > _MOST_BUNDLES:
        # With all preferences, and with the fewest.
        ends = ([(demand, parts[end]) for demand, parts in whole.items()] for end in (0, -1))
        return list(dict.fromkeys(bundle for classes in ends for bundle in _ever_fewer(classes, requests))), False
    options = {d: [replace(part, pods=size) for part in parts for size in sizes[d]] for d, parts in whole.items()}
    choices = product(*([(demand, part) for part in (None, *parts)] for demand, parts in options.items()))
    chosen = (tuple((demand, part) for demand, part in choice if part is not None) for choice in choices)
    return [choice for choice in chosen if choice], all(len(sizes[demand]) == pods[demand] for demand in whole)


def _sizes(count: int) -> list[int]:
    """The numbers of a class's pods that are tried, the largest first."""
    spaced = {-(-count * step // _MANY) for step in range(1, _MANY + 1)}
    return sorted({*range(1, min(count, _MANY) + 1), *spaced}, reverse=True)


def _ever_fewer(
    classes: Sequence[tuple[int, RowPart]], requests: Sequence[Mapping[str, int]]
) -> Iterator[tuple[tuple[int, RowPart], ...]]:
    """All pods; then without some of them, one more at a time as long as they are few: without the largest, by all
    resources and by each, or without those from some class on. And each class by itself."""
    amounts = Counter[str]()
    for _, part in classes:
        amounts.update({name: part.pods * amount for name, amount in requests[part.spec].items()})
    less, total = [0], sum(part.pods for _, part in classes)
    while less[-1] + (more := max(1, less[-1] // _FEW)) < total:
        less.append(less[-1] + more)

    def largest_first(*names: str) -> list[tuple[int, RowPart]]:
        def share(member: tuple[int, RowPart]) -> float:
            asked = requests[member[1].spec]
            return sum(asked.get(name, 0) / max(1, amounts[name]) for name in names)

        return sorted(classes, key=share, reverse=True)

    for order in (largest_first(*amounts), *map(largest_first, amounts)):
        yield from (_without(order, left_out) for left_out in less)
    rarely = less[::4]
    for first in range(0, len(classes), -(-len(classes) * len(rarely) // _MOST_ROTATED)):
        yield from (_without((*classes[first:], *classes[:first]), left_out) for left_out in rarely)
    yield from ((each,) for each in classes)


def _without(classes: Sequence[tuple[int, RowPart]], left_out: int) -> tuple[tuple[int, RowPart], ...]:
    """All but so many pods of the first classes, in order of demands."""
    found: list[tuple[int, RowPart]] = []
    for demand, part in classes:
        pods = max(0, part.pods - left_out)
        left_out -= part.pods - pods
        if pods:
            found.append((demand, replace(part, pods=pods)))
    return tuple(sorted(found, key=itemgetter(0)))
