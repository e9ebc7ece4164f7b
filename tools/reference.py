"""Writes what of the reference is made from the code: docs/reference/metrics.md from a server's metrics, and
docs/reference/events.md from the reasons of Events. What stands before the tables is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cagrpc.config.schema.listen import TlsPaths
from cagrpc.controllers.events import REASONS
from cagrpc.server.server import Server
from tests.support.serving import settings_of_everything

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "The process": ("build_info", "ready", "leader", "loop_", "certificate_", "process_"),
    "Calls and requests": ("rpc_", "decision", "expander_", "episodes_", "last_episode_", "http_", "kubernetes_"),
    "The fleet": (
        "dependency_up",
        "backend_",
        "node_group_",
        "instances",
        "orphaned_",
        "increment",
        "unreleased_",
        "pods_in_flight",
    ),
    "The cluster": ("resource_", "unreadable_", "waiting_", "expected_", "namespace_", "pods_beyond", "pod_", "plan"),
    "Requests, slack, Kueue": ("provisioning_", "bookings", "slack_", "kueue_"),
    "Consolidation": ("consolidation_",),
}
"""Headings, and how the names of their metrics begin after `cagrpc_`."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as the page has it."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str


def metrics() -> list[Metric]:
    """Return those of a server with everything configured, which is not started."""
    with TemporaryDirectory() as directory:
        certs = Path(directory) / "state" / "certs"
        tls = TlsPaths.made_in(certs)
        server = Server(replace(settings_of_everything(Path(directory), "http://127.0.0.1:1"), tls=tls))
        server._calls.observe("Refresh", "OK", 0.1)  # noqa: SLF001 - a metric without a sample has no labels
        try:
            collectors = server._collectors()  # noqa: SLF001 - what /metrics asks
            return sorted({each.name: each for each in _of(collectors)}.values(), key=lambda each: each.name)
        finally:
            server.stop()


def _of(collectors: Iterable[Any]) -> Iterator[Metric]:
    for collector in collectors:
        for family in collector.collect():
            known = (*getattr(collector, "_labelnames", ()), *getattr(family, "_labelnames", ()))
            of_samples = [name for sample in family.samples for name in sample.labels if name != "le"]
            suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
            labels = tuple(dict.fromkeys((*known, *of_samples)))
            yield Metric(f"{family.name}{suffix}", family.type, labels, family.documentation)


def _before(name: str, begins: str) -> str:
    """Return what a page has before what is made begins."""
    return (REFERENCE / name).read_text(encoding="utf-8").partition(begins)[0]


def metrics_page() -> str:
    """Return docs/reference/metrics.md."""
    found = metrics()
    parts = [_before("metrics.md", "\n## ")]
    left = {each.name for each in found}
    for heading, beginnings in SECTIONS.items():
        rows = [each for each in found if each.name.removeprefix("cagrpc_").startswith(beginnings)]
        left -= {each.name for each in rows}
        parts.append(f"## {heading}\n\n| name | type | labels | |\n|---|---|---|---|\n" + "".join(map(_row, rows)))
    if left:
        raise ValueError(f"metrics without a section: {', '.join(sorted(left))}")
    return "\n".join(parts)


def _row(metric: Metric) -> str:
    labels = ", ".join(metric.labels)
    return f"| `{metric.name}` | {metric.type} | {labels}{' ' if labels else ''}| {metric.meaning} |\n"


def events_page() -> str:
    """Return docs/reference/events.md."""
    rows = (
        f"| `{reason}` | {'Warning' if each.warning else 'Normal'} | {each.on} | {each.says} |\n"
        for reason, each in sorted(REASONS.items())
    )
    head = "| reason | type | on | says |\n|---|---|---|---|\n"
    return _before("events.md", "| reason |") + head + "".join(rows)


PAGES = {"metrics.md": metrics_page, "events.md": events_page}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
