"""The examples of docs/explanations.md are what the planner says."""

from __future__ import annotations

import doctest
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "explanations.md"


def test_the_examples_of_the_library() -> None:
    result = doctest.testfile(str(DOCUMENT), module_relative=False)
    assert result.attempted > 20
    assert result.failed == 0
