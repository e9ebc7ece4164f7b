"""All pages, without a socket: liveness, readiness, metrics, and JSON pages. The content of a page is the business of
the controller that registers it; its size is bounded in `pages`. Who is answered, and how, is in `application`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qs

from cagrpc.runtime.controller import Json, JsonList, JsonPage
from cagrpc.services.http.pages import ListOptions, list_options, list_page, object_page
from cagrpc.services.metrics import Metrics

PROBES = ("/healthz", "/readyz")
STREAM = "/events"
"""What the page at `/` is told; `overview` makes it."""
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
    headers: Mapping[str, str] = field(default_factory=dict)
    """More of them."""


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
