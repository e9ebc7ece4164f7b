"""Column generation against all patterns of small problems."""

from __future__ import annotations

import random

import numpy as np
import pytest

from solver import Budget, Limit, NodeGroup, PodSet, PodSpec, Problem
from solver.columns import pool as pools
from solver.columns.generation import generate
from solver.columns.patterns import enumerate_maximal
from solver.columns.pool import Pool, RelaxedMaster
from solver.model import PODS
from solver.model.budget import RunningBudget
from solver.reduction.dominance import dominators, needed_kinds
from solver.reduction.reduce import reduce


def _problem(seed: int) -> Problem:
    chance = random.Random(seed)
    sets = tuple(
        PodSet(
            f"p{i}", PodSpec((("cpu", chance.randint(3, 20)), ("memory", chance.randint(3, 20)))), chance.randint(1, 20)
        )
        for i in range(5)
    )
    groups = tuple(
        NodeGroup(
            f"g{size}", {"cpu": size, "memory": size + 5, PODS: 4}, 0.1 + size / 100, max_size=chance.randint(5, 60)
        )
        for size in (20, 33, 47)
    )
    limits = (Limit("all", {"cpu": chance.randint(800, 4000)}),) if seed % 2 else ()
    return Problem(sets, groups, (), limits)


@pytest.mark.parametrize("seed", range(8))
def test_generated_bounds_are_no_more_than_the_relaxation_over_all_patterns(seed: int) -> None:
    problem = _problem(seed)
    reduced = reduce(problem)
    every = enumerate_maximal(reduced, 5000, set(range(len(reduced.kinds))))
    assert every is not None
    pool, whole, weights = Pool(reduced), Pool(reduced), pools.weighting(reduced)
    whole.add(every)
    best = RelaxedMaster(whole, weights).solve()
    active = needed_kinds(reduced)
    budget = RunningBudget(Budget(deterministic_seconds=8))
    made = generate(pool, np.ones(len(reduced.rows)), active, weights, budget, 1.0, dominators(reduced, active))
    assert best is not None
    assert made is not None
    assert len(made.relaxation.nodes) == len(pool.patterns)
    assert made.relaxation.objective >= best.objective * (1 - 1e-6)
    if not any(made.relaxation.unserved.values()):
        assert made.proof.least_cost_micros <= best.objective * (1 + 1e-6)
    # No column pays any more: the relaxation over those found is the one over all.
    assert made.relaxation.objective == pytest.approx(best.objective, rel=1e-4)
