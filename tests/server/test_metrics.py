"""Every metric of a server: the page that lists them, and what Prometheus' conventions ask of names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics

from cagrpc.config.schema.listen import TlsPaths
from cagrpc.server.server import Server
from cagrpc.services.http.metrics import Metrics
from tests.support.serving import settings_of_everything

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<type>\w+) \|(?P<labels>[^|]*)\|", re.MULTILINE)
OPEN_METRICS = "application/openmetrics-text;version=1.0.0"
OF_SAMPLES = {"le"}
SUFFIX = {"counter": "_total", "info": "_info"}


@pytest.fixture(name="families")
def _families(tmp_path: Path) -> Iterator[dict[str, Metric]]:
    """Those of a server with everything configured, by name. It is not started."""
    certs = tmp_path / "state" / "certs"
    tls = TlsPaths(certs / "server.crt", certs / "server.key", certs / "ca.crt", certs)
    server = Server(replace(settings_of_everything(tmp_path, "http://127.0.0.1:1"), tls=tls))
    server._calls.observe("Refresh", "OK", 0.1)
    server._web.observe("/metrics", "GET", 200, 0.1)
    _, text = Metrics(server._collectors).exposition(OPEN_METRICS)
    parsed = openmetrics.text_string_to_metric_families(text.decode())  # type: ignore[no-untyped-call] # it has no types
    yield {each.name + SUFFIX.get(each.type, ""): each for each in parsed}
    server.stop()


def _page() -> dict[str, tuple[str, set[str]]]:
    """Type and labels by name."""
    return {
        row["name"]: (row["type"], {each.strip() for each in row["labels"].split(",") if each.strip()})
        for row in ROW.finditer(PAGE.read_text())
    }


def test_the_page_lists_what_a_server_exports_with_types_and_labels(families: dict[str, Metric]) -> None:
    page = _page()
    if not Path("/proc/self/stat").exists():  # where the operating system has no such page, these are not there
        page = {name: row for name, row in page.items() if not name.startswith("process_")}
    assert {name: each.type for name, each in families.items()} == {name: kind for name, (kind, _) in page.items()}
    for name, family in families.items():
        for sample in family.samples:
            assert sample.labels.keys() - OF_SAMPLES == page[name][1], name


def test_names_are_as_prometheus_wants_them(families: dict[str, Metric]) -> None:
    """What `promtool check metrics` looks at, and that times and durations are in seconds, by name."""
    for name, family in families.items():
        assert re.fullmatch(r"(cagrpc|process)_[a-z]+(_[a-z]+)*", name), name
        assert family.documentation.endswith("."), name
        assert not re.search(r"_(ms|milliseconds|minutes|hours|percent|kb|mb|bucket|count|sum|created)(_|$)", name), (
            name
        )
        if family.type == "histogram":
            assert name.endswith("_duration_seconds"), name
        if "timestamp" in name:
            assert name.endswith("_timestamp_seconds"), name
    assert "cagrpc_http_request_duration_seconds" in families
