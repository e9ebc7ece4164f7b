"""What docs/threat-model.md says is tested is tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "threat-model.md").read_text()
CELLS = [line.split(" | ")[-1] for line in TEXT.splitlines() if ".py`" in line]


@pytest.mark.parametrize("cell", CELLS)
def test_the_tests_that_it_names_are_there(cell: str) -> None:
    files = [ROOT / "tests" / name.removeprefix("tests/") for name in re.findall(r"`([\w/]+\.py)`", cell)]
    there = "".join(file.read_text() for file in files)
    for name in re.findall(r"`…?(\w+?)…?`(?!\.py)", cell):
        assert re.search(rf"def test_\w*{name}", there), name


def test_it_names_tests() -> None:
    assert len(CELLS) > 20
