"""All pages, without a socket: liveness, readiness, metrics, and JSON pages of bounded size: lists with `limit` and
`continue`, newest items first, and objects with truncated lists. The content of a page is the business of the
controller that registers it. Who is answered, and how, is in `application`.

Each item is encoded by itself, by the C encoder (`indent` would disable it): no other thread waits for long, and no
more is encoded than is sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import parse_qs

from cagrpc.errors import InvalidInput, shown
from cagrpc.runtime.controller import Json, JsonList, JsonPage
from cagrpc.services.http.metrics import Metrics

T = TypeVar("T")

LARGEST_PAGE_BYTES = 4 * 1024 * 1024
"""A page is smaller than this, unless its only item is larger."""

_LONGEST_NUMBER = 9  # digits

PROBES = ("/healthz", "/readyz")
STREAM = "/events"
"""What the page at `/` is told; `overview` makes it."""
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The requested part of a list: at most `limit` items, before the newest `after`."""

    limit: int | None = None
    after: int = 0


def list_options(query: str) -> ListOptions:
    """Return the options in a URL's query, `limit=` and `continue=`. Raises InvalidInput."""
    try:
        given = parse_qs(query, max_num_fields=20)
    except ValueError as error:
        raise InvalidInput(f"the query is invalid: {error}") from error
    return ListOptions(_number(given, "limit", 1), _number(given, "continue", 0) or 0)


def _number(given: Mapping[str, Sequence[str]], name: str, least: int) -> int | None:
    if name not in given:
        return None
    text = given[name][-1]
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER and int(text) >= least):
        raise InvalidInput(f"{name} is {shown(text)}; it must be a whole number of {least} or more")
    return int(text)


def list_page(items: Sequence[T], as_json: Callable[[T], Any], options: ListOptions) -> tuple[bytes, str]:
    """Return the newest items, which are the last ones, as a JSON array, oldest first; and the query of the page with
    those before them, empty where there are none."""
    lines: list[bytes] = []
    size, left = 0, max(0, len(items) - options.after)
    for item in reversed(items[:left]):
        if options.limit is not None and len(lines) == options.limit:
            break
        line = _encoded(as_json(item))
        size += len(line) + 2
        if lines and size >= LARGEST_PAGE_BYTES:
            break
        lines.append(line)
    body = b"[" + b",\n".join(reversed(lines)) + b"]\n"
    if len(lines) == left:
        return body, ""
    limit = "" if options.limit is None else f"limit={options.limit}&"
    return body, f"{limit}continue={options.after + len(lines)}"


def object_page(value: Mapping[str, Any]) -> bytes:
    """Return a JSON object. Lists too long for a page are truncated; `left_out` has the number of missing items by
    list."""
    members: list[bytes] = []
    left_out: dict[str, int] = {}
    size = 0
    for name, member in value.items():
        if isinstance(member, list | tuple):
            lines: list[bytes] = []
            for item in member:
                lines.append(_encoded(item))
                size += len(lines[-1]) + 2
                if size >= LARGEST_PAGE_BYTES:
                    left_out[name] = len(member) - len(lines) + 1
                    del lines[-1]
                    break
            text = b"[" + b",\n".join(lines) + b"]"
        else:
            text = _encoded(member)
            size += len(text)
        members.append(_encoded(name) + b": " + text)
    left_out = {name: count for name, count in left_out.items() if count}
    if left_out:
        members.append(b'"left_out": ' + _encoded(left_out))
    return b"{" + b",\n".join(members) + b"}\n"


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The response to one request."""

    status: HTTPStatus
    content_type: str
    body: bytes
    next_query: str = ""
    """The query of the next page; empty on the last one."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers."""


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

    def probe(self, path: str, query: str = "") -> HttpAnswer:
        """Return one of PROBES, without waiting for anything. Raises InvalidInput."""
        list_options(query)  # what is no query is refused
        if path == "/healthz":
            return _ok_unless(self.stuck())
        return self._readyz(verbose="verbose" in parse_qs(query, keep_blank_values=True))

    def json_pages(self) -> dict[str, JsonPage]:
        """Return all pages of JSON by path."""
        return {"/status": JsonPage(self._status), **self.pages()}

    def known(self, path: str) -> bool:
        """Return whether there is such a page now."""
        return path in (*PROBES, "/metrics", STREAM) or path in self.json_pages()

    def get(self, path: str, query: str = "", accept: str = "") -> HttpAnswer:
        """Return the page at `path`; `accept` is the header. Raises InvalidInput and Unavailable."""
        options = list_options(query)
        pages = self.json_pages()
        if path != "/metrics" and path not in pages:
            known = ", ".join((*PROBES, "/metrics", *pages, STREAM))
            return text_answer(HTTPStatus.NOT_FOUND, f"there is no {path[:100]}; there is {known}")
        if path == "/metrics":
            return HttpAnswer(HTTPStatus.OK, *self.metrics.exposition(accept))
        return _page(pages[path].get(), options)

    def put(self, path: str, body: bytes) -> HttpAnswer:
        """Change what the page at `path` shows, and return the result. Raises InvalidInput and Unavailable."""
        page = self.pages().get(path)
        if page is None or page.put is None:
            return text_answer(HTTPStatus.METHOD_NOT_ALLOWED, f"{path[:100]} cannot be written")
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            return text_answer(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}")
        if not isinstance(document, dict):
            return text_answer(HTTPStatus.BAD_REQUEST, "the body is not a JSON object")
        return _page(page.put(document), ListOptions())

    def _readyz(self, *, verbose: bool) -> HttpAnswer:
        why_not = self.why_not_ready()
        lines = [*self.readiness_lines(), f"readyz check failed: {why_not}" if why_not else "readyz check passed"]
        text = "\n".join(lines) if verbose else why_not or "ok"
        return text_answer(HTTPStatus.SERVICE_UNAVAILABLE if why_not else HTTPStatus.OK, text)

    def _status(self) -> Json:
        why_not = self.why_not_ready()
        return {"ready": not why_not, "why_not_ready": why_not, **self.status()}


def text_answer(status: HTTPStatus, text: str) -> HttpAnswer:
    """Return a line of text."""
    return HttpAnswer(status, _TEXT, f"{text}\n".encode(errors="backslashreplace"))  # JSON may hold half a character


def _ok_unless(problem: str) -> HttpAnswer:
    return text_answer(HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK, problem or "ok")


def _page(content: Json | JsonList, options: ListOptions) -> HttpAnswer:
    if isinstance(content, JsonList):
        body, following = list_page(content.items, content.as_json, options)
        return HttpAnswer(HTTPStatus.OK, _JSON, body, following)
    return HttpAnswer(HTTPStatus.OK, _JSON, object_page(content))
