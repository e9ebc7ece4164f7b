"""Explanations of what is chosen: what the plan would become without a group, and with one of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from solver import Budget, Explanation, Limit, Problem, explain, solve
from solver.explanation.choices import difference
from solver.model import NodeGroupIncrease
from tests.support.examples import examples
from tests.support.solver.problems import TAINT, group, pods, spec
from tests.support.solver.strategies import problems

BUDGET = Budget(deterministic_seconds=10.0)


def explained(problem: Problem) -> Explanation:
    return explain(problem, solve(problem, BUDGET), BUDGET)


def test_a_dearer_group_of_the_same_tier() -> None:
    (why,) = explained(Problem((pods("a", 8),), (group("x", price=1), group("y", price=1.5)))).chosen
    assert (why.node_group, why.nodes, why.cost_usd_per_hour) == ("x", 2, 2.0)
    assert why.without.cost_usd_per_hour == pytest.approx(1.0)
    assert why.without.increments == (NodeGroupIncrease("x", -2), NodeGroupIncrease("y", 2))
    (other,) = why.others
    assert other.node_group == "y"
    assert other.forced is not None
    assert other.forced.cost_usd_per_hour == pytest.approx(0.5)
    assert other.forced.proven


def test_a_cheaper_group_of_a_lower_tier() -> None:
    groups = (group("dear", price=9, weight=100), group("cheap", price=1, weight=10), group("cheaper", price=0.5))
    said = explained(Problem((pods("a", 8),), groups))
    (why,) = said.chosen
    assert said.price_of_priority_usd_per_hour == pytest.approx(17)
    # without the highest tier the next one serves, at a higher cost in its own tier and a lower one in all
    assert why.without.tiers == ((0, 0.0), (10, 2.0), (100, -18.0))
    assert why.without.cost_usd_per_hour == pytest.approx(-16)
    assert [(other.node_group, other.weight) for other in why.others] == [("cheap", 10), ("cheaper", 0)]
    lower = why.others[1].forced
    assert lower is not None
    assert lower.tiers[0] == (0, 0.5)


def test_a_group_that_nothing_can_stand_in_for() -> None:
    groups = (group("x", max_size=9), group("full", max_size=0), group("tainted", taints=(TAINT,)), group("small", 500))
    (why,) = explained(Problem((pods("a", 8),), groups)).chosen
    assert why.without.unserved == 8
    assert why.others == ()


def test_a_limit_that_allows_no_other() -> None:
    groups = (group("x"), group("gpu", price=9, capacity={"gpu": 1}))
    (why,) = explained(Problem((pods("a", 8),), groups, limits=(Limit("no", {"gpu": 0}),))).chosen
    assert why.others[0].forced is None


def test_the_dearest_are_explained_first_and_the_rest_is_counted() -> None:
    groups = tuple(group(f"g{i}", price=1 + i, labels={"n": str(i)}) for i in range(12))
    wanted = tuple(pods(f"p{i}", 1, spec(node_selector={"n": str(i)})) for i in range(12))
    said = explained(Problem(wanted, groups))
    assert [why.node_group for why in said.chosen] == [f"g{i}" for i in range(11, 1, -1)]
    assert said.chosen_left_out == 2


@given(problems())
@examples(40)
def test_nothing_else_is_better(problem: Problem) -> None:
    # priorities and waiting come before cost, and are not told apart in a difference
    alike = tuple(replace(p, priority=0, waiting_seconds=0) for p in problem.pod_sets)
    problem = replace(problem, pod_sets=alike)
    plan = solve(problem, BUDGET)
    for why in explain(problem, plan, BUDGET).chosen:
        if next(g.min_size - g.target_size for g in problem.node_groups if g.id == why.node_group) > 0:
            continue  # what a minimum size obliges to is no choice, and others may take a limit from it
        for other in (why.without, *(each.forced for each in why.others if each.forced)):
            worse = (other.unserved, other.placeholders, *(cost for _, cost in other.tiers))
            assert next((each for each in worse if each), 0) >= 0


def test_a_plan_differs_from_itself_in_nothing() -> None:
    problem = Problem((pods("a", 8), pods("b", 1, spec(99_000))), (group("x"), group("y", weight=5)))
    same = difference(solve(problem, BUDGET), solve(problem, BUDGET))
    assert (same.unserved, same.tiers, same.cost_usd_per_hour, same.increments) == (0, ((0, 0.0), (5, 0.0)), 0.0, ())
