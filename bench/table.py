"""How results are shown: the table for a terminal and for docs/reference/performance.md, and the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from bench.cases import Section
from bench.measure import Result

_START, _END = "<!-- generated: begin -->", "<!-- generated: end -->"
_SERIES = ((Section.CLASSES, "classes"), (Section.PODS, "pods"))
_OF_TERMINALS = ("met", "over %", "FFD s", "MiB")
"""Columns that the page goes without: they follow from others, or are nobody's question."""
_HEADS = (
    ("case", -32), ("pods", 8), ("classes", 7), ("groups", 6), ("budget s", 8), ("took s", 7), ("$/h", 11),
    ("gap %", 6), ("goal %", 6), ("met", 4), ("over %", 6), ("left", 5), ("FFD x", 6), ("FFD s", 6), ("MiB", 5),
)  # fmt: skip


def machine() -> dict[str, str | int | float]:
    """What times depend on."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: version(name) for name in ("ortools", "numba", "numpy")},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine_line(facts: dict[str, str | int | float]) -> str:
    return (
        f"{facts['cores']} cores of {facts['cpu']}, {facts['memory_gib']} GiB, load {facts['load_before']} before;"
        f" Python {facts['python']}, ortools {facts['ortools']}, numba {facts['numba']}, numpy {facts['numpy']}"
    )


def _cells(row: Result) -> tuple[str, ...]:
    return (
        row.case,
        f"{row.pods:,}",
        f"{row.classes:,}",
        f"{row.groups:,}",
        f"{row.budget_seconds:.3g}",
        f"{row.seconds:.2f}",
        f"{row.cost_usd_per_hour:,.2f}",
        f"{100 * row.gap:.2f}",
        "" if row.goal is None else f"{100 * row.goal:.2f}",
        {None: "", True: "yes", False: "no"}[row.met],
        "" if row.over_optimum is None else f"{100 * row.over_optimum:.2f}",
        f"{row.unplaced:,}",
        "" if row.first_fit_ratio is None else f"{row.first_fit_ratio:.3f}",
        f"{row.first_fit_seconds:.2f}",
        f"{row.peak_mib:,}",
    )


def heading() -> str:
    return " ".join(f"{name:<{-width}}" if width < 0 else f"{name:>{width}}" for name, width in _HEADS)


def line(row: Result) -> str:
    cells = zip(_cells(row), _HEADS, strict=True)
    return " ".join(f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}" for cell, (_, width) in cells)


def growth(rows: Sequence[Result]) -> Iterator[str]:
    """How the time to the same gap grows over each series, in a sentence."""
    for section, what in _SERIES:
        series = [row for row in rows if row.section == section]
        if len(series) < 2:
            continue
        first, last = series[0], series[-1]
        missed = sum(not row.met for row in series)
        sizes = [(row.classes if section == Section.CLASSES else row.pods) for row in (first, last)]
        yield (
            f"From {sizes[0]:,} to {sizes[1]:,} {what} (x {sizes[1] / sizes[0]:,.0f}) the time to a proven gap of"
            f" {100 * (first.goal or 0):.0f} % goes from {first.seconds:.2f} s to {last.seconds:.2f} s"
            f" (x {last.seconds / first.seconds:.1f})"
            + (f"; {missed} of {len(series)} sizes do not reach it in the longest budget." if missed else ".")
        )


def write_markdown(path: Path, rows: Sequence[Result], facts: dict[str, str | int | float]) -> None:
    """Replaces what stands between the two marks of the file by the machine, the tables and the growth."""
    text = path.read_text()
    before, rest = text.split(_START)
    _, after = rest.split(_END)
    path.write_text(f"{before}{_START}\n{_markdown(rows, facts)}\n{_END}{after}")


def _markdown(rows: Sequence[Result], facts: dict[str, str | int | float]) -> str:
    """The series of growth are not listed: the sentences below the table say what they come to. Pods that are left out
    have a column only where there are any."""
    unsaid = _OF_TERMINALS if any(row.unplaced for row in rows) else (*_OF_TERMINALS, "left")
    shown = [index for index, (name, _) in enumerate(_HEADS) if name not in unsaid]
    names = [_HEADS[index][0] for index in shown]
    lines = [f"Machine: {machine_line(facts)}.", "", _row(names), _row(["---", *("---:" for _ in names[1:])])]
    section = ""
    series = {each for each, _ in _SERIES}
    for row in rows:
        if row.section in series:
            continue
        if row.section != section:
            section = row.section
            lines.append(_row([f"**{section}**", *("" for _ in names[1:])]))
        cells = _cells(row)
        lines.append(_row([cells[index] for index in shown]))
    return "\n".join([*lines, "", *(f"- {sentence}" for sentence in growth(rows))])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
