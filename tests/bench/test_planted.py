"""Planted optima: the certificate proves what it says, notices what is wrong, and the planner lives up to it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.planted import MOST_DIMENSIONS, Planted, PlantedNodes, faults, plant
from solver import Budget, solve
from tests.support.examples import examples

MICRO = 1e-6
SMALL = Budget(deterministic_seconds=0.2)


@st.composite
def planted_problems(draw: st.DrawFn) -> Planted:
    return plant(
        dimensions=draw(st.integers(2, MOST_DIMENSIONS)),
        kinds=draw(st.integers(1, 3)),
        patterns=draw(st.integers(1, 4)),
        nodes=draw(st.integers(1, 12)),
        seed=draw(st.integers(0, 10**6)),
    )


@given(planted_problems())
@examples(100)
def test_the_certificate_holds(planted: Planted) -> None:
    assert list(faults(planted)) == []


@given(planted_problems())
@examples(25)
def test_the_planted_optimum_is_found_or_the_gap_is_honest(planted: Planted) -> None:
    plan = solve(planted.problem, SMALL)
    assert plan.unplaced == ()
    optimum = planted.optimum_usd_per_hour
    assert plan.certificate.lower_bound_usd_per_hour <= optimum + MICRO
    assert plan.certificate.cost_usd_per_hour >= optimum - MICRO
    if plan.certificate.gap == 0:
        assert plan.certificate.cost_usd_per_hour == pytest.approx(optimum, abs=MICRO)


@pytest.mark.parametrize("dimensions", [2, 5, 12])
def test_the_planted_optimum_is_found_where_there_is_little_to_choose(dimensions: int) -> None:
    planted = plant(dimensions, kinds=2, patterns=2, nodes=10, seed=1)
    plan = solve(planted.problem, SMALL)
    assert plan.certificate.cost_usd_per_hour == pytest.approx(planted.optimum_usd_per_hour, abs=MICRO)
    assert plan.certificate.gap == pytest.approx(0, abs=1e-9)


def test_the_same_seed_plants_the_same() -> None:
    assert plant(4, 3, 5, 40, 7) == plant(4, 3, 5, 40, 7)
    assert plant(4, 3, 5, 40, 7) != plant(4, 3, 5, 40, 8)


@pytest.mark.parametrize("dimensions", [1, 13])
def test_other_dimensions_are_refused(dimensions: int) -> None:
    with pytest.raises(ValueError, match="2 to 12"):
        plant(dimensions, 1, 1, 1, 0)


def _cheaper_group(planted: Planted) -> Planted:
    first, *others = planted.problem.node_groups
    cheaper = replace(first, price_usd_per_hour=first.price_usd_per_hour - MICRO)
    return replace(planted, problem=replace(planted.problem, node_groups=(cheaper, *others)))


def _lost_pod(planted: Planted) -> Planted:
    first, *others = planted.problem.pod_sets
    return replace(planted, problem=replace(planted.problem, pod_sets=(replace(first, count=first.count - 1), *others)))


def _negative_price(planted: Planted) -> Planted:
    return replace(planted, prices_micros={**planted.prices_micros, "cpu": Fraction(-1)})


def _fuller_node(planted: Planted) -> Planted:
    first, *others = planted.nodes
    name = next(iter(first.pods))
    fuller = PlantedNodes(first.node_group, first.count, {**first.pods, name: first.pods[name] + 1})
    return replace(planted, nodes=(fuller, *others))


def _lower_optimum(planted: Planted) -> Planted:
    return replace(planted, optimum_usd_per_hour=planted.optimum_usd_per_hour - MICRO)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (_cheaper_group, "costs less than its allocatable is worth"),
        (_lost_pod, "do not hold the problem's pods"),
        (_negative_price, "cpu has a negative price"),
        (_fuller_node, "is over-full"),
        (_lower_optimum, "do not cost the optimum"),
    ],
)
def test_a_spoilt_certificate_is_noticed(spoil: object, expected: str) -> None:
    assert callable(spoil)
    assert expected in "\n".join(faults(spoil(plant(3, 2, 3, 12, 5))))
