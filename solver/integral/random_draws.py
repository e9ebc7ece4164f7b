"""Random numbers and choices for compiled loops, the same on every machine."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from solver.compiled import aside, step
from solver.reduction.reduced import Ints

Words = npt.NDArray[np.uint64]


@step
def random_share(seed: Words) -> float:
    """A number from 0 to below 1 (xorshift; Marsaglia, 2003)."""
    word = seed[0]
    word ^= word << np.uint64(13)
    word ^= word >> np.uint64(7)
    word ^= word << np.uint64(17)
    seed[0] = word
    return float(word >> np.uint64(11)) / 9007199254740992.0


@step
def any_of(seed: Words, items: Ints, first: Ints, key: int) -> int:
    """One of the items with this key, -1 where there are none."""
    start, end = first[key], first[key + 1]
    return items[start + int(random_share(seed) * (end - start))] if end > start else -1


@aside
def sort_by_key(keys: Ints, items: Ints, first: Ints) -> None:
    """Write the numbers of the items to `items`, sorted by key, and to `first` where those of each key begin. Items
    with a key below 0 are left out."""
    for key in range(len(first)):
        first[key] = 0
    for key in keys:
        if key >= 0:
            first[key + 1] += 1
    for key in range(1, len(first)):
        first[key] += first[key - 1]
    for item in range(len(keys) - 1, -1, -1):
        if keys[item] >= 0:
            first[keys[item] + 1] -= 1
            items[first[keys[item] + 1]] = item
    for key in range(len(first) - 1):
        first[key] = first[key + 1]
    first[len(first) - 1] = 0
    for key in keys:
        first[len(first) - 1] += key >= 0
