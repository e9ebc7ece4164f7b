"""The two formats of logs: keys of JSON, and lines on a terminal."""

from __future__ import annotations

import io
import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from cagrpc.runtime import tracing
from cagrpc.server import logs
from tests.support.fleet import FakeClock
from tests.support.traces import traced


class Stream(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def as_json(level: str = "info") -> Any:
    stream = Stream(terminal=False)
    logs.set_up(level, stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_a_json_object_with_the_keys_it_always_had() -> None:
    lines = as_json()
    logging.getLogger("cagrpc.fleet.ledger").info("increment %s is %s", "ab", "ready")
    ((line),) = lines()
    assert set(line) == {"time", "level", "logger", "message"}
    assert (line["level"], line["logger"], line["message"]) == ("info", "cagrpc.fleet.ledger", "increment ab is ready")
    at = datetime.fromisoformat(line["time"])
    assert at.tzinfo is not None
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)


def test_what_a_line_is_about_are_fields_of_their_own() -> None:
    lines = as_json()
    logging.getLogger("x").warning("increment ab is late", extra={"increment": "ab", "plan": "cd"})
    logging.getLogger("x").info(
        "chose a: cheap", extra={"decision": {"chosen": "a", "at": datetime(2026, 1, 1, tzinfo=UTC)}}
    )
    late, decision = lines()
    assert (late["increment"], late["plan"], late["level"]) == ("ab", "cd", "warning")
    assert decision["decision"]["chosen"] == "a"
    assert decision["message"] == "chose a: cheap"


def test_libraries_log_in_the_same_way_and_talk_less() -> None:
    lines = as_json()
    for name in ("grpc", "kubernetes.client", "uvicorn", "urllib3.connectionpool"):
        logging.getLogger(name).info("%s talks", name)
        logging.getLogger(name).error("%s failed", name)
    assert [each["message"] for each in lines()] == [
        "grpc talks",
        "grpc failed",
        "kubernetes.client failed",
        "uvicorn talks",
        "uvicorn failed",
        "urllib3.connectionpool failed",
    ]
    assert {frozenset(each) for each in lines()} == {frozenset({"time", "level", "logger", "message"})}


def test_a_traceback_is_in_its_line() -> None:
    lines = as_json()
    try:
        int("seven")
    except ValueError:
        logging.getLogger("x").exception("lost")
    (line,) = lines()
    assert line["message"] == "lost"
    assert line["traceback"].endswith("ValueError: invalid literal for int() with base 10: 'seven'")


def test_within_a_round_each_line_has_the_rounds_id() -> None:
    lines = as_json()
    with tracing.about(tracing.plan("cd")):
        logging.getLogger("x").info("planning")
        logging.getLogger("x").info("another's", extra={"plan": "ef"})
    logging.getLogger("x").info("over")
    assert [each.get("plan") for each in lines()] == ["cd", "ef", None]


def test_lines_have_the_ids_of_their_trace() -> None:
    lines = as_json()
    with traced(FakeClock()), tracing.about(tracing.plan("cd")):
        logging.getLogger("x").info("planning")
        logging.getLogger("x").info("ready", extra={"increment": "ab"})
    planning, ready = lines()
    assert planning["trace_id"] == f"{tracing.plan('cd').trace_id:032x}"
    assert planning["span_id"] == f"{tracing.plan('cd').span_id('plan'):016x}"
    assert ready["trace_id"] == f"{tracing.increment('ab').trace_id:032x}", "the increment's, wherever it is logged"
    assert "span_id" not in ready


def test_a_terminal_has_short_lines() -> None:
    stream = Stream(terminal=True)
    logs.set_up("info", stream)
    logging.getLogger("x").info("increment ab is ready", extra={"increment": "ab"})
    logging.getLogger("x").warning("chose a: cheap", extra={"decision": {"chosen": "a"}})
    try:
        int("seven")
    except ValueError:
        logging.getLogger("x").exception("lost")
    first, second, third, *rest = stream.getvalue().splitlines()
    assert first[8:] == " INFO    increment ab is ready"
    datetime.strptime(first[:8], "%H:%M:%S").replace(tzinfo=UTC)
    assert second[8:] == " WARNING chose a: cheap"
    assert third[8:] == " ERROR   lost"
    assert rest[-1] == "ValueError: invalid literal for int() with base 10: 'seven'"
