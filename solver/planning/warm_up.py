"""Compilation ahead of time: numba takes some ten seconds at the first use on a machine, and a quarter of one to load
what it compiled before. `python -m solver.planning.warm_up` does it when cagrpc is installed."""

from __future__ import annotations

from functools import cache

import numpy as np

from solver.columns.exchange import exchange
from solver.columns.knapsack import best_patterns
from solver.integral import annealing, balanced_kernel, packing

COMPILING = "the planner is compiled, which takes about a minute the first time on a machine"
"""What others wait for meanwhile, for people."""


@cache
def warm_up() -> None:
    """Compile, or load what an earlier process compiled, once. Called before a plan's time begins: it takes none of the
    budget."""
    packing.warm_up()
    balanced_kernel.warm_up()
    annealing.warm_up()
    units, free, one = np.ones((1, 2), dtype=np.int64), np.full(2, 2, dtype=np.int64), np.ones(1, dtype=np.int64)
    best_patterns(units, free, np.ones(1), one, np.ones(2), 1, 0.0, 4, 10, 2)
    exchange(units, free, np.ones(1), one, np.zeros(1, dtype=np.int64), one.copy())


if __name__ == "__main__":
    warm_up()
