"""Consolidation against the exact reference, on small random clusters: each night hundreds."""

from __future__ import annotations

import pytest

from solver import Budget, consolidate
from tests.support.solver.consolidation_check import check_consolidation
from tests.support.solver.standing import Draw, random_cluster
from tests.support.solver.standing_reference import MICROS, exact_micros

BUDGET = Budget(deterministic_seconds=1)
_CLUSTERS = 40


@pytest.mark.parametrize(
    "start", [1000, *(pytest.param(start, marks=pytest.mark.long("other seeds")) for start in (1040, 1080))]
)
@pytest.mark.parametrize("weights", [(0,), (0, 50)], ids=["one-weight", "two-weights"])
def test_bounds_hold_and_most_of_what_can_be_saved_is(weights: tuple[int, ...], start: int) -> None:
    could = saved = 0.0
    optimal = 0
    for seed in range(start, start + _CLUSTERS):
        problem = random_cluster(seed, Draw(nodes=5, obstacles=False, weights=weights, kept=0.15))
        least = exact_micros(problem)
        plan = consolidate(problem, BUDGET)
        check_consolidation(problem, plan)
        reached = [round(tier.cost_usd_per_hour * MICROS) for tier in reversed(plan.tiers)]
        assert tuple(reached) >= least, seed
        assert plan.least_usd_per_hour * MICROS <= sum(reached) + 1, seed
        assert plan.tiers[-1].lower_bound_usd_per_hour * MICROS <= least[0] + 1, seed
        if len(least) == 1:
            assert plan.least_usd_per_hour * MICROS <= least[0] + 1, seed
        before = round(plan.cost_before_usd_per_hour * MICROS)
        optimal += tuple(reached) == least
        if len(least) == 1:
            could, saved = could + before - least[0], saved + before - reached[0]
    assert optimal >= 0.9 * _CLUSTERS
    assert not could or saved >= 0.95 * could
