"""The ablation: what it takes out is there, its mixes are problems, and a worse plan is a loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.ablation import PARTS, Planned, compared, original
from bench.mixes import MIXES, mixed
from solver import Budget
from solver.model.validation import validate


@pytest.mark.parametrize("name", PARTS)
def test_what_a_part_replaces_is_there(name: str) -> None:
    part = PARTS[name]
    assert [callable(original(path)) for path in part.functions] == [True] * len(part.functions)
    assert all(type(original(path)) is type(other) or callable(other) for path, other in part.instead.items())


@pytest.mark.parametrize("name", [name for name, mix in MIXES.items() if not mix.warm])
def test_mixes_are_valid_and_the_same_every_time(name: str) -> None:
    problem = mixed(name)
    validate(problem, Budget())
    assert problem == mixed(name)


def test_what_is_lost() -> None:
    whole = Planned(100.0, 90.0, (0.0,), (0.0,), "feasible", 2.0)
    worse = replace(whole, cost_usd_per_hour=101.0, bound_usd_per_hour=81.0, cpu_seconds=1.0)
    found = compared("case", whole, worse)
    assert [found.cost, found.bound, found.time] == pytest.approx([0.01, 0.1, 0.5])
    assert compared("case", whole, replace(whole, before_cost=(1.0,))).cost == float("inf")
    assert compared("case", whole, replace(whole, cost_usd_per_hour=0.0, before_cost=(1.0,))).cost == float("inf")
