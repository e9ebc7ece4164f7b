"""Places that are annealed: every unit is somewhere where it may be, and all is as cheap as can be shown."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bench.karpenter_mix import karpenter_mix
from solver import Budget, PodSet, Problem, solve
from solver.columns import pool as pools
from solver.integral import annealing_kernel
from solver.integral.annealing import Annealing
from solver.integral.annealing_kernel import anneal, insert
from solver.integral.quotas import chosen
from solver.model.budget import RunningBudget
from solver.planning.search import asked_units
from solver.reduction.colocation import CoLocation
from solver.reduction.reduce import reduce
from solver.reduction.reduced import Reduced
from solver.relaxation.claims import claims
from tests.support.examples import examples
from tests.support.solver.problems import gap_of, group, spec
from tests.support.solver.strategies import constrained_problems

HOT = 10.0
"""A temperature at which nearly everything is accepted."""


def annealing_of(problem: Problem) -> tuple[Reduced, Annealing | None]:
    """None where no pod can be served."""
    reduced = reduce(problem)
    claimed = claims(reduced)
    units = asked_units(reduced, claimed, chosen(reduced, claimed) if claimed.chooses else ())
    weights = pools.weighting(reduced)
    return reduced, Annealing(reduced, weights.node_cost, units) if any(units.values()) else None


@given(constrained_problems(), st.integers(0, 3000), st.sampled_from([0.0, 0.1, HOT]))
@examples(200)
def test_units_are_where_they_may_be(problem: Problem, moves: int, temperature: float) -> None:
    reduced, annealing = annealing_of(problem)
    assume(annealing is not None)
    assert annealing is not None
    annealing.place_all()
    before = annealing.units()
    annealing.anneal(moves, temperature)
    after = annealing.units()
    for demand in reduced.demands:
        assert sum(n for (of, _), n in after.items() if of == demand.index) == sum(
            n for (of, _), n in before.items() if of == demand.index
        )
    colocation, opened = CoLocation(reduced), Counter[int]()
    for pattern, count in annealing.nodes().items():
        kind, held = reduced.kinds[pattern.kind], dict(pattern.pods)
        rows, units = np.array(list(held)), np.array(list(held.values()))
        assert all(kind.fits[row] for row in held)
        assert (units @ reduced.requests[rows] <= np.array(kind.free)).all()
        assert (units <= reduced.caps[rows]).all()
        assert colocation.admits(kind, held)
        opened[kind.index] += count
    assert all(opened[kind.index] <= kind.most for kind in reduced.kinds)
    used = sum((opened[kind.index] * np.array(kind.use) for kind in reduced.new_kinds), np.zeros(len(reduced.limits)))
    assert (used <= np.array(reduced.limits)).all()
    costs = (max(kind.least, opened[kind.index]) * kind.price_micros for kind in reduced.new_kinds)
    assert annealing.cost_micros == sum(costs)


@pytest.mark.parametrize(("above", "left"), [(0, 1.0), (1, 0.0)])
def test_annealing_ends_where_no_plan_is_cheaper(above: int, left: float) -> None:
    _, annealing = annealing_of(karpenter_mix(100, types=5))
    assert annealing is not None
    annealing.place_all()
    budget = RunningBudget(Budget(deterministic_seconds=1.0))
    annealing.improve(budget, 1.0, 0, lambda: annealing.cost_micros - above)
    assert budget.left_seconds() == left


def test_the_mix_is_planned_near_its_bound_and_the_same_twice() -> None:
    problem = karpenter_mix(200, types=60)
    plan, again = (solve(problem, Budget(deterministic_seconds=0.5)) for _ in range(2))
    assert not plan.unplaced
    assert gap_of(plan) < 0.2
    assert replace(plan, elapsed_seconds=0) == replace(again, elapsed_seconds=0)


def test_the_mix_costs_little_more_where_there_is_no_time_at_all() -> None:
    problem = karpenter_mix(200, types=60)
    at_once, later = (solve(problem, budget) for budget in (Budget(0.0), Budget(deterministic_seconds=0.5)))
    assert not at_once.unplaced
    assert at_once.certificate.cost_usd_per_hour < 1.1 * later.certificate.cost_usd_per_hour


@pytest.mark.parametrize("kernel", [insert, anneal])
def test_nothing_is_compiled_within_a_budget(kernel: Any) -> None:
    solve(karpenter_mix(20, types=5), Budget(deterministic_seconds=0.1))
    assert len(kernel.compiled.signatures) == 1


def test_no_more_nodes_are_looked_at_than_in_proportion_to_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for half of them."""
    pods = 200
    full = Problem((PodSet("p", spec(600), pods),), (group("g", 1000, max_size=pods // 2),))
    _, annealing = annealing_of(full)
    assert annealing is not None
    looks, valued = 0, annealing_kernel._valued

    def counted(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return valued(*args)

    monkeypatch.setattr(annealing_kernel, "_valued", counted)
    monkeypatch.setattr(annealing_kernel.insert, "compiled", None)
    assert annealing.place_all() == pods // 2
    assert looks <= pods * annealing_kernel._OTHERS
