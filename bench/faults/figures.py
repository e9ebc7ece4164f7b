"""The figures of a campaign, for a terminal and for docs/reference/reliability.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.faults.episode import Result
from bench.table import machine, machine_line

_MOST_STEPS = 12
_KINDS = re.compile(r"(.*(?: answered with|with the fault)) \S+")
"""Counts of which the page has the sum alone: of each code, of each fault."""
_OF_TERMINALS = frozenset(
    {
        "ProvisioningRequests that lost a node, and were made anew",
        "asked for",
        "backups",
        "calls refused",
        "cycles",
        "episodes",
        "instances made",
        "instances that callers deleted",
        "messages in all",
        "native: MiB after a third",
        "nodes that the autoscaler deleted",
        "orders refused",
        "processes started",
        "python: MiB after a third",
        "quiet points",
        "refused by decoders",
        "tries of former leaders",
        "withdrawn",
    }
)
"""Counts that the page goes without: of what is usual, or follows from others."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one part of it."""

    part: str
    seed: int
    seconds: float
    cpu_seconds: float
    result: Result

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield what happened, and how often."""
        for what, count in (*sorted(self.result.told.items()), *sorted(self.result.most.items())):
            yield what, f"{count:,}"
        steps = self.result.steps
        if steps:
            most = ", ".join(f"{name} ({count})" for name, count in steps.most_common(_MOST_STEPS))
            yield f"different steps at which processes were killed: {len(steps)}", most
        yield "**violations**", f"**{len(self.result.violations):,}**"

    def text(self) -> str:
        lines = [f"{self.part}, seed {self.seed}: {self._took()}"]
        return "\n".join([*lines, *(f"  {what}: {count}" for what, count in self.rows()), ""])

    def markdown(self) -> str:
        """In short: a run prints each code, fault and step."""
        told: Counter[str] = Counter()
        for what, count in self.result.told.items():
            kind = _KINDS.fullmatch(what)
            told[f"{kind[1]} anything" if kind else what] += count
        counts = (*sorted(told.items()), *sorted(self.result.most.items()))
        if self.result.steps:
            counts = (*counts, ("different steps at which processes were killed", len(self.result.steps)))
        rows = [f"| {what} | {count:,} |" for what, count in counts if what not in _OF_TERMINALS]
        rows.append(f"| **violations** | **{len(self.result.violations):,}** |")
        head = f"Machine: {machine_line(machine())}. Seed {self.seed}, {self._took()}."
        return "\n".join([head, "", "| | |", "|---|---:|", *rows])

    def _took(self) -> str:
        return f"{self.seconds / 60:.1f} minutes, {self.cpu_seconds / 60:.1f} of the processor"


def write_markdown(path: Path, figures: Figures) -> None:
    """Replace what stands between the marks of this part."""
    begin, end = f"<!-- {figures.part}: begin -->", f"<!-- {figures.part}: end -->"
    text = path.read_text()
    pattern = re.compile(f"({re.escape(begin)}).*({re.escape(end)})", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"{path} has no marks {begin} and {end}")
    path.write_text(pattern.sub(lambda found: f"{found[1]}\n{figures.markdown()}\n{found[2]}", text))
