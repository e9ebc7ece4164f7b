"""What maximum sizes and limits cost: named where they shape a plan, and only there."""

from __future__ import annotations

import pytest

from solver import Budget, Limit, Problem, solve
from solver.explanation.choices import reached, without
from solver.explanation.explain import explain
from solver.explanation.kinds import reason
from tests.support.solver.problems import group, node, pods, spec

BUDGET = Budget(deterministic_seconds=5.0)
CHEAP, DEAR = group("cheap", price=1.0, max_size=2), group("dear", price=3.0)
WEB = pods("web", 5, spec(4000))


def test_a_maximum_size_that_shapes_a_plan_is_named_with_its_cost() -> None:
    problem = Problem((WEB,), (CHEAP, DEAR))
    plan = solve(problem, BUDGET)
    assert plan.certificate.cost_usd_per_hour == 2 * 1.0 + 3 * 3.0
    (change,) = reached(problem, plan)
    why = without(problem, plan, [change], BUDGET)
    assert why is not None
    assert [reason(each) for each in why.changes] == ["node group cheap may have 2 nodes"]
    assert (why.without.cost_usd_per_hour, why.without.unserved, why.without.proven) == (-6.0, 0, True)
    assert why.lower_bound_usd_per_hour == 5.0
    assert explain(problem, plan, BUDGET).limited == (why,)


def test_what_is_reached_and_costs_nothing_is_not_named() -> None:
    problem = Problem((pods("web", 3, spec(4000)),), (CHEAP, DEAR), (node("n", 4000),))
    plan = solve(problem, BUDGET)
    (change,) = reached(problem, plan)
    assert change.subject == "cheap"
    assert without(problem, plan, [change], BUDGET) is None
    assert explain(problem, plan, BUDGET).limited == ()


def test_what_is_not_reached_is_not_asked_for() -> None:
    problem = Problem((pods("web", 1, spec(4000)),), (CHEAP, DEAR), limits=(Limit("team", {"cpu": 8000}),))
    assert reached(problem, solve(problem, BUDGET)) == ()


def test_a_full_group_that_pods_cannot_use_is_not_reached() -> None:
    small = group("small", cpu=1000, max_size=0)
    assert reached(Problem((WEB,), (small, DEAR)), solve(Problem((WEB,), (small, DEAR)), BUDGET)) == ()


@pytest.mark.parametrize("resource", ["cpu", "nodes"])
def test_limits_and_sizes_together_come_before_each_alone(resource: str) -> None:
    """The limit allows three nodes of the cheap group, then two, as its size does."""
    limit = Limit("team", {"cpu": 12_000} if resource == "cpu" else {"nodes": 3}, node_groups=frozenset({"cheap"}))
    problem = Problem((WEB,), (CHEAP, DEAR), limits=(limit,))
    assert [each.kind for each in reached(problem, solve(problem, BUDGET))] == ["max_size"]
    limit = Limit("team", {"cpu": 8000} if resource == "cpu" else {"nodes": 2}, node_groups=frozenset({"cheap"}))
    tight = Problem((WEB,), (CHEAP, DEAR), limits=(limit,))
    plan = solve(tight, BUDGET)
    together, *alone = explain(tight, plan, BUDGET).limited
    assert sorted(each.kind for each in together.changes) == ["limit", "max_size"]
    assert together.without.cost_usd_per_hour == -6.0
    assert alone == [], "neither does anything without the other"


def test_pods_that_a_limit_leaves_out_are_counted() -> None:
    problem = Problem((WEB,), (DEAR,), limits=(Limit("cluster", {"nodes": 3}),))
    plan = solve(problem, BUDGET)
    why = without(problem, plan, reached(problem, plan), BUDGET)
    assert why is not None
    assert why.without.unserved == -2
