"""Tracing of a real process: off by default, with a message where it cannot be, and to a real collector."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cagrpc.runtime import tracing
from tests.support.serving import SMALL, command, configuration
from tests.support.traces import Collector, attributes_of
from tests.support.waiting import AMPLE_SECONDS

EVERYTHING = "import cagrpc.server.process, cagrpc.server.server, cagrpc.server.leader, cagrpc.server.controllers"


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.stop()


def configured(directory: Path, **more: Any) -> Path:
    return configuration(directory / "cagrpc.yaml", [{"name": "one", "node_groups": [dict(SMALL)]}], **more)


def test_where_it_is_off_opentelemetry_is_not_imported() -> None:
    code = f"{EVERYTHING}; import sys; print([each for each in sys.modules if each.startswith('opentelemetry')])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=AMPLE_SECONDS, check=True
    )
    assert found.stdout.strip() == "[]"


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    # As where it is not installed: importing it raises ImportError.
    code = "import sys; sys.modules['opentelemetry'] = None; from cagrpc.cli.main import main; sys.exit(main())"
    arguments = command("serve", "--config", configured(tmp_path, tracing=True), "--state-dir", tmp_path / "s")[3:]
    found = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=AMPLE_SECONDS, check=False
    )
    assert found.returncode == 2, found.stderr
    assert "tracing: found true, but OpenTelemetry is not installed" in found.stderr
    assert "pip install 'cagrpc[tracing]', or set tracing: false" in found.stderr
    assert "Traceback" not in found.stderr


def test_an_increments_spans_reach_the_collector_with_the_id_that_log_and_page_have(
    started: Any, collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in collector.environment.items():
        monkeypatch.setenv(name, value)
    serving = started("--config", configured(tmp_path, tracing=True))
    with serving.provider() as provider:
        provider.increase("small", 2)
        provider.wait_for_running("small", 2)
    (shown,) = serving.get("/increments")
    subject = tracing.increment(shown["id"])
    give_up = time.monotonic() + AMPLE_SECONDS
    while "increment" not in collector.of(subject):
        assert time.monotonic() < give_up, [each.name for each in collector.spans()]
        time.sleep(0.05)
    found = collector.of(subject)
    assert {"planned", "creating", "ready", "increment"} <= found.keys()
    assert attributes_of(found["increment"])["cagrpc.increment"] == shown["id"]
    assert {each.parent_span_id for name, each in found.items() if name != "increment"} == {found["increment"].span_id}
    call = next(each for each in collector.spans() if each.name.endswith("/NodeGroupIncreaseSize"))
    committing = next(each for each in collector.spans() if each.parent_span_id == call.span_id)
    assert attributes_of(committing)["cagrpc.increment"] == shown["id"]
    assert {each["service.name"] for each in collector.resources()} == {"cagrpc"}
    lines = [json.loads(line) for line in serving.log().splitlines()]
    mine = [each for each in lines if each.get("increment") == shown["id"]]
    assert [each["message"].partition(" is ")[2].partition(":")[0] for each in mine] == [
        "planned",
        "creating",
        "ready",
        "done",
    ]
    assert {each["trace_id"] for each in mine} == {f"{subject.trace_id:032x}"}
    with serving.provider() as provider:
        provider.increase("small", 1)
    assert serving.stop() == 0
    asked = [each for each in collector.spans() if each.name.endswith("/NodeGroupIncreaseSize")]
    assert len(asked) == 2, "the last spans are sent when it stops"


def test_a_collector_that_is_away_keeps_nothing_from_being_served_or_from_ending(
    started: Any, collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in collector.environment.items():
        monkeypatch.setenv(name, value)
    collector.stop()
    serving = started("--config", configured(tmp_path, tracing=True))
    with serving.provider() as provider:
        for _ in range(2):
            provider.increase("small", 1)
        provider.wait_for_running("small", 2)
    give_up = time.monotonic() + AMPLE_SECONDS
    while "spans are not sent" not in serving.log():
        assert time.monotonic() < give_up, serving.log()
        time.sleep(0.05)
    assert serving.stop() == 0
    lines = [json.loads(line) for line in serving.log().splitlines()]
    assert [each["level"] for each in lines if each["logger"].startswith("opentelemetry")] == []
    assert sum("spans are not sent" in each["message"] for each in lines) == 1
