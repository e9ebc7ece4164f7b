"""The stream of the page at `/`, as server-sent events: each section once, then those that changed, at most once a
second. It ends when the server stops, and when its reader may not read any more. What is in a section is `digest`'s."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from types import MappingProxyType

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from cagrpc.errors import Unavailable
from cagrpc.runtime.controller import Json
from cagrpc.services.http.site import HttpAnswer, text_answer
from cagrpc.services.http.threads import BoundedThreads

log = logging.getLogger(__name__)

_HOME = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Nothing from elsewhere, nothing inline; and a browser that knows trusted types refuses to make markup of text."""

PAGE_HEADERS: Mapping[str, str] = MappingProxyType({"Content-Security-Policy": _POLICY})

STREAM_TYPE = "text/event-stream"
MOST_STREAMS = 16
"""Open at a time; a page has one."""
PAUSE_SECONDS = 1.0
"""Between two looks at what there is."""
HEARTBEAT_SECONDS = 10.0
"""A stream that says nothing for longer is broken, and its reader has been asked about again."""
Refusal = Callable[[], Awaitable[HttpAnswer | None]]
"""Returns why a reader may not read; None as long as it may. Raises Unavailable where that cannot be said."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file, as it is sent."""

    content_type: str
    content: bytes


@cache
def page_version() -> str:
    """Return a name of these files: the same for the same ones."""
    digest = sha256()
    for path, file in sorted(page_files().items()):
        digest.update(path.encode() + file.content)
    return digest.hexdigest()[:16]


@cache
def page_files() -> Mapping[str, PageFile]:
    """Return the files by path; the page itself is at `/`."""
    found = {}
    for each in files(__package__).joinpath("static").iterdir():
        content_type = _TYPES.get(each.name[each.name.rfind(".") :])
        if content_type is not None:
            found["/" if each.name == _HOME else f"/{each.name}"] = PageFile(content_type, each.read_bytes())
    return MappingProxyType(found)


@dataclass(frozen=True, slots=True)
class _Section:
    data: bytes
    version: int
    """The one with which it changed last."""


class Feed:
    """What is shown, and the streams that tell it. Belongs to one loop, but for `end`. There is no work while there is
    no stream."""

    def __init__(self, read: Callable[[], Mapping[str, Json]], turns: BoundedThreads) -> None:
        """`read` returns the sections; it is called in a thread, in turn with other pages."""
        self._read = read
        self._turns = turns
        self._name = secrets.token_hex(4)  # versions of another process say nothing here
        self._sections: dict[str, _Section] = {}
        self._version = 0
        self._open = 0
        self._looking: asyncio.Task[None] | None = None
        self._seen_now = False
        self._ended = False
        self._changed = asyncio.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stream(self, last_id: str, refusal: Refusal, headers: Mapping[str, str]) -> EventStream:
        """Return a response that goes on. `last_id` is of the last event that its reader has, empty for none. Raises
        Unavailable where too many are open, or the server stops."""
        if self._ended:
            raise Unavailable("the server stops")
        if self._open >= MOST_STREAMS:
            raise Unavailable(f"{MOST_STREAMS} pages are open already, which is the limit; try again")
        self._loop = asyncio.get_running_loop()
        self._open += 1
        if self._looking is None:
            self._seen_now = False
            self._looking = self._loop.create_task(self._look())
        return EventStream(self._pieces(self._known(last_id), refusal), self._close, headers)

    def end(self) -> None:
        """End all streams, and open no more. Called by any thread."""
        self._ended = True
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._tell_soon)
            except RuntimeError:
                return  # it has ended

    def _close(self) -> None:
        self._open -= 1
        if not self._open and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _known(self, last_id: str) -> int:
        """Return the version that the reader has."""
        name, _, number = last_id.partition("-")
        known = int(number) if name == self._name and number.isascii() and number.isdecimal() else 0
        return known if known <= self._version else 0

    async def _look(self) -> None:
        while True:
            try:
                self._learn(await self._turns.run(self._encoded))
                await self._tell()
            except Unavailable:
                log.debug("the page waits for its turn", exc_info=True)
            except Exception:
                log.exception("the page failed unexpectedly")
            await asyncio.sleep(PAUSE_SECONDS)

    def _encoded(self) -> dict[str, bytes]:
        return {name: json.dumps(content, separators=(",", ":")).encode() for name, content in self._read().items()}

    def _learn(self, found: Mapping[str, bytes]) -> None:
        news = {
            name: data
            for name, data in found.items()
            if name not in self._sections or self._sections[name].data != data
        }
        self._version += bool(news)
        self._sections |= {name: _Section(data, self._version) for name, data in news.items()}
        self._seen_now = True

    def _tell_soon(self) -> None:
        self._telling = asyncio.ensure_future(self._tell())  # a loop keeps no task by itself

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _pieces(self, known: int, refusal: Refusal) -> AsyncIterator[bytes]:
        yield b'event: page\ndata: {"version":"%s"}\n\n' % page_version().encode()
        while True:
            await self._news(known)
            if self._ended:
                yield _end(text_answer(HTTPStatus.SERVICE_UNAVAILABLE, "the server stops"))
                return
            why_not = await _refused(refusal)
            if why_not is not None:
                yield _end(why_not)
                return
            if self._seen_now and self._version > known:
                piece, known = self._since(known), self._version
                yield piece
            else:
                yield b": nothing new\n\n"

    async def _news(self, known: int) -> None:
        """Wait until there is some, but no longer than until the next heartbeat."""
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._ended or (self._seen_now and self._version > known))
        except TimeoutError:
            return

    def _since(self, known: int) -> bytes:
        """Return what changed after that version. Only its last event has an id: whoever has that has all of them."""
        changed = [(name, each.data) for name, each in self._sections.items() if each.version > known]
        events = [b"event: %s\ndata: %s\n" % (name.encode(), data) for name, data in changed]
        return b"\n".join(events) + f"id: {self._name}-{self._version}\n\n".encode()


class EventStream(StreamingResponse):
    """A response that goes on, and frees its place whatever ends it."""

    def __init__(self, pieces: AsyncIterator[bytes], close: Callable[[], None], headers: Mapping[str, str]) -> None:
        unbuffered = {"X-Accel-Buffering": "no"}  # by proxies that would wait for the end
        super().__init__(pieces, HTTPStatus.OK, {**headers, **unbuffered, "Content-Type": STREAM_TYPE})
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def _refused(refusal: Refusal) -> HttpAnswer | None:
    try:
        return await refusal()
    except Unavailable as error:
        return text_answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))


def _end(why: HttpAnswer) -> bytes:
    """Return the last event: why it ends, as another request would be told."""
    content = {"status": int(why.status), "text": why.body.decode(errors="replace").strip()}
    return b"event: end\ndata: " + json.dumps(content).encode() + b"\n\n"
