"""Compilation ahead of time: numba takes seconds at the first use on a machine."""

from __future__ import annotations

import numpy as np

from solver.columns.knapsack import best_patterns
from solver.integral import packing


def warm_up() -> None:
    """Compile (or load what an earlier process compiled), so that the first plan does not wait for it."""
    packing.warm_up()
    units, free = np.ones((1, 2), dtype=np.int64), np.full(2, 2, dtype=np.int64)
    best_patterns(units, free, np.ones(1), np.ones(1, dtype=np.int64), np.ones(2), 1, 0.0, 4, 10, 2)
