"""What holds of every plan, on random small problems of every kind. The checker has passed each plan already: `solve`
lets none out that it has not."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from solver import Budget, NodeGroup, Problem, Status, solve
from solver.verify.check import faults_of
from tests.support.examples import examples
from tests.support.solver.reference import as_micros, best_objective
from tests.support.solver.strategies import problems

BUDGET = Budget(deterministic_seconds=10.0)
T = TypeVar("T")
MODEST = examples(60)


@given(problems())
@examples(120)
def test_the_same_optimum_as_an_exact_assignment_model(problem: Problem) -> None:
    plan = solve(problem, BUDGET)
    note(str(plan))
    assert as_micros(plan, problem) == best_objective(problem)


@given(problems())
@MODEST
def test_the_checker_accepts_and_bounds_are_below_costs(problem: Problem) -> None:
    plan = solve(problem, BUDGET)
    certificate = plan.certificate
    assert list(faults_of(problem, plan)) == []
    assert certificate.lower_bound_usd_per_hour <= certificate.cost_usd_per_hour + 1e-9
    assert certificate.gap is None or 0 <= certificate.gap <= 1
    assert certificate.price_of_priority_usd_per_hour <= certificate.cost_usd_per_hour + 1e-9
    pods = sum(p.count for p in problem.pod_sets)
    assert (certificate.status is Status.INFEASIBLE) == (sum(u.count for u in plan.unplaced) == pods)
    assert all(u.reasons for u in plan.unplaced)
    assert all(each.lower_bound <= each.value for each in plan.objective)


@given(problems())
@MODEST
def test_column_generation_never_claims_too_much(problem: Problem) -> None:
    """The way that large problems go, forced on small ones whose optimum is known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solver.planning.search.ENUMERATE", 0)
        plan = solve(problem, Budget(deterministic_seconds=2.0))
    note(str(plan))
    exact = best_objective(problem)
    found = as_micros(plan, problem)
    assert found >= exact
    assert plan.certificate.status is not Status.OPTIMAL or found[:-1] == exact[:-1]
    tiers = sorted(plan.certificate.tiers, key=lambda tier: tier.weight)
    first = len(found) - 1 - len(tiers)
    for number, tier in enumerate(tiers):
        if found[: first + number] != exact[: first + number]:
            break  # from here on the bound is of plans that serve or cost less well before it
        assert round(tier.lower_bound_usd_per_hour * 1e6) <= exact[first + number]


@given(problems(), st.randoms(use_true_random=False))
@MODEST
def test_the_order_of_the_input_changes_nothing(problem: Problem, rng: random.Random) -> None:
    def shuffled(items: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(rng.sample(items, len(items)))

    other = replace(
        problem,
        pod_sets=shuffled(problem.pod_sets),
        node_groups=shuffled(problem.node_groups),
        nodes=shuffled(problem.nodes),
        limits=shuffled(problem.limits),
    )
    assert replace(solve(other, BUDGET), elapsed_seconds=0) == replace(solve(problem, BUDGET), elapsed_seconds=0)


@given(problems(), st.integers(1, 10), st.integers(1, 16))
@MODEST
def test_more_capacity_never_worsens_the_objective(problem: Problem, cpu: int, price: int) -> None:
    weight = min((g.weight for g in problem.node_groups), default=0)
    more = NodeGroup("more", {"cpu": cpu * 1000, "memory": 8, "gpu": 1, "pods": 5}, price / 8, weight=weight)
    larger = replace(problem, node_groups=(*problem.node_groups, more))
    before = solve(problem, BUDGET).vector
    if not problem.node_groups:
        before = (*before[:-1], 0.0, before[-1])  # there was no tier yet
    assert solve(larger, BUDGET).vector <= before


@given(problems())
@MODEST
def test_deterministic_limits_give_the_same_plan_twice(problem: Problem) -> None:
    assert replace(solve(problem, BUDGET), elapsed_seconds=0) == replace(solve(problem, BUDGET), elapsed_seconds=0)
