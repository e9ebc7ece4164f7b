"""Irreducible sets: of constraints that together keep pods out, and of changes that together let them in.

Both are minimal sets of which something holds, and what holds of a set holds of every larger one. It is asked set by
set, halves first (QuickXplain: Junker, AAAI 2004), so that few questions are asked where few of many items matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimal(items: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    """A subset of which `holds` is true, and of none that lacks one more item; earlier items are kept rather than later
    ones. Expects that it holds of all items together."""
    found = _quick(items, (), True, holds)
    return _irreducible(found, holds)


def _quick(items: Sequence[T], base: Sequence[T], grown: bool, holds: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    """The items needed on top of `base`; whether it holds of `base` alone is asked only where that `grown` since."""
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
    """Where a constraint's absence can harm (an untolerated zone is no domain of a spread), halving may leave one too
    many: each is tried once more."""
    position = len(items) - 1
    while position >= 0:
        without = (*items[:position], *items[position + 1 :])
        if holds(without):
            items, position = without, len(without)
        position -= 1
    return items
