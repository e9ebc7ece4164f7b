"""Compiling, or loading what was compiled before, takes nothing of a plan's budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from solver import Budget, Problem, rank, solve
from solver.model.budget import RunningBudget

CALLS: dict[str, Callable[[Problem, Budget], Any]] = {
    "solver.planning.solve": solve,
    "solver.planning.rank": lambda problem, budget: rank(problem, (), budget),
}


@pytest.mark.parametrize("module", CALLS)
def test_the_budget_begins_once_all_is_compiled(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def begin(budget: Budget) -> RunningBudget:
        order.append("budget")
        return RunningBudget(budget)

    monkeypatch.setattr(f"{module}.warm_up", lambda: order.append("compiled"))
    monkeypatch.setattr(f"{module}.RunningBudget", begin)
    CALLS[module](Problem(()), Budget(deterministic_seconds=1.0))
    assert order == ["compiled", "budget"]
