"""Short loops that kernels share. They stand for what numpy has too, and numba takes seconds to compile, for
the words of what it could raise."""

from __future__ import annotations

from typing import TypeVar

from solver.compiled import inner
from solver.reduction.reduced import Floats, Ints

Numbers = TypeVar("Numbers", Ints, Floats)


@inner
def assign(numbers: Numbers, target: Numbers) -> None:
    """Assign all numbers."""
    for index in range(len(numbers)):
        target[index] = numbers[index]


@inner
def fits(requests: Ints, item: int, room: Ints) -> bool:
    """Return whether there is room for one more of an item."""
    for r in range(len(room)):  # noqa: SIM110 - generators are not compiled
        if requests[item, r] > room[r]:
            return False
    return True


@inner
def any_left(units: Ints) -> bool:
    """Return whether there is anything above 0."""
    for each in units:  # noqa: SIM110 - generators are not compiled
        if each > 0:
            return True
    return False


@inner
def highest(ratio: Floats) -> int:
    """Return the place of the highest, the first of equal ones."""
    best = 0
    for place in range(1, len(ratio)):
        if ratio[place] > ratio[best]:
            best = place
    return best
