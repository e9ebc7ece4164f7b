"""Rounding a fractional plan: what comes out is a plan, whatever limits there are, and close to the fractional one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cases import CASES
from bench.planted import plant
from solver import Budget, Limit, Problem, solve
from solver.columns import pool as pools
from solver.columns.generation import generate
from solver.columns.pool import Pool
from solver.integral.rounding import rounded
from solver.model.budget import RunningBudget
from solver.reduction.dominance import dominators, needed_kinds
from solver.reduction.reduce import reduce
from tests.support.examples import examples
from tests.support.solver.problems import GIB, gap_of, group, node, pods, spec


def test_a_problem_of_few_node_groups_is_solved_nearly_to_the_optimum() -> None:
    plan = solve(CASES["openb-1165-pods-12-groups"].build(), Budget(deterministic_seconds=5))
    assert not plan.unplaced
    assert gap_of(plan) < 0.002


@pytest.mark.parametrize(
    "seed", [*(pytest.param(seed, marks=pytest.mark.long("another seed")) for seed in range(2)), 2]
)
def test_planted_optima_are_nearly_reached(seed: int) -> None:
    planted = plant(4, 6, 18, 400, seed)
    plan = solve(planted.problem, Budget(deterministic_seconds=5))
    assert plan.certificate.cost_usd_per_hour < planted.optimum_usd_per_hour * 1.005


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """With what can run out: sizes of groups, a limit; and with what there must be or is already."""
    sets = [
        pods(f"p{i}", draw(st.integers(1, 30)), spec(draw(st.integers(1, 30)) * 100, draw(st.integers(0, 8))))
        for i in range(draw(st.integers(2, 6)))
    ]
    groups = [
        group(f"g{size}", size * 1000, usd, {"memory": 3 * size * GIB}, max_size=draw(st.integers(0, 20)))
        for size, usd in ((2, 0.11), (4, 0.2), (7, 0.33))
    ]
    nodes = [node(f"n{i}", draw(st.integers(1, 4)) * 1000) for i in range(draw(st.integers(0, 2)))]
    limits = (Limit("all", {"cpu": draw(st.integers(2, 80)) * 1000}),) if draw(st.booleans()) else ()
    return Problem(tuple(sets), tuple(groups), tuple(nodes), limits)


@given(problems())
@examples(100)
def test_a_rounded_plan_keeps_to_sizes_and_limits(problem: Problem) -> None:
    reduced = reduce(problem)
    pool, weights, active = Pool(reduced), pools.weighting(reduced), needed_kinds(reduced)
    budget = RunningBudget(Budget(deterministic_seconds=1))
    made = generate(pool, np.ones(len(reduced.rows)), active, weights, budget, 0.5, dominators(reduced, active))
    if made is None or not active.size:
        return
    found = rounded(pool, made.relaxation, weights, budget, 1.0)
    opened = found.opened(pool)
    assert all(count <= kind.most for count, kind in zip(opened, reduced.kinds, strict=True))
    assert (np.array(opened) @ reduced.use <= np.array(reduced.limits, dtype=np.int64)).all()
    for pattern, count in zip(pool.patterns, found.nodes, strict=True):
        if count and pattern.pods:
            specs, units = (np.array(part) for part in zip(*pattern.pods, strict=True))
            assert (units @ reduced.requests[specs] <= reduced.free[pattern.kind]).all()
    room = pool.serves(np.array(found.nodes, dtype=np.int64))
    served = reduced.wanted.copy()
    for demand in reduced.live:
        served[demand.row] -= found.unserved[demand.index]
    assert (served <= room).all()
    cost = sum(count * weights.node_cost[k] for k, count in enumerate(opened))
    left = sum(count * weights.unserved_cost[index] for index, count in found.unserved.items())
    # Where that is nothing, the linear program's is some 1e-9 of a millionth of $/h.
    assert cost + left >= made.relaxation.objective * (1 - 1e-6) - 1e-6
