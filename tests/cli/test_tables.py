"""Tables and paragraphs for people: no name is broken where there is room."""

from __future__ import annotations

import io

import pytest

from cagrpc.cli.main import main
from cagrpc.tables import console, paragraph, table

NAME = "general-purpose/m7i-flex.12xlarge/eu-central-1a/on-demand"


def printed(*rows: tuple[str, str, str], terminal: bool = False, width: int = 100) -> list[str]:
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    out = console(stream)
    out.width = width
    result = table("Why", "node group", "cost", "why not", right=("cost",))
    for row in rows:
        result.add_row(*row)
    out.print(result)
    return [line for line in stream.getvalue().splitlines() if "\x1b" not in line]


@pytest.mark.parametrize("terminal", [False, True])
def test_words_are_wrapped_and_names_are_not(terminal: bool) -> None:
    lines = printed((NAME, "$1.23/h", "it is the dearest of all that could be had " * 4), terminal=terminal)
    assert max(map(len, lines)) <= 100
    assert sum(NAME in line for line in lines) == 1


def test_a_file_gets_a_longer_line_and_no_broken_name() -> None:
    lines = printed((NAME, "$1.23/h", f"as {NAME} would do"))
    assert sum(line.count(NAME) for line in lines) == 2


def test_short_columns_are_not_wrapped_for_a_long_one() -> None:
    lines = printed(("m7i.large: 14 nodes, 40 pods", "$1.23/h", "no room " * 30))
    assert any("m7i.large: 14 nodes, 40 pods" in line for line in lines)


def test_a_paragraph_is_indented_and_breaks_between_words() -> None:
    text = paragraph(f"{NAME}: it serves pods-of-a-long-name and others", 60, "  ", "    ")
    assert text.splitlines() == [f"  {NAME}:", "    it serves pods-of-a-long-name and others"]


def test_a_plan_of_many_groups_fits_a_hundred_columns(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a thousand pods `explain` says three sentences a group, not a list of all that differs."""
    pods = tmp_path_factory.mktemp("pods") / "pods.csv"
    rows = [f"app{each},{300 + 170 * each},{700 * each + 256},{int(each % 9 == 0)},25" for each in range(1, 41)]
    pods.write_text("\n".join(["name,cpu_milli,memory_mib,num_gpu,count", *rows]) + "\n")
    provisioners = "cagrpc/data/provisioners/default-and-arm64.yaml"
    for command in ("plan", "explain"):
        assert main([command, "--pods", str(pods), "--provisioners", provisioners, "--budget", "1s"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 100
        assert len(lines) < 80
