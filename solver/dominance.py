"""Which kinds of new nodes no plan needs, because another kind serves the same pods at least as well."""

from __future__ import annotations

import numpy as np

from solver.reduce import Ints, Reduced


def needed_kinds(reduced: Reduced) -> Ints:
    """Indices of the kinds worth looking at: all usable existing ones, and the new ones that are not dominated.

    Kind a dominates b when it holds whatever b holds, takes no more of any limit, has room for every pod that fits it
    (or limits end it first, which a and b share), and is in a higher tier, or in the same tier at no higher price.
    Replacing every b by an a then gives a plan that is at least as good in every objective.
    """
    usable = np.array([kind.most > 0 for kind in reduced.kinds], dtype=bool)
    if not reduced.new_kinds:
        return np.flatnonzero(usable)
    free, fits = reduced.free, reduced.fits
    price = np.array([kind.price_micros for kind in reduced.kinds])
    weight = np.array([kind.weight for kind in reduced.kinds])
    most = np.array([kind.most for kind in reduced.kinds])
    use = reduced.use
    limited = np.array([kind.limited for kind in reduced.kinds], dtype=bool)
    new = np.array([not kind.existing for kind in reduced.kinds], dtype=bool)
    enough = usable & new & (limited | (most >= reduced.enough))
    keep = usable.copy()
    candidates = np.flatnonzero(enough)
    for b in np.flatnonzero(usable & new):
        kind = reduced.kinds[b]
        if kind.least or kind.previous:
            continue
        others = candidates[keep[candidates] & (candidates != b)]
        better = (weight[others] > kind.weight) | ((weight[others] == kind.weight) & (price[others] <= price[b]))
        larger = (free[others] >= free[b]).all(axis=1) & (use[others] <= use[b]).all(axis=1)
        mine = fits[b]
        # Larger ones mostly fit all the same pods: the first few tell, and the long comparison is made one by one.
        keep[b] = not any((fits[a] >= mine).all() for a in others[better & larger])
    return np.flatnonzero(keep & ((reduced.enough > 0) | (_least(reduced) > 0)))


def _least(reduced: Reduced) -> Ints:
    return np.array([kind.least for kind in reduced.kinds], dtype=np.int64)
