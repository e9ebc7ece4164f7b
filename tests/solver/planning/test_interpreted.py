"""Interpreted and compiled, kernels come to the same, to the bit: for what pricing asks, for nodes that are filled, for
places that are annealed, and for whole plans of small problems."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from solver import Budget, Plan, Problem, solve
from solver.columns.knapsack import best_patterns
from solver.columns.pool import weighting
from solver.columns.pricing import exchange
from solver.compiled import Interpreted, TooManyStepsError, interpreted
from solver.integral.annealing import Annealing
from solver.integral.balanced_kernel import fill, room_for
from solver.integral.packing import Packing
from solver.planning import compiling, warm_up
from solver.reduction.reduce import reduce
from solver.reduction.reduced import Ints, Reduced
from tests.solver.integral.test_balanced_kernel import questions
from tests.support.examples import examples
from tests.support.solver.kernels import kernels, not_loaded
from tests.support.solver.strategies import problems

BUDGET = Budget(deterministic_seconds=0.2)
GIB = 2**30


def both(ask: Callable[[], Any]) -> tuple[Any, Any]:
    """Return the answers of compiled and of interpreted kernels."""
    compiled = ask()
    with not_loaded():
        return compiled, ask()


def same(one: Any, other: Any) -> bool:
    """Whether two answers are made of the same bits."""
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Ints, Ints, Any, Ints]:
    """Requests, what is free, values, and the most of each item that a node has: in CPU, bytes, GPUs and pods."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    items = draw(st.integers(1, 7))
    free = np.array([chance.randint(1, 96) * 500, chance.randint(1, 400) * GIB // 2, chance.randint(0, 8), 29])
    requests = np.array(
        [
            [chance.randint(1, 64) * 250, chance.randint(0, 64) * GIB // 8, chance.choice([0, 0, 0, 1, 4]), 1]
            for _ in range(items)
        ]
    )
    most = np.array(
        [min([chance.randint(1, 40), *(f // r for f, r in zip(free, each, strict=True) if r)]) for each in requests]
    )
    values = np.array([chance.choice([chance.random(), 0.25, 1 / 3]) for _ in range(items)]) + 1e-6
    return requests, free, values, most


@given(nodes(), st.integers(0, 2**32))
@examples(60)
def test_patterns_are_the_same(node: tuple[Ints, Ints, Any, Ints], seed: int) -> None:
    requests, free, values, most = node
    chance = random.Random(seed)
    start = np.array([chance.random() * 1e-3 / max(1, f) for f in free])
    rounds, threshold = chance.randint(1, 80), chance.choice([0.0, 0.3, 2.0]) * float(values.max())
    cells, limit, answers = chance.choice([600, 5000]), chance.choice([20, 400]), chance.randint(1, 6)

    def ask() -> Any:
        multipliers = start.copy()
        found = best_patterns(
            requests, free, values, most, multipliers, rounds, threshold, cells, limit, answers
        )  # fmt: skip
        return (*found, multipliers)

    compiled, other = both(ask)
    event(f"{min(len(compiled[0]), 2)} patterns")
    assert same(compiled, other)


@given(nodes(), st.integers(0, 2**32))
@examples(60)
def test_exchanges_are_the_same(node: tuple[Ints, Ints, Any, Ints], seed: int) -> None:
    requests, free, values, most = node
    chance, left, begun = random.Random(seed), free.copy(), np.zeros(len(values), dtype=np.int64)
    for item in chance.choices(range(len(values)), k=12):
        if begun[item] < most[item] and (requests[item] <= left).all():
            begun[item] += 1
            left -= requests[item]
    order = np.argsort(-values, kind="stable")

    def ask() -> Any:
        found = begun.copy()
        return exchange(requests, free, values, most, order, found), found

    assert same(*both(ask))


@given(questions())
@examples(60)
def test_nodes_that_are_filled_one_by_one_are_the_same(question: Any) -> None:
    pods, standing, kinds, most_cost = question

    def ask() -> Any:
        mine = pods._replace(left=pods.left.copy())
        new = kinds._replace(room=kinds.room.copy(), allowed=kinds.allowed.copy())
        out = room_for(int(pods.left.sum()) + 100)
        weight = np.ones(pods.requests.shape[1]) / 3
        counts = fill(mine, standing, new, weight, most_cost, out)
        return counts, mine.left, new.room, new.allowed, tuple(out)

    assert same(*both(ask))


def costs(reduced: Reduced) -> Any:
    return weighting(reduced).node_cost


@given(problems())
@examples(40)
def test_patterns_that_are_packed_are_the_same(problem: Problem) -> None:
    reduced = reduce(problem)
    new = np.array([kind.index for kind in reduced.new_kinds], dtype=np.int64)

    def ask() -> Any:
        packed = Packing(reduced, costs(reduced), np.linspace(0.1, 1.0, len(reduced.rows)))
        packed.oblige([kind for kind in reduced.kinds if kind.least])
        standing = reduced.existing_kinds
        packed.open_all(
            np.array([kind.index for kind in standing], dtype=np.int64),
            np.array([kind.most for kind in standing], dtype=np.int64),
        )
        packed.serve(new, packed.left // 2)
        packed.finish(new, np.full(len(new), 3.0))
        return packed.nodes, packed.left.tolist()

    compiled, other = both(ask)
    assert list(compiled[0].items()) == list(other[0].items())
    assert compiled[1] == other[1]


@given(problems())
@examples(40)
def test_places_that_are_annealed_are_the_same(problem: Problem) -> None:
    reduced = reduce(problem)
    units = {(demand.index, demand.row): demand.count for demand in reduced.live if demand.count}
    if not units:
        return

    def ask() -> Any:
        annealed = Annealing(reduced, costs(reduced), units)
        left = annealed.place_all()
        annealed.anneal(300, 0.3)
        annealed.anneal(100, 0.0)
        return left, tuple(annealed._state)

    assert same(*both(ask))


@given(problems())
@examples(25)
def test_small_problems_have_the_same_plan_before_anything_is_compiled(problem: Problem) -> None:
    def ask() -> Plan | None:
        try:
            with interpreted(Interpreted(warm_up._MOST_STEPS)):
                return replace(solve(problem, BUDGET), elapsed_seconds=0.0)
        except TooManyStepsError:
            return None

    compiled, other = both(ask)
    event("large" if other is None else "small")
    assert other is None or other == compiled


def test_every_kernel_is_compared() -> None:
    """A kernel that is added is added here, too."""
    compared = {"best_patterns", "exchange", "fill", "open_each", "open_best", "insert", "anneal"}
    assert {kernel.__name__ for kernel in kernels()} == compared


@pytest.mark.parametrize("kernel", kernels(), ids=lambda kernel: kernel.__name__)
def test_steps_are_counted_before_they_are_taken(kernel: Any) -> None:
    (arguments,) = (each for other, each in compiling.examples() if other is kernel)
    steps = kernel.steps(*arguments)
    assert steps > 0
    with not_loaded(), interpreted(Interpreted(steps - 1)), pytest.raises(TooManyStepsError):
        kernel(*arguments)
    with not_loaded(), interpreted(account := Interpreted(steps)):
        kernel(*arguments)
    assert account.steps == steps
