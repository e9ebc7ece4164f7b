"""The examples of the documents are what the planner says."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize(
    ("document", "least"), [("reference/explanations.md", 10), ("reference/slack.md", 10), ("guides/solver.md", 20)]
)
def test_the_examples_of_the_library(document: str, least: int) -> None:
    result = doctest.testfile(str(DOCS / document), module_relative=False)
    assert result.attempted > least
    assert result.failed == 0
