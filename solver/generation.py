"""Column generation: from the fluid's pod values to a pool of patterns whose relaxation is nearly the problem's."""

from __future__ import annotations

import numpy as np

from solver import columns
from solver.budgeting import PROPOSE_SECONDS, Meter
from solver.columns import Pool, Relaxation, RelaxedMaster, Weighting
from solver.pricing import Pricer
from solver.reduce import Floats, Ints

_NEAR = 0.1
"""How far pod values may go from the fluid's at first; wider where the optimum turns out to be elsewhere."""
_SEEDS = 3
_FIRST_STEPS = 100_000
_MOST_STEPS = 10_000_000
_WORTH = 1 + 1e-6
_SEED_WORTH = 0.95
_TRACE = 1e-6


def generate(
    pool: Pool, values: Floats, active: Ints, weights: Weighting, meter: Meter, fraction: float
) -> Relaxation | None:
    """Adds columns until none pays any more or the first `fraction` of the budget is gone. Returns an optimal
    fractional plan over the pool as it then is; None only where not even the first was found in time."""
    pricer, master = Pricer(pool.reduced, active), RelaxedMaster(pool, weights)
    rng = np.random.default_rng(1)
    columns.alone(pool, active, weights)
    for guess in (values, *(values * rng.uniform(1 - _NEAR, 1 + _NEAR, len(values)) for _ in range(_SEEDS))):
        propose(pool, pricer, guess, weights.node_cost, _FIRST_STEPS, meter, fraction, share=_SEED_WORTH)
    low, high, widened = values * (1 - _NEAR), values * (1 + _NEAR), np.zeros(len(values))
    master.steer(low, high)
    steps = _FIRST_STEPS
    while meter.left_seconds(fraction) > 0:
        found = master.solve(meter.wall_limit(fraction))
        if found is None:
            break
        prices = weights.node_cost + found.kind_values
        if propose(pool, pricer, found.pod_values, prices, steps, meter, fraction):
            continue
        edge = np.abs(found.steered) > _TRACE
        if edge.any():
            widened += edge
            width = _NEAR * widened**2
            low = np.where(edge & (found.steered < 0), values * np.maximum(0.0, 1 - width), low)
            high = np.where(edge & (found.steered > 0), values * (1 + width), high)
            master.steer(low, high)
        elif steps < _MOST_STEPS:
            steps *= 10
        else:
            break
    master.release()
    return master.solve()


def propose(
    pool: Pool,
    pricer: Pricer,
    values: Floats,
    prices: Floats,
    steps: int,
    meter: Meter,
    fraction: float,
    *,
    share: float = _WORTH,
) -> int:
    """Adds the patterns worth more than `share` of their price, as far as there is time; returns how many were new."""
    offers = pricer.offers(values, prices, share, steps, lambda: meter.left_seconds(fraction) <= 0)
    meter.charge(PROPOSE_SECONDS)
    return pool.add(offer.pattern for offer in offers if offer.pattern)
