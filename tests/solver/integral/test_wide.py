"""Problems with many specs and many standing nodes: the merged fluid relaxation proves what it says, and plans packed
along it are whole and close to it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Never

import numpy as np
import pytest

from solver import Budget, Limit, Node, NodeGroup, PodSet, PodSpec, Problem, solve
from solver.integral.warm_start import known_nodes
from solver.model import PODS
from solver.model.budget import RunningBudget
from solver.model.objective import Goal, ObjectiveStage
from solver.reduction.dominance import dominators, needed_kinds
from solver.reduction.reduce import reduce
from solver.relaxation.claims import claims
from solver.relaxation.fluid import FluidModel
from solver.relaxation.merged import Ask, MergedFluid
from tests.support.solver.problems import gap_of

_COST = ObjectiveStage(Goal.COST)
_UNSERVED = ObjectiveStage(Goal.UNSERVED)
SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.long("another seed")) for seed in range(1, 4)))


def _problem(specs: int, nodes: int, seed: int, most: int = 1000) -> Problem:
    rng = random.Random(seed)
    sets = [
        PodSet(
            f"set-{i:03}",
            PodSpec((("cpu", rng.randrange(1, 40) * 100), ("memory", rng.randrange(1, 120) * 100 + i))),
            rng.randrange(1, 30),
        )
        for i in range(specs)
    ]
    groups = [
        NodeGroup(f"{name}-{size}", {"cpu": size * 1000, "memory": size * ratio, PODS: 110}, size * usd, max_size=most)
        for name, ratio, usd in (("lean", 2000, 0.04), ("mid", 4000, 0.05), ("fat", 8000, 0.066))
        for size in (4, 8, 16, 32)
    ]
    standing = [
        Node(f"node-{i:03}", {"cpu": rng.randrange(8000), "memory": rng.randrange(32_000), PODS: rng.randrange(1, 20)})
        for i in range(nodes)
    ]
    return Problem(tuple(sets), tuple(groups), tuple(standing))


def _bounds(problem: Problem, *, time: bool = True) -> tuple[float, float]:
    """The cost's bound by merging, and by the whole linear program, where every pod is served."""
    reduced = reduce(problem)
    active = needed_kinds(reduced)
    cost = np.array([0.0 if kind.existing else float(kind.price_micros) for kind in reduced.kinds])
    ask = Ask(cost, np.full(len(reduced.demands), np.inf))
    merged = MergedFluid(reduced, active, dominators(reduced, active), ask).solve(lambda: not time, lambda: None)
    whole = FluidModel(reduced, active, claims(reduced)).minimise(_COST, {_UNSERVED: 0})
    assert whole is not None
    return merged.bound, whole


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("specs", "nodes", "most"), [(60, 0, 1000), (250, 0, 1000), (250, 0, 80), (200, 60, 1000)])
def test_merged_bound_holds_and_is_close(specs: int, nodes: int, most: int, seed: int) -> None:
    merged, whole = _bounds(_problem(specs, nodes, seed, most))
    assert merged <= whole * (1 + 1e-6)
    assert merged >= whole * 0.97


@pytest.mark.parametrize("seed", SEEDS)
def test_there_is_a_bound_before_any_linear_program_is_solved(seed: int) -> None:
    merged, whole = _bounds(_problem(250, 40, seed), time=False)
    assert whole * 0.3 < merged <= whole * (1 + 1e-6)


def test_without_time_for_a_linear_program_no_specs_are_grouped_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def grouped(*_: object) -> Never:
        pytest.fail("specs are grouped")

    monkeypatch.setattr(MergedFluid, "_first_groups", grouped)
    assert _bounds(_problem(250, 0, 0), time=False)[0] > 0.0


