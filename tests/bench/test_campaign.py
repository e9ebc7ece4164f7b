"""The command of the fault campaign: its figures go between the marks of a page, and violations into its exit code."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from bench import campaign
from bench.faults import fleet
from bench.faults.episode import Result
from bench.faults.figures import Figures, write_markdown

PAGE = "# Page\n\n<!-- fleet: begin -->\nold\n<!-- fleet: end -->\n\nRest.\n"


@pytest.fixture(name="page")
def _page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def commanded(monkeypatch: pytest.MonkeyPatch, page: Path) -> int:
    arguments = ["--only", "fleet", "--increments", "2", "--workers", "1", "--markdown", str(page)]
    monkeypatch.setattr(sys, "argv", ["campaign", *arguments])
    return campaign.main()


def test_what_was_measured_is_on_the_page(monkeypatch: pytest.MonkeyPatch, page: Path) -> None:
    assert commanded(monkeypatch, page) == 0
    text = page.read_text()
    assert "old" not in text
    assert "| increments | 2 |" in text
    assert "| episodes |" not in text, "what is usual is on the terminal alone"
    assert "| **violations** | **0** |" in text
    assert text.endswith("<!-- fleet: end -->\n\nRest.\n")


def test_a_violation_is_named_and_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], page: Path
) -> None:
    monkeypatch.setattr(fleet, "run", lambda *_: Result(Counter(increments=2), ["node x was made twice"]))
    assert commanded(monkeypatch, page) == 1
    assert "node x was made twice" in capsys.readouterr().out
    assert "| **violations** | **1** |" in page.read_text()


def test_results_are_added_and_largest_figures_kept() -> None:
    total = Result(Counter(), most=Counter(mib=5))
    total += Result(Counter(increments=2), ["x"], Counter({"order": 1}), Counter(mib=3, ms=1))
    total += Result(Counter(increments=3), [], Counter({"order": 1}), Counter(mib=9))
    assert total == Result(Counter(increments=5), ["x"], Counter({"order": 2}), Counter(mib=9, ms=1))


def test_a_page_without_marks_is_refused(page: Path) -> None:
    with pytest.raises(ValueError, match="has no marks <!-- listeners: begin -->"):
        write_markdown(page, Figures("listeners", 1, 60.0, 60.0, Result(Counter())))
