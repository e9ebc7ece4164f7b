"""The page's files and its stream over a real socket: what is sent when, to whom, and how it ends."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from cagrpc.errors import Unavailable
from cagrpc.runtime.controller import JsonPage
from cagrpc.services.http.access import Anybody, Asked, PageAccess
from cagrpc.services.http.metrics import Metrics
from cagrpc.services.http.overview import feed
from cagrpc.services.http.overview.feed import page_files, page_version
from cagrpc.services.http.server import HttpServer
from cagrpc.services.http.site import HttpAnswer, Site, text_answer
from tests.support.controlplane.processes import wait_for
from tests.support.waiting import AMPLE_SECONDS

EVERY = {
    "status",
    "fleet",
    "increments",
    "decisions",
    "rounds",
    "waiting",
    "episodes",
    "requests",
    "slack",
    "consolidation",
    "nodes",
    "history",
    "log",
}
"""The sections of a page."""


@dataclass
class _Bearer:
    """Lets one token, as long as it is good."""

    token: str = "good"
    silent: bool = False

    async def refusal(self, asked: Asked) -> HttpAnswer | None:
        if self.silent:
            raise Unavailable("the API server does not say")
        if asked.authorization == f"Bearer {self.token}":
            return None
        return text_answer(http.HTTPStatus.UNAUTHORIZED, "the API server does not accept this token")


@dataclass
class _Event:
    name: str
    data: Any
    id: str


@dataclass
class _Reader:
    """Reads a stream, event by event."""

    response: http.client.HTTPResponse
    heartbeats: int = 0
    version: str = ""

    def event(self) -> _Event | None:
        """The next event; None at the end."""
        found: dict[str, str] = {}
        while line := self.response.readline().decode():
            if line.startswith(":"):
                self.heartbeats += 1
            elif line == "\n" and found.get("event") == "page":
                self.version, found = json.loads(found["data"])["version"], {}
            elif line == "\n" and found:
                return _Event(found["event"], json.loads(found["data"]), found.get("id", ""))
            elif line != "\n":
                name, _, value = line.rstrip("\n").partition(": ")
                found[name] = value
        return None

    def batch(self) -> dict[str, Any]:
        """All events up to one with an id, by name."""
        found: dict[str, Any] = {}
        while (event := self.event()) is not None:
            found[event.name] = event.data
            if event.id:
                self.last_id = event.id
                return found
        raise AssertionError("it has ended")


@dataclass
class _Web:
    access: PageAccess = field(default_factory=Anybody)
    slack: dict[str, Any] = field(default_factory=dict)
    drive: str = "plan"

    def __post_init__(self) -> None:
        self.slack = {"carrier": "pods", "problem": "", "warnings": [], "targets": [], "shapes": []}
        pages = {"/slack": JsonPage(lambda: dict(self.slack))}
        site = Site(Metrics(tuple), lambda: pages, status=lambda: {"drive": self.drive})
        self.server = HttpServer("127.0.0.1", 0, site, self.access)
        self.server.start()

    @property
    def open(self) -> int:
        return self.server._application._feed._open

    @contextmanager
    def ask(self, path: str = "/events", method: str = "GET", **headers: str) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=AMPLE_SECONDS)
        try:
            connection.request(method, path, headers={each.replace("_", "-"): value for each, value in headers.items()})
            with connection.getresponse() as response:
                yield response
        finally:
            connection.close()

    @contextmanager
    def reader(self, **headers: str) -> Iterator[_Reader]:
        with self.ask(**headers) as response:
            assert response.status == 200, response.read()
            assert response.headers["Content-Type"] == "text/event-stream"
            yield _Reader(response)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(feed, "HEARTBEAT_SECONDS", 0.1)


@contextmanager
def _served(access: PageAccess | None = None) -> Iterator[_Web]:
    web = _Web(access or Anybody())
    try:
        yield web
    finally:
        web.server.stop()


def test_every_section_comes_once_and_then_what_changes() -> None:
    with _served() as web, web.reader() as reader:
        first = reader.batch()
        assert set(first) == EVERY
        assert first["status"] == {"ready": True, "why_not_ready": "", "drive": "plan", "warnings": []}
        assert first["slack"]["carrier"] == "pods"
        assert reader.version == page_version()
        web.slack["carrier"] = "buffers"
        changed = reader.batch()
        assert set(changed) == {"slack"}
        assert changed["slack"]["carrier"] == "buffers"


def test_while_nothing_changes_it_says_that_it_is_alive() -> None:
    with _served() as web, web.reader() as reader:
        reader.batch()
        for _ in range(6):
            assert reader.response.readline() in (b": nothing new\n", b"\n")


def test_who_comes_back_is_told_what_it_missed() -> None:
    with _served() as web:
        with web.reader() as reader:
            reader.batch()
        wait_for(lambda: not web.open, "its place is free")
        web.slack["carrier"] = "buffers"
        with web.reader(Last_Event_ID=reader.last_id) as again:
            assert set(again.batch()) == {"slack"}
        for unknown in ("", "nonsense", f"{reader.last_id}0", "0-1"):
            with web.reader(Last_Event_ID=unknown) as other:
                assert set(other.batch()) == EVERY


def test_streams_are_few_and_a_place_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_STREAMS", 2)
    with _served() as web:
        with web.reader() as one, web.reader() as other:
            one.batch()
            other.batch()
            with web.ask() as refused:
                assert refused.status == 503
                assert b"2 pages are open already" in refused.read()
            with web.ask("/status") as page:
                assert page.status == 200
        wait_for(lambda: web.open == 0, "the places are free")
        with web.reader() as again:
            again.batch()


def test_without_a_reader_there_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def counted() -> Mapping[str, Any]:
        nonlocal made
        made += 1
        return {}

    with _served() as web:
        web.server._application._feed._read = counted
        assert made == 0
        with web.reader():
            wait_for(lambda: made > 1, "it looks")
        wait_for(lambda: not web.open, "its place is free")
        assert web.server._application._feed._looking is None


def test_it_ends_with_a_reason_when_the_server_stops() -> None:
    with _served() as web, web.reader() as reader:
        reader.batch()
        web.server.stop()
        last = reader.event()
        assert last is not None
        assert (last.name, last.data) == ("end", {"status": 503, "text": "the server stops"})
        assert reader.event() is None


def test_it_ends_when_the_token_is_no_longer_good() -> None:
    access = _Bearer()
    with _served(access) as web:
        with web.ask() as refused:
            assert refused.status == 401
        with web.reader(Authorization="Bearer good") as reader:
            reader.batch()
            access.token = "another"
            last = reader.event()
            assert last is not None
            why = {"status": 401, "text": "the API server does not accept this token"}
            assert (last.name, last.data) == ("end", why)
            assert reader.event() is None


def test_it_ends_when_nobody_can_say_who_may_read() -> None:
    access = _Bearer()
    with _served(access) as web, web.reader(Authorization="Bearer good") as reader:
        reader.batch()
        access.silent = True
        last = reader.event()
        assert last is not None
        assert (last.name, last.data) == ("end", {"status": 503, "text": "the API server does not say"})


def test_a_page_that_fails_keeps_no_section_from_being_told(caplog: pytest.LogCaptureFixture) -> None:
    with _served() as web:
        del web.slack["targets"]
        with web.reader() as reader:
            first = reader.batch()
    assert first["slack"] == {"problem": "failed unexpectedly; the server's log has the traceback"}
    assert first["status"]["drive"] == "plan"
    assert "the section slack of the page failed unexpectedly" in caplog.text


def test_head_of_a_stream_ends() -> None:
    with _served() as web, web.ask(method="HEAD") as response:
        assert (response.status, response.headers["Content-Type"], response.read()) == (200, "text/event-stream", b"")
        assert web.open == 0


def test_the_files_are_for_everybody_and_hold_nothing() -> None:
    assert {"/", "/page.css", "/main.js", "/icon.svg"} <= set(page_files())
    with _served(_Bearer()) as web:
        for path, file in page_files().items():
            with web.ask(path) as response:
                assert (response.status, response.read()) == (200, file.content)
                policy = response.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
                assert "unsafe" not in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
        for path in ("/index.html", "/static/main.js", "/../files.py"):
            with web.ask(path) as response:
                assert response.status == 401


def test_nothing_in_the_files_is_inline_or_from_elsewhere_or_makes_markup_of_text() -> None:
    home = page_files()["/"].content.decode()
    for forbidden in ("<style", "style=", "onclick", "javascript:"):
        assert forbidden not in home
    for path, file in page_files().items():
        text = file.content.decode().replace("http://www.w3.org/2000/svg", "")
        for forbidden in ("http://", "https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"):
            assert forbidden not in text, path
