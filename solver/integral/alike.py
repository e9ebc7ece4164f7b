"""Rows that only rules tell apart. Once rules have chosen how many pods each row gets (`quotas`), nodes need not know
from which of several such rows a pod is: they are planned as one row, and the plan is split again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from solver.columns.patterns import Pattern
from solver.reduction.reduced import Ints, Reduced


def first_alike(reduced: Reduced) -> Ints:
    """Return, per row, the first one that nodes do not tell from it. Bundles, and rows that exclude or need others or
    each other on a node, are like no other."""
    told_apart = {row for row, each in enumerate(reduced.rows) if each.bundle}
    told_apart.update(np.flatnonzero(reduced.caps < np.iinfo(np.int64).max).tolist())
    for exclusion in reduced.exclusions:
        told_apart.update(exclusion.carriers, (row for row, _ in exclusion.counted))
    for need in reduced.needs:
        told_apart.update(need.carriers, need.helpers)
    fits = np.packbits(reduced.fits, axis=0).T
    first: dict[object, int] = {}
    found = np.arange(len(reduced.rows))
    for row in range(len(found)):
        if row not in told_apart:
            found[row] = first.setdefault((reduced.requests[row].tobytes(), fits[row].tobytes()), row)
    return found


def as_one(reduced: Reduced, first: Ints) -> Reduced:
    """Return the problem in which each demand's one row is the first of those alike."""
    demands = tuple(replace(each, rows=(int(first[each.spec]),)) for each in reduced.demands)
    return replace(reduced, demands=demands)


def split(reduced: Reduced, first: Ints, nodes: Mapping[Pattern, int]) -> dict[Pattern, int]:
    """Return the nodes of a plan for rows that are one (`as_one`) with the pods of `reduced`'s own rows, those first of
    which most are left; room for more pods than there are is dropped."""
    left: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for row in np.flatnonzero(reduced.wanted).tolist():
        left[int(first[row])][row] = int(reduced.wanted[row])
    found: Counter[Pattern] = Counter()
    for pattern, count in nodes.items():
        copies = count
        while copies > 0:
            pods = [taken for row, units in pattern.pods for taken in _most_left(left[row], units)]
            alike = min([copies, *(left[int(first[row])][row] // units for row, units in pods)])
            for row, units in pods:
                left[int(first[row])][row] -= units * alike
            found[Pattern(pattern.kind, tuple(sorted(pods)))] += alike
            copies -= alike
    return dict(found)


def _most_left(left: Mapping[int, int], units: int) -> list[tuple[int, int]]:
    """Return the rows and pods to take `units` from."""
    taken = []
    for row, pods in sorted(left.items(), key=lambda each: -each[1]):
        if units > 0 and pods > 0:
            taken.append((row, min(units, pods)))
            units -= taken[-1][1]
    return taken
