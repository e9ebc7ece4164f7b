"""Pods that must all share one node, as bundles: rows of which one unit is several pods. Which pods, and which numbers
of them, are tried; `rows` makes rows of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from solver.reduction.terms import Term, Variant

_MOST_BUNDLES = 256
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
    members: Sequence[tuple[int, RowPart]], pods: Sequence[int]
) -> tuple[list[tuple[tuple[int, RowPart], ...]], bool]:
    """Return pods that may share one node, fewer of them where not all fit, and whether these are all choices: every
    number of every class where that is not too much, otherwise one class after the other. `pods` is per demand."""
    options: dict[int, list[RowPart]] = defaultdict(list)
    complete = True
    for demand, part in members:
        count = pods[demand]
        spaced = {-(-count * step // _MANY) for step in range(1, _MANY + 1)}
        sizes = sorted({*range(1, min(count, _MANY) + 1), *spaced}, reverse=True)
        options[demand].extend(replace(part, pods=size) for size in sizes)
        complete &= len(sizes) == count
    ways = np.prod([len(parts) + 1 for parts in options.values()], dtype=np.float64)
    if ways > _MOST_BUNDLES:
        return list(_one_after_the_other(options)), False
    choices = product(*([(demand, part) for part in (None, *parts)] for demand, parts in options.items()))
    chosen = (tuple((demand, part) for demand, part in choice if part is not None) for choice in choices)
    return [choice for choice in chosen if choice], complete


def _one_after_the_other(options: Mapping[int, Sequence[RowPart]]) -> Iterator[tuple[tuple[int, RowPart], ...]]:
    classes = list(options.items())
    for first in range(len(classes)):
        whole: list[tuple[int, RowPart]] = []
        for demand, parts in (*classes[first:], *classes[:first]):
            yield from ((*whole, (demand, part)) for part in parts)
            whole.append((demand, parts[0]))
