"""Kinds that are fluid: their relaxation lies between the fluid one and that of columns, and its bounds hold."""

from __future__ import annotations

import random

import numpy as np
import pytest

from solver import Budget, Limit, NodeGroup, PodSet, PodSpec, Problem
from solver.columns import pool as pools
from solver.columns.generation import generate
from solver.columns.partly_fluid import PartlyFluid
from solver.columns.patterns import enumerate_maximal
from solver.columns.pool import Pool, RelaxedMaster
from solver.columns.pricing import Effort, Pricer
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
def test_fluid_kinds_cost_no_more_than_their_columns_and_prove_it(seed: int) -> None:
    reduced = reduce(_problem(seed))
    every = enumerate_maximal(reduced, 5000, set(range(len(reduced.kinds))))
    assert every is not None
    pool, weights = Pool(reduced), pools.weighting(reduced)
    pool.add(every)
    columns = RelaxedMaster(pool, weights).solve()
    kinds = np.arange(len(reduced.kinds))
    assert columns is not None
    before = 0.0
    for number in range(len(kinds), -1, -1):  # ever fewer fluid kinds are ever less relaxed
        master = PartlyFluid(pool, weights, kinds[:number])
        found = master.solve()
        assert found is not None
        assert before * (1 - 1e-6) <= found.objective <= columns.objective * (1 + 1e-6)
        before = found.objective
        prices = found.duals.prices(weights.node_cost, reduced)
        for kind in kinds[:number].tolist():
            pricer = Pricer(reduced, np.array([kind]), multipliers={kind: master.prices(kind)})
            (offer,) = pricer.offers(found.duals.pods, prices, 1 + 1e-6, Effort(1, 1, 100), lambda: False)
            assert not offer.patterns
            assert offer.bound <= prices[kind] * (1 + 1e-5)
    assert before == pytest.approx(columns.objective)


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
