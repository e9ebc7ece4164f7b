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
from tools import reference

OPEN_METRICS = "application/openmetrics-text;version=1.0.0"
OF_SAMPLES = {"le"}
SUFFIX = {"counter": "_total", "info": "_info"}


@pytest.fixture(name="families")
def _families(tmp_path: Path) -> Iterator[dict[str, Metric]]:
    """Those of a server with everything configured, by name. It is not started."""
    certs = tmp_path / "state" / "certs"
    tls = TlsPaths.made_in(certs)
    server = Server(replace(settings_of_everything(tmp_path, "http://127.0.0.1:1"), tls=tls))
    server._calls.observe("Refresh", "OK", 0.1)
    server._web.observe("/metrics", "GET", 200, 0.1)
    _, text = Metrics(server._collectors).exposition(OPEN_METRICS)
    parsed = openmetrics.text_string_to_metric_families(text.decode())  # type: ignore[no-untyped-call] # it has no types
    yield {each.name + SUFFIX.get(each.type, ""): each for each in parsed}
    server.stop()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the operating system says nothing of processes")
@pytest.mark.parametrize("name", reference.PAGES)
def test_the_reference_is_made_from_the_code(name: str) -> None:
    made = reference.PAGES[name]()
    assert (reference.REFERENCE / name).read_text() == made, "run `python -m tools.reference`"


def test_the_page_has_every_metric_with_its_labels(families: dict[str, Metric]) -> None:
    page = {each.name: each for each in reference.metrics()}
    assert {name: each.type for name, each in families.items()} == {name: each.type for name, each in page.items()}
    for name, family in families.items():
        for sample in family.samples:
            assert sample.labels.keys() - OF_SAMPLES == set(page[name].labels), name


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
