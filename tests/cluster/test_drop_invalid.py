"""Invalid pods, Nodes and DaemonSets are in nobody's way."""

from __future__ import annotations

from cagrpc.cluster.drop_invalid import faults, solve_valid
from solver.model import Budget, Node, PodSet, PodSpec, Problem
from tests.support.solver.problems import node, spec

BUDGET = Budget(deterministic_seconds=0.5)
INVALID = PodSet("ns/invalid", PodSpec((("cpu", -1),)), 2)


def test_a_valid_problem_is_planned_as_it_is() -> None:
    problem = Problem((PodSet("ns/p", spec(cpu=1000), 2),), nodes=(node("n", 4000),))
    planned = solve_valid(problem, BUDGET)
    assert planned.problem is problem
    assert (planned.places_all, planned.dropped) == (True, ())


def test_what_is_invalid_is_left_out_and_does_not_count_as_placed() -> None:
    valid = PodSet("ns/p", spec(cpu=1000), 2)
    broken = Node("broken", {"cpu": -5})
    problem = Problem((INVALID, valid), nodes=(broken, node("n", 4000)), daemon_sets=(INVALID.spec,))
    assert faults(problem)
    planned = solve_valid(problem, BUDGET)
    assert planned.problem.pod_sets == (valid,)
    assert [each.node for each in planned.plan.existing] == ["n"]
    assert not planned.plan.unplaced
    assert (planned.places_all, planned.dropped) == (False, (INVALID,))
