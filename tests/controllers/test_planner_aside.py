"""Placeholders on nodes that stand are put aside before a plan is realised."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from cagrpc.controllers.planner.aside import put_aside
from cagrpc.controllers.planner.problem import class_key
from solver import solve
from solver.model import Budget, Node, NodeGroup, PodSet, PodSpec, Problem
from solver.realise import realise
from solver.validate import validate

GROUP = NodeGroup("g", {"cpu": 4000, "pods": 110}, 1.0)
BUDGET = Budget(deterministic_seconds=0.2)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    sizes = st.sampled_from([500, 1000, 1500])
    pods = [
        PodSet(f"p{n}", PodSpec((("cpu", draw(sizes)),)), draw(st.integers(1, 5)))
        for n in range(draw(st.integers(0, 2)))
    ]
    placeholders = [
        PodSet(f"t/{n}", PodSpec((("cpu", draw(sizes)),)), draw(st.integers(1, 6)), placeholder=True)
        for n in range(draw(st.integers(1, 3)))  # two of them may be of one class
    ]
    free = draw(st.lists(st.integers(0, 4000), max_size=3))
    nodes = [Node(f"n{n}", {"cpu": cpu, "pods": 100}) for n, cpu in enumerate(free)]
    return Problem((*pods, *placeholders), (GROUP,), tuple(nodes))


@settings(deadline=None, max_examples=60)
@given(problems())
def test_what_is_left_is_a_problem_and_its_plan(problem: Problem) -> None:
    plan = solve(problem, BUDGET)
    left, rest = put_aside(problem, plan)
    validate(left, BUDGET)
    slack = {cls.index: cls for cls in plan.pod_classes if cls.placeholder}
    assert not any(slack.keys() & placed.pods.keys() for placed in rest.existing)
    assert rest.nodes == plan.nodes
    assert rest.unplaced == plan.unplaced

    asked: Counter[object] = Counter()
    for each in left.pod_sets:
        asked[class_key(each)] += each.count
    assert {class_key(cls): cls.count for cls in rest.pod_classes} == asked

    before = {node.name: node.free["cpu"] for node in problem.nodes}
    taken = {
        placed.node: sum(
            count * dict(slack[index].spec.requests)["cpu"] for index, count in placed.pods.items() if index in slack
        )
        for placed in plan.existing
    }
    assert {node.name: before[node.name] - node.free["cpu"] for node in left.nodes if node.name in taken} == taken

    realised = realise(left, rest, BUDGET)
    assert {cls.index for cls in realised.plan.pod_classes} == {cls.index for cls in plan.pod_classes}


def test_without_any_there_is_nothing_to_do() -> None:
    problem = Problem((PodSet("p", PodSpec((("cpu", 500),)), 2),), (GROUP,), (Node("n", {"cpu": 4000, "pods": 9}),))
    plan = solve(problem, BUDGET)
    assert put_aside(problem, plan) == (problem, plan)
