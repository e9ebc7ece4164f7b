"""The compiled pricer against a plain CP-SAT knapsack, on random nodes and pods."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import assume, given, note
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from solver import Budget, Limit, NodeGroup, PodSet, PodSpec, Problem, solve
from solver.columns.generation import LITTLE, cost_bound
from solver.columns.patterns import Pattern
from solver.columns.pool import Duals
from solver.columns.pricing import Effort, Pricer
from solver.reduction.dominance import dominators
from solver.reduction.reduce import reduce
from solver.reduction.reduced import MICROS, Floats, Reduced
from tests.support.examples import examples
from tests.support.solver.kernels import kernels
from tests.support.solver.problems import GPU, gap_of, group, node, pods, spec


def best_value(reduced: Reduced, values: Floats) -> float:
    """The value of the best pattern on an empty node of the only kind."""
    model = cp_model.CpModel()
    (kind,) = reduced.kinds
    counts = [
        model.new_int_var(0, int(wanted) if fits else 0, "")
        for wanted, fits in zip(reduced.wanted, kind.fits, strict=True)
    ]
    for resource, free in enumerate(kind.free):
        model.add(cp_model.LinearExpr.weighted_sum(counts, reduced.requests[:, resource].tolist()) <= free)
    model.maximize(cp_model.LinearExpr.weighted_sum(counts, values.tolist()))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return solver.objective_value


EFFORT = Effort(answers=5, steps=10**6, cells=200_000)


def fits(reduced: Reduced, pattern: Pattern) -> bool:
    specs, counts = (list(part) for part in zip(*pattern.pods, strict=True))
    needed = np.array(counts) @ reduced.requests[specs]
    return bool((needed <= reduced.free[pattern.kind]).all() and (np.array(counts) <= reduced.wanted[specs]).all())


@st.composite
def priced_nodes(draw: st.DrawFn) -> tuple[Reduced, Floats]:
    sets = []
    for number in range(draw(st.integers(1, 9))):
        requests = {
            "cpu": draw(st.integers(1, 40)) * 100,
            "gpu": draw(st.integers(0, 2)),
            "memory": draw(st.integers(0, 50)),
        }
        sets.append(
            PodSet(f"p{number}", PodSpec(tuple((k, v) for k, v in requests.items() if v)), draw(st.integers(1, 12)))
        )
    allocatable = {
        "cpu": draw(st.integers(5, 120)) * 100,
        "gpu": draw(st.integers(0, 4)),
        "memory": draw(st.integers(10, 160)),
        "pods": draw(st.integers(1, 20)),
    }
    reduced = reduce(Problem(tuple(sets), (NodeGroup("g", allocatable, 1.0),)))
    values = draw(st.lists(st.integers(0, 50), min_size=len(reduced.rows), max_size=len(reduced.rows)))
    return reduced, np.array(values, dtype=np.float64)


@given(priced_nodes())
@examples(200)
def test_the_best_pattern_is_found_and_the_bound_holds(case: tuple[Reduced, Floats]) -> None:
    reduced, values = case
    best = best_value(reduced, values)
    note(f"best {best}")
    (offer,) = Pricer(reduced, np.array([0])).offers(values, np.array([1.0]), 0.5, EFFORT, lambda: False)
    worths = [sum(values[row] * count for row, count in pattern.pods) for pattern in offer.patterns]
    assert worths[:1] == ([best] if best > 0.5 else [])
    assert all(worth > 0.5 for worth in worths)
    assert len(set(offer.patterns)) == len(offer.patterns)
    assert all(fits(reduced, pattern) for pattern in offer.patterns)
    assert offer.bound >= best - 1e-6


@given(priced_nodes(), st.floats(0.5, 2.0))
@examples(100)
def test_no_offer_is_a_proof_that_nothing_is_worth_the_price(case: tuple[Reduced, Floats], factor: float) -> None:
    reduced, values = case
    best = best_value(reduced, values)
    price = max(0.1, best * factor)
    (offer,) = Pricer(reduced, np.array([0])).offers(values, np.array([price]), 1.0, EFFORT, lambda: False)
    assert bool(offer.patterns) == (best > price * (1 + 1e-8))
    assert offer.bound >= best - 1e-6 * max(1.0, best) or offer.bound >= price - 1e-9


@given(priced_nodes(), st.floats(0.5, 1.5), st.sampled_from((1e-6, 1.0)))
@examples(100)
def test_what_search_leaves_open_is_proven(case: tuple[Reduced, Floats], factor: float, seconds: float) -> None:
    reduced, values = case
    best = best_value(reduced, values)
    price = max(0.1, best * factor)
    effort = Effort(answers=5, steps=1, cells=100, proof=seconds)
    (offer,) = Pricer(reduced, np.array([0])).offers(values, np.array([price]), 1.0, effort, lambda: False)
    worths = [sum(values[row] * count for row, count in pattern.pods) for pattern in offer.patterns]
    assert all(worth > price for worth in worths)
    assert all(fits(reduced, pattern) for pattern in offer.patterns)
    assert offer.bound >= min(best, price) - 1e-6 * max(1.0, best)
    assert offer.bound >= best - 1e-6 * best or not worths
    if seconds == 1.0:
        assert offer.bound <= max(best, price) * (1 + 2e-4)
        assert bool(worths) == (best > price) or best < price * (1 + 2e-4)


@st.composite
def sizes_in_steps(draw: st.DrawFn) -> tuple[Reduced, Floats]:
    """Pods take whole steps of memory; those that take the only GPU take any amount. The node has a part of a step."""
    step, steps = draw(st.integers(2, 3000)), draw(st.integers(2, 300))
    memory = step * steps - draw(st.integers(0, step - 1))
    sets = []
    for number in range(draw(st.integers(1, 6))):
        takes_gpu = number > 0 and draw(st.booleans())
        size = draw(st.integers(1, memory)) if takes_gpu else step * draw(st.integers(1, min(steps, 8)))
        sets.append(_in_memory(number, 100, size, int(takes_gpu), draw(st.integers(1, 300))))
    allocatable = {"cpu": 40_000, "memory": memory, "gpu": 1, "pods": 400}
    reduced = reduce(Problem(tuple(sets), (NodeGroup("g", allocatable, 1.0),)))
    values = draw(st.lists(st.integers(0, 50), min_size=len(reduced.rows), max_size=len(reduced.rows)))
    return reduced, np.array(values, dtype=np.float64)


def _in_memory(number: int, cpu: int, memory: int, gpu: int, count: int) -> PodSet:
    requests = {"cpu": cpu, "gpu": gpu, "memory": memory}
    return PodSet(f"p{number}", PodSpec(tuple((k, v) for k, v in requests.items() if v)), count)


@given(sizes_in_steps(), st.floats(0.5, 1.5))
@examples(100)
def test_bounds_hold_where_sizes_are_multiples(case: tuple[Reduced, Floats], factor: float) -> None:
    reduced, values = case
    best = best_value(reduced, values)
    price = max(0.1, best * factor)
    (offer,) = Pricer(reduced, np.array([0])).offers(values, np.array([price]), 1.0, LITTLE, lambda: False)
    assert all(fits(reduced, pattern) for pattern in offer.patterns)
    assert offer.bound >= min(best * (1 - 1e-6), price - 1e-9)


def test_little_effort_proves_that_part_of_a_step_holds_nothing() -> None:
    """As in Karpenter's benchmark: 46 GiB less 10 MiB hold at most 22 times 2 GiB, and one pod that has to be alone."""
    sizes = [(2048, 0), (4096, 0), (100, 1), (256, 1), (512, 1), (1024, 1)]
    kinds = [(cpu, *size) for cpu in (100, 250, 500) for size in sizes]
    sets = [_in_memory(number, *kind, count=50) for number, kind in enumerate(kinds)]
    allocatable = {"cpu": 22_900, "memory": 46 * 1024 - 10, "gpu": 1, "pods": 230}
    reduced = reduce(Problem(tuple(sets), (NodeGroup("g", allocatable, 1.0),)))
    values = np.zeros(len(reduced.rows))
    for demand in reduced.demands:
        requests = dict(demand.spec.requests)
        values[list(demand.rows)] = 1.0 if "gpu" in requests else requests["memory"] / 2048
    (offer,) = Pricer(reduced, np.array([0])).offers(values, np.array([23.0]), 1.0, LITTLE, lambda: False)
    assert not offer.patterns
    assert offer.bound <= 23.0 * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_where_cpu_memory_and_pods_run_out_together_little_effort_finds_nearly_the_best(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [(chance.randint(1, 12) * 100, chance.randint(1, 12) * 512) for _ in range(120)]
    sets = tuple(
        PodSet(f"p{number}", PodSpec((("cpu", cpu), ("memory", memory))), 20)
        for number, (cpu, memory) in enumerate(sizes)
    )
    allocatable = {"cpu": 32_000, "memory": 128_000, "pods": 60}
    reduced = reduce(Problem(sets, (NodeGroup("g", allocatable, 1.0),)))
    # As a relaxation's: what each takes of all three, more or less.
    each_costs = reduced.requests / reduced.free[0]
    values = each_costs.sum(axis=1) * np.array([chance.uniform(0.9, 1.1) for _ in range(len(reduced.rows))])
    best = best_value(reduced, values)
    (offer,) = Pricer(reduced, np.array([0])).offers(values, np.array([0.9 * best]), 1.0, LITTLE, lambda: False)
    worths = [sum(values[row] * count for row, count in pattern.pods) for pattern in offer.patterns]
    assert worths[0] >= 0.97 * best
    assert all(fits(reduced, pattern) for pattern in offer.patterns)
    assert offer.bound >= best - 1e-6


def test_what_large_pods_leave_of_a_node_is_priced_by_itself() -> None:
    """From openb: a pod with all GPUs leaves cores and memory. With one price for these, beside that pod and without, a
    node seems to be worth 5 % more than the best pattern."""
    kinds = [
        (60_100, 640_000, 8, 1, 8646), (16_000, 49_152, 0, 5, 905), (7_000, 0, 1, 1, 699), (4_000, 16_384, 0, 2, 232),
        (4_000, 15_625, 0, 11, 228), (6_000, 24_576, 0, 4, 351), (8_000, 31_250, 0, 8, 465), (8_000, 32_768, 0, 2, 464),
        (16_000, 62_500, 0, 3, 931), (8_000, 16_384, 1, 2, 781), (6_000, 12_288, 1, 1, 672), (4_000, 8_192, 1, 1, 562),
        (4_000, 30_517, 0, 23, 261), (16_000, 65_536, 0, 1, 936), (6_000, 15_360, 1, 8, 678), (3_000, 6_144, 1, 8, 508),
    ]  # fmt: skip
    sets = tuple(_in_memory(number, *kind[:4]) for number, kind in enumerate(kinds))
    allocatable = {"cpu": 95_725, "memory": 718_987, "gpu": 8, "pods": 737}
    reduced = reduce(Problem(sets, (NodeGroup("g", allocatable, 1.0),)))
    values = np.zeros(len(reduced.rows))
    worth = {kind[:3]: kind[4] for kind in kinds}
    for demand in reduced.demands:
        requests = dict(demand.spec.requests)
        values[list(demand.rows)] = worth[requests["cpu"], requests.get("memory", 0), requests.get("gpu", 0)]
    best = best_value(reduced, values)
    (offer,) = Pricer(reduced, np.array([0])).offers(values, np.array([0.9 * best]), 1.0, LITTLE, lambda: False)
    assert sum(values[row] * count for row, count in offer.patterns[0].pods) == best
    assert best - 1e-6 <= offer.bound <= best * (1 + 1e-6)


@given(priced_nodes(), st.data())
@examples(100)
def test_exchanges_make_patterns_that_fit_and_are_worth_more(case: tuple[Reduced, Floats], data: st.DataObject) -> None:
    reduced, values = case
    left, pods = reduced.free[0].copy(), {}
    for row, (wanted, requests) in enumerate(zip(reduced.wanted, reduced.requests, strict=True)):
        most = min([wanted, *(left[requests > 0] // requests[requests > 0])])
        pods[row] = data.draw(st.integers(0, int(most)))
        left -= pods[row] * requests
    start = Pattern(0, tuple((row, count) for row, count in pods.items() if count))
    before = sum(values[row] * count for row, count in start.pods)
    pricer = Pricer(reduced, np.array([0]))
    found = pricer.near([start], values, np.array([before - 0.5]), lambda: False)
    assert all(fits(reduced, pattern) for pattern in found if pattern.pods)
    worths = [sum(values[row] * count for row, count in pattern.pods) for pattern in found]
    assert len(worths) == 1
    assert before <= worths[0] <= best_value(reduced, values)
    assert pricer.near([start], values, np.array(worths), lambda: False) == []


@given(priced_nodes())
@examples(50)
def test_any_pod_values_bound_the_cost(case: tuple[Reduced, Floats]) -> None:
    reduced, values = case
    assume(not reduced.infeasible)
    active = np.array([0])
    offers = Pricer(reduced, active).offers(values, np.array([1.0]), 1.0, EFFORT, lambda: False)
    duals = Duals(values, np.zeros(1), np.zeros(0))
    bound_micros = cost_bound(reduced, duals, offers, dominators(reduced, active)).least_cost_micros
    plan = solve(reduced.problem, Budget(deterministic_seconds=1.0))
    assert not plan.unplaced
    assert bound_micros <= plan.certificate.cost_usd_per_hour * MICROS + 1e-3
    assert (bound_micros > 0) == bool(values.any())


def test_column_generation_serves_everything_with_a_valid_bound() -> None:
    many = tuple(pods(f"p{i}", 5 + i % 7, spec(300 + 170 * i, 1 + i * i % 23, gpu=int(i % 3 == 0))) for i in range(30))
    groups = tuple(
        group(f"g{i}", 4000 * (1 + i), 0.4 * (1 + i) ** 0.95, extra={"nvidia.com/gpu": i % 5}) for i in range(8)
    )
    plan = solve(Problem(many, groups), Budget(deterministic_seconds=3.0))
    assert not plan.unplaced
    assert 0 < plan.certificate.lower_bound_usd_per_hour <= plan.certificate.cost_usd_per_hour
    assert gap_of(plan) < 0.03


def test_everything_is_compiled_before_the_first_plan() -> None:
    """A first plan that waits for the compiler keeps no budget."""
    groups = tuple(group(f"g{size}", 1000 * size, size / 10, extra={GPU: size % 3}) for size in range(4, 16))
    sets = tuple(pods(f"p{i}", 50 + i, spec(700 + 90 * i, 1 + i % 5, gpu=i % 2)) for i in range(20))
    limits = (Limit("cluster", {"nodes": 60}),)
    solve(Problem(sets, groups, (node("n", 4000),), limits), Budget(deterministic_seconds=0.3))
    assert {kernel.__name__: len(getattr(kernel.compiled, "signatures", ())) for kernel in kernels()} == {
        kernel.__name__: 1 for kernel in kernels()
    }
