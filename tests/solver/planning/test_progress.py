"""What `solve` tells while it plans: ever better plans, bounds that hold, and no influence on the plan."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from solver import Budget, PlanProgress, Problem, solve
from tests.support.solver.problems import GIB, group, pods, spec

BUDGET = Budget(deterministic_seconds=0.5)


def problem(weights: tuple[int, int] = (1, 1)) -> Problem:
    """Many sizes on few kinds of nodes, so that patterns are found one by one."""
    chance = random.Random(7)
    sets = tuple(
        pods(f"p{index}", chance.randint(1, 40), spec(chance.randint(3, 77) * 100, chance.randint(1, 29)))
        for index in range(40)
    )
    sizes = ((8_000, 32, 0.4), (16_000, 64, 0.77), (32_000, 64, 1.2))
    groups = tuple(
        group(
            f"g{cpu}-{weight}", cpu=cpu, extra={"memory": memory * GIB}, price=price * (1 + 0.1 * index), weight=weight
        )
        for index, weight in enumerate(dict.fromkeys(weights))
        for cpu, memory, price in sizes
    )
    return Problem(sets, groups)


@pytest.mark.parametrize("weights", [(1, 1), (1, 9)], ids=["one tier", "two tiers"])
def test_the_gap_falls_to_that_of_the_plan(weights: tuple[int, int]) -> None:
    told: list[PlanProgress] = []
    plan = solve(problem(weights), BUDGET, told.append)
    assert len(told) > 1
    for earlier, later in pairwise(told):
        assert later != earlier
        assert (later.unserved, later.cost_usd_per_hour) <= (earlier.unserved, earlier.cost_usd_per_hour)
        assert later.lower_bound_usd_per_hour >= earlier.lower_bound_usd_per_hour
    last, certificate = told[-1], plan.certificate
    assert last.unserved == sum(each.count for each in plan.unplaced) == 0
    assert last.lower_bound_usd_per_hour <= certificate.cost_usd_per_hour + 1e-6
    assert last.cost_usd_per_hour == pytest.approx(certificate.cost_usd_per_hour)
    assert last.lower_bound_usd_per_hour == pytest.approx(certificate.lower_bound_usd_per_hour)
    assert last.gap == pytest.approx(certificate.gap)


def test_whoever_listens_changes_no_plan() -> None:
    silent, told = solve(problem(), BUDGET), solve(problem(), BUDGET, lambda _: None)
    assert replace(told, elapsed_seconds=0.0) == replace(silent, elapsed_seconds=0.0)
