"""Drawn instances are written as VPSolver and the planner read them, and contradictions are told."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from bench import vpsolver
from bench.public_instances import Solved, read

SOLVED = Solved("a", 9, 100.0, 98.0, 1.0)


@pytest.mark.parametrize("family", vpsolver.FAMILIES)
def test_instances_are_read_as_they_were_drawn(family: str, tmp_path: Path) -> None:
    drawn = vpsolver.FAMILIES[family](random.Random(1))
    (tmp_path / "a.mvp").write_text(drawn.as_mvp())
    problem = read(tmp_path / "a.mvp")
    assert [each.count for each in problem.pod_sets] == [demand for _, demand in drawn.items]
    assert [each.price_usd_per_hour for each in problem.node_groups] == [cost for _, cost in drawn.bins]


@pytest.mark.parametrize(
    ("optimum", "contradicts"),
    [
        pytest.param(99.0, False, id="between bound and plan"),
        pytest.param(101.0, True, id="plan below it"),
        pytest.param(97.0, True, id="bound above it"),
    ],
)
def test_an_optimum_that_cannot_be_is_a_contradiction(optimum: float, contradicts: bool) -> None:
    assert vpsolver.Compared(SOLVED, optimum).is_contradiction == contradicts


def test_missing_programs_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["vpsolver", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        vpsolver.main()
    assert ended.value.code == 2
    assert "vbp2afg, afg2mps of VPSolver not there" in capsys.readouterr().err
