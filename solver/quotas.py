"""Choosing rows: how many pods each domain, variant or bundle gets, so that what is left is a problem without rules.

The fluid relaxation knows the rules and says, in fractions, how many units each row should serve; the nearest
integral choice that keeps them is taken (`claims.near`). The problem with rows chosen is a `Reduced` in which each
demand has one row, so that patterns, column generation and greedy packing never hear of a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from solver.claims import Claims
from solver.reduce import Demand, Reduced


def pinned(reduced: Reduced, claimed: Claims, values: Sequence[int]) -> Reduced:
    """The problem in which each demand is split over the rows that `values` (per variable of the claims) choose. Pods
    that are not served so are left out."""
    demands: list[Demand] = []
    bundled: set[int] = set()
    for demand in reduced.live:
        ways = [(row, claimed.units.get((demand.index, row))) for row in demand.rows]
        if len(ways) == 1 and ways[0][1] is None:
            demands.append(replace(demand, index=len(demands)))
            continue
        for row, variable in ways:
            count = 0 if variable is None else values[variable]
            if count and row not in bundled:
                ages = demand.ages if len(ways) == 1 else ((0, count),)
                if reduced.rows[row].bundle:
                    bundled.add(row)
                    ages = ((0, count),)
                if sum(pods for _, pods in ages) != count:
                    ages = ((0, count),)
                demands.append(replace(demand, index=len(demands), rows=(row,), count=count, ages=ages))
    return replace(reduced, demands=tuple(demands), hopeless=frozenset(), rules=(), together=())
