"""Published instances are read as those who published them mean them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.public_instances import read, solve_instance

BPPLIB = "3\n10\n7 1\n5 2\n3 1\n"
VECTORS = "2\n10 8\n2\n5 4 3\n10 1 1\n"
"""Two dimensions: three items of (5, 4), one of (10, 1)."""
BIN_TYPES = "1\n2\n10 3 -1\n20 5 1\n1\n1 4\n10\n"
"""One dimension: bins of 10 at 3, one of 20 at 5, and four items of 10."""


@pytest.mark.parametrize(
    ("name", "text", "items", "cost"),
    [
        pytest.param("a.txt", BPPLIB, 4, 2.0, id="BPPLIB"),
        pytest.param("a.vbp", VECTORS, 4, 3.0, id="vectors"),
        pytest.param("a.mvp", BIN_TYPES, 4, 11.0, id="several types of bins"),
    ],
)
def test_instances_are_solved_to_their_optima(tmp_path: Path, name: str, text: str, items: int, cost: float) -> None:
    (tmp_path / name).write_text(text)
    solved = solve_instance(tmp_path / name, budget_seconds=300.0)
    assert (solved.items, solved.cost, solved.is_optimal) == (items, cost, True)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("1\n1\n10 3 -1\n1\n2 4\n10\n5\n", "item 0 has 2 incarnations", id="items that have a choice"),
        pytest.param("1\n1\n10 3 -1\n1\n1 4\n", "it ends after 8 numbers, too early", id="cut"),
        pytest.param("1\n1\nten", "'ten' is no whole number", id="text"),
    ],
)
def test_other_files_are_refused_with_the_reason(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "a.mvp").write_text(text)
    with pytest.raises(ValueError, match=f"a.mvp: {found}"):
        read(tmp_path / "a.mvp")
