"""What `cagrpc status --watch` tells, and that it goes on where a server does not."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cagrpc.errors import Unavailable
from cagrpc.inspection import status
from cagrpc.inspection.client import ServerAddress
from cagrpc.inspection.status import Answer, ServerPages, answers, changes, documents, redraw
from cagrpc.tables import console
from tests.support.controlplane.processes import wait_for
from tests.support.serving import SMALL, Serving, command, configuration, serve
from tests.support.waiting import AMPLE_SECONDS

ROWS, COLUMNS = 12, 70
_STYLES = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]")
PLAN: dict[str, Any] = {
    "at_seconds": 10.0,
    "pods": 14,
    "nodes": 4,
    "planned_cost_per_hour": 0.83,
    "gap": 0.004,
    "unplaced": [{"count": 2, "waiting": 0}],
    "incomplete_gangs": [],
    "shortages": [],
}


def pages(*increments: dict[str, Any], why_not_ready: str = "", plans: int = 0) -> ServerPages:
    status = {"ready": not why_not_ready, "why_not_ready": why_not_ready}
    return ServerPages(status, list(increments), [{**PLAN, "at_seconds": float(each)} for each in range(plans)], [])


def increment(name: str, phase: str, message: str = "") -> dict[str, Any]:
    return {"id": name, "phase": phase, "deltas": {"large": 3}, "message": message, "pods": 14, "requests": []}


def test_each_change_is_a_line() -> None:
    said: list[Answer] = [
        pages(increment("old", "done"), increment("one", "creating", "0 of 3 run"), plans=1),
        pages(increment("old", "done"), increment("one", "creating", "0 of 3 run"), plans=1),
        pages(increment("one", "creating", "2 of 3 run"), plans=1),
        Unavailable("http://it/status: connection refused"),
        Unavailable("http://it/status: connection refused"),
        pages(increment("one", "done"), increment("two", "planned"), plans=2, why_not_ready="nodes are not listed yet"),
    ]
    lines = list(changes(iter(said), lambda: 0.0))
    assert {line[:21] for line in lines} == {"1970-01-01T00:00:00Z "}
    assert [line[21:] for line in lines] == [
        "ready",
        "increment one creating: large+3: 0 of 3 run",
        "increment one creating: large+3: 2 of 3 run",
        "no answer: http://it/status: connection refused",
        "not ready: nodes are not listed yet",
        "increment one done: large+3",
        "increment two planned: large+3",
        "planned 14 pods on 4 new nodes: $0.83/h, gap 0.40% for those served; 2 pods without a place",
    ]


def test_machines_get_the_pages_as_often_as_they_change() -> None:
    first, second = pages(), pages(plans=1)
    found = list(documents(iter([first, first, Unavailable("gone"), second, second])))
    assert found == [first.as_json(), second.as_json()]


def test_a_server_is_connected_anew_where_it_stops_responding(monkeypatch: pytest.MonkeyPatch) -> None:
    script: list[Any] = [pages(), pages(), Unavailable("it restarts"), Unavailable("it restarts"), pages(plans=1)]
    connections = []

    @contextmanager
    def connect() -> Iterator[ServerAddress]:
        connections.append(len(script))
        yield ServerAddress("it:1")

    def answer(server: ServerAddress) -> ServerPages:
        found = script.pop(0)
        if isinstance(found, Unavailable):
            raise found
        assert isinstance(found, ServerPages)
        return found

    monkeypatch.setattr(status, "pages_of", answer)
    waited: list[float] = []
    source = answers(connect, waited.append)
    said = [next(source) for _ in range(5)]
    assert [isinstance(each, ServerPages) for each in said] == [True, True, False, False, True]
    assert connections == [5, 2, 1]
    assert len(waited) == 4
    with pytest.raises(IndexError):
        next(source)

    script.append(Unavailable("there is none"))
    with pytest.raises(Unavailable, match="there is none"):
        next(answers(connect, waited.append))


def test_what_was_said_last_stays_on_the_terminal() -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    out = console(stream)
    redraw(iter([pages(increment("one", "creating")), Unavailable("it restarts")]), out)
    last = stream.getvalue().rpartition("no answer: it restarts")[2]
    assert "creating" in last.partition("\x1b[?1049l")[0]
    assert "creating" in last.partition("\x1b[?1049l")[2]  # and when the other screen is left


def _frames(told: str) -> list[list[str]]:
    """Return what the other screen of a terminal shows after each drawing: the lines, without styles."""
    screen = told.partition("\x1b[?1049h")[2].partition("\x1b[?1049l")[0]
    drawings = _STYLES.sub("", screen).split("\x1b[H")
    return [[line.rstrip() for line in each.split("\r\n")] for each in drawings if each]


@pytest.fixture
def serving(tmp_path: Path) -> Serving:
    written = configuration(tmp_path / "cagrpc.yaml", [{"name": "one", "node_groups": [dict(SMALL)]}])
    return serve(tmp_path / "state", "--config", written)


def test_it_survives_a_restart_and_ends_with_ctrl_c(serving: Serving, tmp_path: Path) -> None:
    address = serving.endpoints["http"]

    def told_lines() -> list[str]:
        return [line.partition(" ")[2] for line in (tmp_path / "told").read_text().splitlines()]

    arguments = command("status", "--watch", "--http", address)
    with (tmp_path / "told").open("w") as told:
        following = subprocess.Popen(arguments, stdout=told, stderr=subprocess.PIPE, text=True)
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (ROWS, COLUMNS))
    environment = {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")}
    shown = subprocess.Popen(
        arguments,
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "TERM": "xterm"},
    )
    os.close(terminal)
    try:
        drawn = _read_until(controller, "no increment in flight", times=3)
        wait_for(lambda: told_lines() == ["ready"], "it is told ready")
        assert serving.stop() == 0
        drawn += _read_until(controller, "no answer: ")
        wait_for(lambda: len(told_lines()) == 2, "it is told gone")
        again = serve(serving.state, "--config", tmp_path / "cagrpc.yaml", "--http-address", address)
        wait_for(lambda: told_lines()[-1] == "ready", "it is told back")
        drawn += _read_until(controller, "\x1b[Hready")
        for each in (following, shown):
            each.send_signal(signal.SIGINT)
            assert each.wait(AMPLE_SECONDS) == 130
            assert each.stderr is not None
            assert not each.stderr.read()
        assert again.stop() == 0
    finally:
        for each in (following, shown):
            each.kill()
            each.wait()
            assert each.stderr is not None
            each.stderr.close()
        os.close(controller)
    assert told_lines()[1].startswith("no answer: http://")
    frames = _frames(drawn)
    quiet = ["ready", "0 nodes; no increment in flight"]
    assert frames[:3] == [[*quiet, *[""] * (ROWS - len(quiet))]] * 3
    gone = next(each for each in frames if each[0].startswith("no answer: http://"))
    assert [line for line in gone if line][-2:] == quiet
    assert all(len(each) <= ROWS and "\x1b" not in "".join(each) for each in frames)
    assert max(len(line) for each in frames for line in each) <= COLUMNS


def _read_until(terminal: int, expected: str, times: int = 1) -> str:
    told = ""
    while _STYLES.sub("", told).count(expected) < times:
        ready, _, _ = select.select([terminal], [], [], AMPLE_SECONDS)
        assert ready, told
        told += os.read(terminal, 4096).decode()
    return told