@pytest.mark.parametrize("seed", SEEDS)
def test_merged_bound_holds_under_limits(seed: int) -> None:
    problem = _problem(200, 0, seed)
    total = sum(dict(p.spec.requests)["cpu"] * p.count for p in problem.pod_sets)
    lean = frozenset(group.id for group in problem.node_groups if group.id.startswith("lean"))
    merged, whole = _bounds(replace(problem, limits=(Limit("lean", {"cpu": total // 5}, node_groups=lean),)))
    assert whole * 0.97 < merged <= whole * (1 + 1e-6)


def test_a_plan_for_many_specs_and_nodes_is_whole_close_to_its_bound_and_the_same_every_time() -> None:
    problem = _problem(300, 300, 1)
    plan, again = (solve(problem, Budget(deterministic_seconds=0.2)) for _ in range(2))
    assert not plan.unplaced
    assert 0 < gap_of(plan) < 0.1
    assert plan.existing
    assert replace(plan, elapsed_seconds=0.0) == replace(again, elapsed_seconds=0.0)


def test_many_specs_that_do_not_all_find_room() -> None:
    problem = _problem(300, 250, 2, most=3)
    plan = solve(problem, Budget(deterministic_seconds=0.2))
    left = sum(unplaced.count for unplaced in plan.unplaced)
    assert 0 < left < sum(pods.count for pods in problem.pod_sets)
    assert 0 < plan.objective[0].lower_bound <= plan.objective[0].value == left


def test_minimum_sizes_are_met_among_many_specs() -> None:
    problem = _problem(300, 250, 4)
    groups = [replace(group, min_size=2) if group.id == "fat-4" else group for group in problem.node_groups]
    plan = solve(replace(problem, node_groups=tuple(groups)), Budget(deterministic_seconds=0.2))
    assert {i.node_group: i.delta for i in plan.increments}["fat-4"] >= 2
    assert not plan.unplaced


def _changed(problem: Problem) -> Problem:
    """A few pods more, a few less, one class new, one gone."""
    sets = list(problem.pod_sets[1:])
    sets[0] = replace(sets[0], count=sets[0].count + 2)
    sets[1] = replace(sets[1], count=max(1, sets[1].count - 2))
    sets.append(PodSet("new", PodSpec((("cpu", 700), ("memory", 900))), 3))
    return replace(problem, pod_sets=tuple(sets))


@pytest.mark.parametrize(("specs", "nodes"), [(30, 20), (300, 250)])
def test_a_previous_plans_nodes_are_known_again(specs: int, nodes: int) -> None:
    problem = _problem(specs, nodes, 5)
    plan = solve(problem, Budget(deterministic_seconds=0.2))
    reduced = reduce(replace(_changed(problem), previous=plan))
    known = known_nodes(reduced)
    gone = {cls.index for cls in plan.pod_classes if cls.example == problem.pod_sets[0].name}
    new = sum(nodes.count for nodes in plan.nodes if set(nodes.pods) - gone)
    assert sum(known.values()) == new + sum(bool(set(placed.pods) - gone) for placed in plan.existing)
    held = np.zeros(len(reduced.rows), dtype=np.int64)
    for pattern, count in known.items():
        for row, pods in pattern.pods:
            held[row] += pods * count
    before = {pods.spec: pods.count for pods in problem.pod_sets}
    for demand in reduced.live:
        assert held[demand.row] == before.get(demand.spec, 0)


def test_nodes_of_a_previous_plan_that_no_longer_fit_are_passed_over() -> None:
    problem = _problem(30, 0, 6)
    plan = solve(problem, Budget(deterministic_seconds=0.2))
    smaller = tuple(replace(g, allocatable={**g.allocatable, PODS: 1}) for g in problem.node_groups)
    again = replace(problem, node_groups=smaller, previous=plan)
    assert all(pattern.total == 1 for pattern in known_nodes(reduce(again)))
    assert not solve(again, Budget(deterministic_seconds=0.2)).unplaced


def test_planning_on_from_a_plan_is_as_good_and_mostly_less_work(monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[float] = []
    charge = RunningBudget.charge

    def noted(budget: RunningBudget, seconds: float) -> None:
        charged.append(seconds)
        charge(budget, seconds)

    monkeypatch.setattr(RunningBudget, "charge", noted)
    budget, shares = Budget(deterministic_seconds=1), []
    for seed in range(3):
        problem = _problem(40, 0, seed)
        plan, changed = solve(problem, budget), _changed(problem)
        charged.clear()
        cold = solve(changed, budget)
        cold_work = sum(charged)
        charged.clear()
        warm = solve(replace(changed, previous=plan), budget)
        shares.append(sum(charged) / cold_work)
        # Which of two plans that are nearly the best is the better one is chance.
        assert gap_of(warm) <= max(gap_of(cold), gap_of(plan)) + 0.001
        assert max(gap_of(each) for each in (plan, cold, warm)) < 0.015
    assert min(shares) < 0.75


def test_obliged_nodes_count_against_limits_even_when_empty() -> None:
    """A node that must be opened and holds nothing leaves no room under the limit."""
    problem = _problem(300, 0, 7, most=3)
    groups = (
        *problem.node_groups,
        NodeGroup("idle", {"cpu": 50, "memory": 10, PODS: 1}, 0.01, min_size=2, max_size=2),
    )
    limited = replace(problem, node_groups=groups, limits=(Limit("cluster", {"nodes": 6}),))
    plan = solve(limited, Budget(deterministic_seconds=0.2))
    deltas = {i.node_group: i.delta for i in plan.increments}
    assert deltas["idle"] == 2
    assert sum(deltas.values()) == 6
