"""Pods that a search left out, placed on what the plan has and on further nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solver import Budget, PodSet, Problem, solve
from solver.model import NODES, Limit
from solver.planning.settling import settled
from solver.verify.check import faults_of
from tests.support.solver.problems import group, spec


@pytest.mark.parametrize("gang", [None, "g"])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_further_nodes_of_several_groups_keep_a_limit_that_they_share(most: int, gang: str | None) -> None:
    pods = PodSet("p", spec(600), 3, gang=gang)
    problem = Problem((pods,), tuple(group(name, 1000) for name in "abc"), limits=(Limit("all", {NODES: most}),))
    nothing = solve(replace(problem, limits=(Limit("all", {NODES: 0}),)), Budget(0.0))
    left_out = replace(nothing, certificate=replace(nothing.certificate, unserved_unproven=3))
    plan = settled(problem, left_out)
    assert list(faults_of(problem, plan)) == []
    placed = sum(each.count for each in plan.nodes)
    assert placed == (most if gang is None or most == 3 else 0)
