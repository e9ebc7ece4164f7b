"""Column generation: from the fluid's pod values to a pool of patterns whose relaxation is nearly the problem's, and
the bound on the cost that its pod values prove.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.columns import pool as pools
from solver.columns.pool import Duals, Pool, Relaxation, RelaxedMaster, Weighting
from solver.columns.pricing import Effort, Pricer, PricingResult
from solver.model.budget import PROPOSE_SECONDS, RunningBudget
from solver.reduction.reduced import Floats, Ints, Reduced
from solver.relaxation.linear_program import INFINITY

_SHARE = 0.3
"""Of the last relaxation's duals in those that are priced; the rest is what was priced before. Duals that swing from
one solve to the next make column generation slow (Pessoa et al., Automation and combination of linear-programming
based stabilization techniques in column generation, 2018)."""
LITTLE, _SOME, _EXACT = Effort(20, 5_000, 50_000), Effort(20, 100_000, 150_000), Effort(20, 4_000_000, 5_000_000, 0.1)
_EFFORTS = (LITTLE, _SOME, _EXACT, replace(_EXACT, proof=2.0))
"""Little, as long as that gains much; more, each time that nothing is found any more."""
_PROOF_SHARE = 0.1
"""Of the time left, that one proof may take at most."""
_GAIN = 1e-3
"""A round of little effort is worth another one as long as the relaxation gains so much."""
_WORTH = 1 + 1e-6
_SEED_WORTH = 0.95
_USED = 1e-9
"""Nodes from which on the relaxation uses a column."""


@dataclass(frozen=True, slots=True)
class CostProof:
    """A bound on the cost of every plan that serves all pods, and the duals that prove it: no pattern is worth more
    than its node."""

    least_cost_micros: float
    pods: Floats
    """Per row: what a unit is worth."""
    nodes: Floats
    """Per kind: what a node costs with its share of limits, and of its size where that runs out. A plan that costs c
    more than the bound has no column that is worth c less than its node."""
    dearer: Floats
    """Per kind: how much more a node costs than any pods on it are worth."""


NOTHING_PROVEN = CostProof(0.0, np.zeros(0), np.zeros(0), np.zeros(0))


@dataclass(frozen=True, slots=True)
class Generated:
    relaxation: Relaxation
    """An optimal fractional plan over the pool."""
    proof: CostProof
    resource_prices: Mapping[int, Floats]
    """Per kind: multipliers of its resources, of the last question."""


def generate(
    pool: Pool,
    values: Floats,
    active: Ints,
    weights: Weighting,
    budget: RunningBudget,
    fraction: float,
    over: Ints,
    enough: float = 0.0,
) -> Generated | None:
    """Adds columns until none pays any more, the first `fraction` of the budget is gone, or the relaxation is no more
    than `enough`. None only where not even the first relaxation was found in time. `over` is per kind one that
    dominates it (`dominance.dominators`): the bound holds where all kinds are active or have an active one over
    them."""
    reduced = pool.reduced
    pools.alone(pool, active, weights)
    centre = Duals(values, np.zeros(len(reduced.kinds)), np.zeros(len(reduced.limits)))
    asked, master = _Asked(pool, active, weights, budget, over), RelaxedMaster(pool, weights)
    asked.all_kinds(centre, LITTLE, fraction, _SEED_WORTH)
    level, best = 0, INFINITY
    while budget.left_seconds(fraction) > 0:
        found = master.solve(budget.wall_limit(fraction))
        if found is None or found.objective <= enough:
            break
        guesses = (centre.mixed(found.duals, _SHARE), found.duals)
        paid = next((duals for duals in guesses if asked.propose(duals, found, _EFFORTS[level], fraction)), None)
        if paid is None and level == len(_EFFORTS) - 1:
            break
        if paid is None or (level == 0 and found.objective > best * (1 - _GAIN)):
            level += 1
        centre, best = paid or centre, found.objective
    relaxation = master.solve()
    return None if relaxation is None else Generated(relaxation, asked.proof, asked.resource_prices)


class _Asked:
    """Questions to all kinds, and the best bound on the cost that their answers prove."""

    def __init__(self, pool: Pool, active: Ints, weights: Weighting, budget: RunningBudget, over: Ints) -> None:
        self._pool, self._pricer = pool, Pricer(pool.reduced, active, budget.granted.workers)
        self._kinds, self._weights, self._budget, self._over = len(active), weights, budget, over
        self.proof = NOTHING_PROVEN

    @property
    def resource_prices(self) -> Mapping[int, Floats]:
        return self._pricer.multipliers

    def propose(self, duals: Duals, found: Relaxation, effort: Effort, fraction: float) -> int:
        """Add patterns that pay, and return how many were new: near those that the relaxation uses, and only where none
        of these pays, of all kinds. While little effort finds many, that is quicker."""
        near = 0 if effort is LITTLE else self._near(duals, found, fraction)
        return near or self.all_kinds(duals, effort, fraction)

    def _near(self, duals: Duals, found: Relaxation, fraction: float) -> int:
        pool, budget = self._pool, self._budget
        budget.charge(PROPOSE_SECONDS)
        used = [pool.patterns[column] for column in np.flatnonzero(found.nodes > _USED)]
        prices = duals.prices(self._weights.node_cost, pool.reduced)
        return pool.add(
            self._pricer.near(used, duals.pods, prices * _WORTH, lambda: budget.left_seconds(fraction) <= 0)
        )

    def all_kinds(self, duals: Duals, effort: Effort, fraction: float, share: float = _WORTH) -> int:
        """As `propose`, of all kinds; keeps the bound."""
        new, offers = propose(
            self._pool, self._pricer, duals, self._weights.node_cost, effort, self._budget, fraction, share=share
        )
        if len(offers) == self._kinds:
            proof = cost_bound(self._pool.reduced, duals, offers, self._over)
            if proof.least_cost_micros >= self.proof.least_cost_micros:
                self.proof = proof
        return new


def propose(
    pool: Pool,
    pricer: Pricer,
    duals: Duals,
    node_cost: Floats,
    effort: Effort,
    budget: RunningBudget,
    fraction: float,
    *,
    share: float = _WORTH,
) -> tuple[int, Sequence[PricingResult]]:
    """Adds the patterns worth more than `share` of their price, as far as there is time; returns how many were new,
    and all answers."""
    budget.charge(PROPOSE_SECONDS * (effort.steps / _SOME.steps) ** 0.5)
    effort = replace(effort, proof=min(effort.proof, budget.left_seconds(fraction) * _PROOF_SHARE))
    prices = duals.prices(node_cost, pool.reduced)
    offers = pricer.offers(duals.pods, prices, share, effort, lambda: budget.left_seconds(fraction) <= 0)
    budget.charge(sum(offer.proof for offer in offers))
    return pool.add(pattern for offer in offers for pattern in offer.patterns), offers


def cost_bound(reduced: Reduced, duals: Duals, offers: Sequence[PricingResult], over: Ints) -> CostProof:
    """What every plan costs that serves all pods; `offers` are those of all kinds that are needed, for these duals
    (Farley, A note on bounding a class of linear programming problems, 1990).

    By duality: duals for which no pattern of any kind is worth more than its node costs bound the cost by what the pods
    are worth, less what limits and sizes take. So the pods' values are scaled until that is so; where the number of
    nodes of a kind is what is short, it pays for the difference instead.
    """
    cost = np.array([0.0 if kind.existing else float(kind.price_micros) for kind in reduced.kinds])
    most = np.array([kind.most for kind in reduced.kinds], dtype=np.float64)
    worth = np.zeros(len(reduced.kinds))
    for offer in offers:
        worth[offer.kind] = offer.bound
    worth -= reduced.use @ duals.limits
    worth = np.maximum(worth, worth[over])
    short = (most < reduced.enough) | (cost == 0)
    scaled = np.flatnonzero(~short & (worth > 0))
    scale = float((cost[scaled] / worth[scaled]).min()) if scaled.size else 1.0
    pods = float(duals.pods @ reduced.wanted - duals.limits @ np.array(reduced.limits, dtype=np.float64))
    room = np.where(short, np.maximum(0.0, scale * worth - cost), 0.0)
    least = scale * pods - float(room[short] @ most[short])
    dearer = np.maximum(0.0, cost + room - scale * worth)
    return CostProof(least, scale * duals.pods, cost + room + scale * (reduced.use @ duals.limits), dearer)
