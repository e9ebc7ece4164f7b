"""Long lists of problems: the first are told, and of what kind the others are."""

from __future__ import annotations

from pathlib import Path

import pytest

from cagrpc.cli.main import main
from cagrpc.errors import first_problems


def test_a_short_list_is_told_whole() -> None:
    problems = [f"a.csv:{line}: x: wrong" for line in range(21)]
    assert first_problems(problems, "elsewhere") == problems


def test_of_a_long_list_nothing_is_lost() -> None:
    same = [f'a.csv:{line}: price: found "{line}x", expected dollars' for line in range(1, 1346)]
    assert first_problems([*same, "a.csv:9999: zone: is missing"], "all are in the log") == [
        *same[:20],
        "and 1326 more problems; all are in the log",
        f"1325 more like: {same[20]}",
        "1 more like: a.csv:9999: zone: is missing",
    ]
    many = first_problems([f"{'x' * number}: wrong" for number in range(30)], "")
    assert many[-1] == "5 more of other kinds"


def test_the_command_line_tells_twenty_or_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("".join(f"unknown{number}: 1\n" for number in range(50)))
    assert main(["config", "check", str(file)]) == 2
    told = capsys.readouterr().err
    assert "more problems; `cagrpc --all-problems COMMAND` shows all" in told
    assert len(told.splitlines()) < 30
    assert main(["--all-problems", "config", "check", str(file)]) == 2
    everything = capsys.readouterr().err.splitlines()
    assert len(everything) >= 50
    assert not any("more problems" in line for line in everything)
