"""The plain HTTP server: liveness, readiness, metrics, and JSON pages. The content of a page is the business of the
controller that registers it; its size is bounded in `pages`."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cagrpc.errors import InvalidInput, Unavailable
from cagrpc.runtime.controller import Json, JsonList, JsonPage
from cagrpc.services.http.pages import ListOptions, list_options, list_page, object_page
from cagrpc.services.metrics import CONTENT_TYPE, Metrics

log = logging.getLogger(__name__)

_LARGEST_BODY_BYTES = 1024 * 1024
_LARGEST_HEADERS_BYTES = 32 * 1024
_IDLE_SECONDS = 10.0
_LONGEST_SECONDS = 30.0  # of a connection, whatever its client does
_MOST_CONNECTIONS = 64
_PAGES_AT_ONCE = 2  # probes not counted: many requests for large pages leave the other threads most of the time
_PAGES_WAITING = 8
_TURN_SECONDS = 5.0
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The response to one request."""

    status: HTTPStatus
    content_type: str
    body: bytes
    next_query: str = ""
    """The query of the next page; empty on the last one."""


class _Turns:
    """Limits how many pages are rendered at once, and how many threads wait for that."""

    def __init__(self) -> None:
        self._rendering = BoundedSemaphore(_PAGES_AT_ONCE)
        self._admitted = BoundedSemaphore(_PAGES_AT_ONCE + _PAGES_WAITING)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold one of the turns. Raises Unavailable where there is none within a short wait."""
        why = f"the limit of {_PAGES_AT_ONCE} pages at once is reached; try again"
        if not self._admitted.acquire(blocking=False):
            raise Unavailable(why)
        try:
            if not self._rendering.acquire(timeout=_TURN_SECONDS):
                raise Unavailable(why)
            try:
                yield
            finally:
                self._rendering.release()
        finally:
            self._admitted.release()


@dataclass(frozen=True, slots=True)
class Site:
    """All pages, without a socket. Pages may raise InvalidInput and Unavailable."""

    metrics: Metrics
    pages: Callable[[], Mapping[str, JsonPage]] = dict
    """Registered pages by path; called at each request, since a leader's are added once it leads."""
    why_not_ready: Callable[[], str] = str
    """Returns why the server is not ready; empty where it is."""
    stuck: Callable[[], str] = str
    """Returns what makes no progress; empty where all does."""
    status: Callable[[], Json] = dict
    """Returns further members of `/status`."""
    readiness_lines: Callable[[], Iterable[str]] = tuple
    """Returns a line for each watched resource, for `/readyz?verbose`."""
    _turns: _Turns = field(default_factory=_Turns, init=False)

    def get(self, path: str, query: str = "") -> HttpAnswer:
        """Return the page at `path`. Raises InvalidInput and Unavailable."""
        options, verbose = list_options(query), "verbose" in parse_qs(query, keep_blank_values=True)
        if path == "/healthz":
            return _ok_unless(self.stuck())
        if path == "/readyz":
            return self._readyz(verbose=verbose)
        pages = {"/status": JsonPage(self._status), **self.pages()}
        if path != "/metrics" and path not in pages:
            known = ", ".join(("/healthz", "/readyz", "/metrics", *pages))
            return _text(HTTPStatus.NOT_FOUND, f"there is no {path[:100]}; there is {known}")
        with self._turns.one():
            if path == "/metrics":
                return HttpAnswer(HTTPStatus.OK, CONTENT_TYPE, self.metrics.text())
            return _page(pages[path].get(), options)

    def put(self, path: str, body: bytes) -> HttpAnswer:
        """Change what the page at `path` shows, and return the result. Raises InvalidInput and Unavailable."""
        page = self.pages().get(path)
        if page is None or page.put is None:
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, f"{path[:100]} cannot be written")
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            return _text(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}")
        if not isinstance(document, dict):
            return _text(HTTPStatus.BAD_REQUEST, "the body is not a JSON object")
        return _page(page.put(document), ListOptions())

    def _readyz(self, *, verbose: bool) -> HttpAnswer:
        why_not = self.why_not_ready()
        lines = [*self.readiness_lines(), f"readyz check failed: {why_not}" if why_not else "readyz check passed"]
        text = "\n".join(lines) if verbose else why_not or "ok"
        return _text(HTTPStatus.SERVICE_UNAVAILABLE if why_not else HTTPStatus.OK, text)

    def _status(self) -> Json:
        why_not = self.why_not_ready()
        return {"ready": not why_not, "why_not_ready": why_not, **self.status()}


