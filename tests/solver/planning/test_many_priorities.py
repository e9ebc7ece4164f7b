"""Whatever priorities pods have, each of them a stage of the objective: planning takes steps in proportion to pods."""

from __future__ import annotations

from functools import partial

import pytest

from solver import Budget, PodSet, Problem, solve
from solver.model.objective import Goal, ObjectiveStage
from solver.planning import bounds
from solver.planning.bounds import bounds_of
from solver.reduction.objective import stages
from solver.reduction.reduce import reduce
from tests.support.solver.problems import group, spec
from tests.support.steps import steps

AT_ONCE = Budget(0.0)
_FEW_STEPS = 30_000
"""What it takes to begin with."""


def problem(pods: int, cpu: int, most: int) -> Problem:
    """Return pod sets of which each has a priority of its own."""
    sets = tuple(PodSet(f"p{each}", spec(cpu + each), 2, priority=each) for each in range(pods))
    return Problem(sets, tuple(group(name, 16_000, max_size=most) for name in ("a", "b")))


@pytest.mark.parametrize(
    ("cpu", "most"),
    [
        pytest.param(100, 1000, id="all are served"),
        pytest.param(100, 1, id="some are served"),
        pytest.param(17_000, 1000, id="none is served"),
    ],
)
def test_twice_the_priorities_take_little_more_than_twice_the_steps(cpu: int, most: int) -> None:
    once, twice = (steps(partial(solve, problem(pods, cpu, most), AT_ONCE)) for pods in (200, 400))
    assert twice <= 2.3 * once + _FEW_STEPS


@pytest.mark.parametrize("late", [False, True])
def test_only_the_first_priorities_have_a_bound_of_the_room_that_there_is(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "_MOST_WORK", 1_000)
    reduced = reduce(problem(200, 100, 1))
    order = stages(reduced)
    asked: list[ObjectiveStage] = []

    def bounding(stage: ObjectiveStage, fixed: object) -> float:
        asked.append(stage)
        return 1.0

    bounds_of(reduced, order, dict.fromkeys(order, 2), bounding, 0.0, lambda: late)
    *first, cost = asked
    assert first == list(order[: len(first)])
    assert cost.goal is Goal.COST
    assert len(first) == 3 if late else 10 < len(first) < 50
