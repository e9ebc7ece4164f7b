"""The examples of the documents are what the planner says."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize(("document", "least"), [("explanations.md", 20), ("slack.md", 30), ("solver.md", 60)])
def test_the_examples_of_the_library(document: str, least: int) -> None:
    result = doctest.testfile(str(DOCS / document), module_relative=False)
    assert result.attempted > least
    assert result.failed == 0


def test_the_architecture_names_every_module_of_the_planner_once() -> None:
    chapter = (DOCS / "architecture.md").read_text().split("\n## The planner\n")[1]
    listed = re.findall(r"^(\w+)  +\S", chapter.split("```text\n")[1].split("```")[0], flags=re.MULTILINE)
    modules = {path.stem for path in (ROOT / "solver").glob("*.py")} - {"__init__"}
    assert sorted(listed) == sorted(modules)
