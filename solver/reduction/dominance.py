"""Which kinds of new nodes no plan needs, because another kind serves the same pods at least as well.

Kind a dominates b when it holds whatever b holds, takes no more of any limit, and is in a higher tier, or in the same
tier at no higher price. Where a also has room for every pod that fits it (or limits end it first, which a and b share),
replacing every b by an a gives a plan that is at least as good in every objective: b is not needed. Where a can run
out, b may be needed then and only then; whatever a pattern of b is worth, one of a is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from solver.reduction.reduced import Bools, Ints, Reduced

_AT_ONCE = 8
"""Kinds that one is compared with in one step."""
_SHAPES_AT_ONCE = 64


def needed_kinds(reduced: Reduced) -> Ints:
    """Indices of the kinds worth looking at: all usable existing ones, and the new ones that are not dominated by one
    that cannot run out."""
    if not reduced.kinds:
        return np.zeros(0, dtype=np.int64)
    most = np.array([kind.most for kind in reduced.kinds])
    least = np.array([kind.least for kind in reduced.kinds])
    limited = np.array([kind.limited for kind in reduced.kinds], dtype=bool)
    over = _dominators(reduced, most > 0, limited | (most >= reduced.enough))
    keep = (most > 0) & (over == np.arange(len(over)))
    return np.flatnonzero(keep & ((reduced.enough > 0) | (least > 0)))


def dominators(reduced: Reduced, active: Ints) -> Ints:
    """Per kind an active one that dominates it, though it may run out; itself where there is none."""
    usable = np.zeros(len(reduced.kinds), dtype=bool)
    usable[active] = True
    return _dominators(reduced, usable, usable)


def _dominators(reduced: Reduced, usable: Bools, able: Bools) -> Ints:
    """Return the dominators of usable kinds, among the `able` ones that no other able one dominates."""
    fits, kinds = reduced.fits, reduced.kinds
    over = np.arange(len(kinds))
    new = ~reduced.existing
    candidates = np.flatnonzero(usable & new & able)
    shape, at_least = _shapes(reduced)
    held, lacking = np.packbits(fits, axis=1), np.packbits(~fits, axis=1)
    for b in np.flatnonzero(usable & new):
        if kinds[b].least or kinds[b].previous:
            continue
        others = candidates[at_least(shape[b])[shape[candidates]]]
        others = others[(over[others] == others) & (others != b)]
        # Larger ones mostly fit all the same pods: the first few decide.
        for first in range(0, len(others), _AT_ONCE):
            some = others[first : first + _AT_ONCE]
            holds_all = ~(held[b] & lacking[some]).any(axis=1)
            if holds_all.any():
                over[b] = some[holds_all.argmax()]
                break
    while (over[over] != over).any():
        over = over[over]
    return over


def _shapes(reduced: Reduced) -> tuple[Ints, Callable[[int], Bools]]:
    """Return each kind's shape (equal kinds in several zones have one), and a function that says which shapes are at
    least as good as one: as large, as little limited, of a higher tier or of the same tier and as cheap."""
    tier_and_price = np.array([(kind.weight, kind.price_micros) for kind in reduced.kinds], dtype=np.int64)
    parts = (reduced.free, -reduced.use, reduced.spare)
    table, shape = np.unique(np.hstack([tier_and_price, *parts]), axis=0, return_inverse=True)
    weight, price, sizes = table[:, 0], table[:, 1], np.ascontiguousarray(table[:, 2:].T)

    @cache
    def better(first: int) -> Bools:
        some = slice(first, first + _SHAPES_AT_ONCE)
        least = weight[some, None]
        found: Bools = (weight > least) | ((weight == least) & (price <= price[some, None]))
        for amounts in sizes:
            found &= amounts >= amounts[some, None]
        return found

    def at_least(of: int) -> Bools:
        first = of - of % _SHAPES_AT_ONCE
        found: Bools = better(first)[of - first]
        return found

    return shape.reshape(-1), at_least