def _target(text: str) -> tuple[str, str]:
    """Return path and query of a request's target, which may be a URL. Raises InvalidInput where it is malformed."""
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise InvalidInput(f"{text[:100]} is no URL: {error}") from error
    return parts.path, parts.query


def _text(status: HTTPStatus, text: str) -> HttpAnswer:
    return HttpAnswer(status, _TEXT, f"{text}\n".encode(errors="backslashreplace"))  # JSON may hold half a character


def _ok_unless(problem: str) -> HttpAnswer:
    return _text(HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK, problem or "ok")


def _page(content: Json | JsonList, options: ListOptions) -> HttpAnswer:
    if isinstance(content, JsonList):
        body, following = list_page(content.items, content.as_json, options)
        return HttpAnswer(HTTPStatus.OK, _JSON, body, following)
    return HttpAnswer(HTTPStatus.OK, _JSON, object_page(content))


class HttpServer:
    """A `Site` on a socket, a thread for each of a bounded number of connections."""

    def __init__(self, host: str, port: int, site: Site) -> None:
        """Listen; `port` 0 is any free one. Raises Unavailable where the address cannot be bound."""
        try:
            self._server = _Listener((host, port), _handler(site))
        except OSError as error:
            raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="http")

    def start(self) -> None:
        """Accept connections from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Accept no more connections, and close the socket."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Listener(ThreadingHTTPServer):
    """Closes the oldest connection when there is one too many, so that probes are answered however many stay open."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._since: dict[socket.socket, float] = {}  # oldest first
        self._lock = Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._since) >= _MOST_CONNECTIONS:
                self._end(next(iter(self._since)))
            self._since[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._since.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections that are open for too long. Called often, between requests."""
        late = time.monotonic() - _LONGEST_SECONDS
        with self._lock:
            for request in [request for request, since in self._since.items() if since < late]:
                self._end(request)

    def _end(self, request: socket.socket) -> None:
        """Shut a connection down, so that the thread that reads from it ends."""
        del self._since[request]
        try:
            request.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("the client has closed the connection already")

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        log.debug("%s closed the connection before its response was sent", client_address, exc_info=True)  # noqa: LOG014 - called in one


class _Headers:
    """Reads header lines up to a bound on their total length."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left = _LARGEST_HEADERS_BYTES

    def readline(self, limit: int) -> bytes:
        line: bytes = self._file.readline(min(limit, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("headers")
        return line


class _Bounded(BaseHTTPRequestHandler):
    """A handler with a timeout and bounded headers."""

    timeout = _IDLE_SECONDS  # a client that sends nothing does not occupy a thread for ever
    server_version = "cagrpc"
    sys_version = ""

    def parse_request(self) -> bool:
        whole = self.rfile
        self.rfile = _Headers(whole)  # type: ignore[assignment] # readline is all that is used of it there
        try:
            return super().parse_request()
        finally:
            self.rfile = whole

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        log.debug(format, *args)


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(_Bounded):
        def do_GET(self) -> None:
            self._answer(site.get)

        do_HEAD = do_GET  # noqa: N815 - the library's name

        def do_PUT(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > _LARGEST_BODY_BYTES:
                self.close_connection = True
                message = f"Content-Length is {length!r}; it must be a number up to {_LARGEST_BODY_BYTES}"
                self._answer(lambda *_: _text(HTTPStatus.BAD_REQUEST, message))
                return
            body = self.rfile.read(int(length))
            self._answer(lambda path, _: site.put(path, body))

        def _answer(self, page: Callable[[str, str], HttpAnswer]) -> None:
            path = ""
            try:
                path, query = _target(self.path)
                answer = page(path, query)
            except InvalidInput as error:
                answer = _text(HTTPStatus.BAD_REQUEST, str(error))
            except Unavailable as error:
                answer = _text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            except Exception:
                log.exception("%s %s failed unexpectedly", self.command, self.path)
                answer = _text(
                    HTTPStatus.INTERNAL_SERVER_ERROR, "failed unexpectedly; the server's log has the traceback"
                )
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            if answer.next_query:
                self.send_header("Link", f'<{path}?{answer.next_query}>; rel="next"')
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

    return Handler
