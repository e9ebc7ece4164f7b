"""The page's log: what happened last, whatever stderr shows."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from cagrpc.runtime.controller import JsonList
from cagrpc.server import logs


@pytest.fixture(autouse=True)
def _forgotten_afterwards(logging_as_before: None) -> Iterator[None]:
    del logging_as_before
    yield
    logs._RECENT.lines.clear()


def _lines() -> list[Any]:
    page = logs.pages()["/log"].get()
    assert isinstance(page, JsonList)
    return [*page.items]


def test_what_happened_is_kept_where_stderr_has_warnings_only() -> None:
    written = io.StringIO()
    logs.set_up("warning", written)
    logs._RECENT.lines.clear()
    logging.getLogger("cagrpc.fleet.ledger").info("increment %s is done", "i-1", extra={"increment": "i-1"})
    logging.getLogger("cagrpc.services.http").info("no news for people")
    logging.getLogger("cagrpc.services.http").warning("the port is taken")
    logging.getLogger("cagrpc.fleet.ledger").debug("details")
    assert [(each["level"], each["text"], each["about"]) for each in _lines()] == [
        ("info", "increment i-1 is done", {"increment": "i-1"}),
        ("warning", "the port is taken", {}),
    ]
    assert "increment" not in written.getvalue()
    assert "the port is taken" in written.getvalue()


def test_it_is_bounded() -> None:
    logs.set_up("info", io.StringIO())
    for number in range(1000):
        logging.getLogger("cagrpc.fleet").warning("%d", number)
    assert (len(_lines()), _lines()[-1]["text"]) == (200, "999")


def test_a_line_that_cannot_be_said_is_left_out_and_a_long_one_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logs.set_up("info", io.StringIO())
    logs._RECENT.lines.clear()
    logging.getLogger("cagrpc.fleet").warning("%d nodes", "no")
    logging.getLogger("cagrpc.fleet").warning("%s", "x" * 10_000)
    assert [len(each["text"]) for each in _lines()] == [4000]
