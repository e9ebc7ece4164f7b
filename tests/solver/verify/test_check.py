"""The checker must catch what it is there for: each valid plan, damaged in one way, is rejected for that reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from solver import Budget, Limit, NodeGroupIncrease, PlannedNodes, PlanRejectedError, Problem, Unplaced, solve
from solver.model import PlacedOnNode, Plan
from solver.verify.check import check, faults_of
from tests.support.solver.problems import TAINT, group, node, pods, spec

PROBLEM = Problem(
    (pods("a", 6), pods("g1", 1, spec(2000), gang="job"), pods("g2", 1, spec(3000), gang="job")),
    (group("x", max_size=4), group("tainted", taints=(TAINT,))),
    (node("n", 1000),),
    (Limit("nodes", {"nodes": 4}),),
)
PLAN = solve(PROBLEM, Budget(deterministic_seconds=5))


def _moved(plan: Plan, to: str) -> Plan:
    nodes = tuple(replace(nodes, node_group=to) for nodes in plan.nodes)
    total = sum(n.count for n in nodes)
    return replace(plan, nodes=nodes, increments=(NodeGroupIncrease(to, total),))


def _index(name: str) -> int:
    return next(c.index for c in PLAN.pod_classes if c.example == name)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        pytest.param(lambda p: _moved(p, "tainted"), "taint", id="ineligible"),
        pytest.param(lambda p: _moved(p, "nobody"), "unknown groups", id="unknown-group"),
        pytest.param(
            lambda p: replace(p, nodes=(PlannedNodes("x", 1, {_index("a"): 5}), *p.nodes)), "over-full", id="over-full"
        ),
        pytest.param(lambda p: replace(p, nodes=p.nodes[1:]), "are accounted for", id="pods-lost"),
        pytest.param(lambda p: replace(p, increments=()), "do not add up", id="increments"),
        pytest.param(
            lambda p: replace(p, existing=(PlacedOnNode("n", {_index("a"): 2}),)), "over-full", id="existing-over-full"
        ),
        pytest.param(lambda p: replace(p, existing=(*p.existing, *p.existing)), "given 2 times", id="node-twice"),
        pytest.param(lambda p: replace(p, pod_classes=p.pod_classes[:1]), "class that does not exist", id="classes"),
        pytest.param(
            lambda p: replace(p, pod_classes=(replace(p.pod_classes[0], count=9), *p.pod_classes[1:])),
            "not the problem's pods",
            id="other-pods",
        ),
        pytest.param(
            lambda p: replace(p, objective=(*p.objective[:-1], replace(p.objective[-1], value=9.0))),
            "reports 9.0 as nodes",
            id="objective",
        ),
        pytest.param(lambda p: replace(p, objective=p.objective[1:]), "the objective has the stages", id="stages"),
        pytest.param(
            lambda p: replace(p, objective=(replace(p.objective[0], lower_bound=9.0), *p.objective[1:])),
            "lower bound 9.0 above",
            id="stage-bound",
        ),
        pytest.param(
            lambda p: replace(p, unplaced=(Unplaced(_index("g1"), 1, ("x",)),)), "served in part", id="half-a-gang"
        ),
        pytest.param(
            lambda p: replace(p, certificate=replace(p.certificate, cost_usd_per_hour=1.0)), "the nodes cost", id="cost"
        ),
        pytest.param(
            lambda p: replace(p, certificate=replace(p.certificate, lower_bound_usd_per_hour=99.0)),
            "above cost",
            id="bound",
        ),
    ],
)
def test_damage_is_found(damage: Callable[[Plan], Plan], expected: str) -> None:
    faults = list(faults_of(PROBLEM, damage(PLAN)))
    assert any(expected in fault for fault in faults), faults


def test_sizes_and_limits_are_held_against_the_problem() -> None:
    tight = replace(PROBLEM, node_groups=(group("x", max_size=1), PROBLEM.node_groups[1]))
    with pytest.raises(PlanRejectedError, match="at most 1 allowed"):
        check(tight, PLAN)
    with pytest.raises(PlanRejectedError, match="limit nodes: 3 nodes, at most 2"):
        check(replace(PROBLEM, limits=(Limit("nodes", {"nodes": 2}),)), PLAN)


def test_a_valid_plan_passes() -> None:
    check(PROBLEM, PLAN)
