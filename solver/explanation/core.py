"""Irreducible sets: of constraints that together keep pods out, and of changes that together let them in. Knows neither
of the two.

Both are minimal sets with a monotone property: what holds of a set holds of every larger one. Sets are tried in halves
first (QuickXplain: Junker, AAAI 2004), so that few questions are asked where few of many items matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimal(items: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    """Return a subset of which `holds` is true, and of none that lacks one more item; earlier items are preferred to
    later ones. Expects that it holds of all items together."""
    found = _quick(items, (), True, holds)
    return _irreducible(found, holds)


def _quick(items: Sequence[T], base: Sequence[T], grown: bool, holds: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    """Return the items needed on top of `base`; whether it holds of `base` alone is asked only where that has
    `grown`."""
    if grown and holds(base):
        return ()
    if len(items) <= 1:
        return tuple(items)
    half = (len(items) + 1) // 2
    first, second = items[:half], items[half:]
    later = _quick(second, (*base, *first), True, holds)
    earlier = _quick(first, (*base, *later), bool(later), holds)
    return (*earlier, *later)


def _irreducible(items: tuple[T, ...], holds: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    """Drop items that are not needed. Where removing a constraint can harm (an untolerated zone is no domain of a
    spread), halving may leave one too many: each is tried once more."""
    position = len(items) - 1
    while position >= 0:
        without = (*items[:position], *items[position + 1 :])
        if holds(without):
            items, position = without, len(without)
        position -= 1
    return items
