"""The ASGI application: from a request to the answer of a `Site`, with what every response has. Which requests are
answered is decided in `access`, sockets are `server`'s."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from cagrpc.errors import InvalidInput, Unavailable, shown
from cagrpc.services.http.access import Asked, PageAccess
from cagrpc.services.http.overview.digest import Digest
from cagrpc.services.http.overview.feed import PAGE_HEADERS, STREAM_TYPE, Feed, page_files
from cagrpc.services.http.site import PROBES, STREAM, HttpAnswer, Site, text_answer
from cagrpc.services.http.threads import BoundedThreads

log = logging.getLogger(__name__)

_LARGEST_BODY_BYTES = 1024 * 1024
_PAGES_AT_ONCE = 2  # probes not counted
_PAGES_WAITING = 8
_VERBS = {"GET": "get", "HEAD": "get", "PUT": "put"}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every response: it is not cached, shown in no other site's frame, and is what it says it is."""
Observe = Callable[[str, str, int, float], None]
"""Called with every answered request: page (empty where there is none), method, code, seconds."""
_HSTS = {"Strict-Transport-Security": "max-age=31536000"}


class Application:
    """A `Site` for those that `access` lets."""

    def __init__(
        self, site: Site, access: PageAccess, *, hsts: bool = False, observe: Observe = lambda *_: None
    ) -> None:
        """`hsts`: browsers shall come by HTTPS only, also to other ports of this name."""
        self._site = site
        self._access = access
        self._observe = observe
        self._turns = BoundedThreads("pages", _PAGES_AT_ONCE, _PAGES_WAITING)
        overview = Digest()
        self._feed = Feed(lambda: overview.sections(site.json_pages()), self._turns)
        self._headers = {**_HEADERS, **(_HSTS if hsts else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, begun = Request(scope, receive), time.perf_counter()
        try:
            response = await self._response(request)
            await response(scope, receive, send)
            if not isinstance(response, StreamingResponse):
                path = request.url.path
                page = path if path in page_files() or self._site.known(path) else ""
                self._observe(page, request.method, response.status_code, time.perf_counter() - begun)
        except ClientDisconnect:
            log.debug("%s closed the connection before its response was sent", request.client, exc_info=True)

    def end_streams(self) -> None:
        """End what would go on: the server stops. Called by any thread."""
        self._feed.end()

    async def _response(self, request: Request) -> Response:
        path, headers = "", dict(self._headers)
        try:
            path, query = _target(request)
            answer = await self._answer(request, path, query)
            if isinstance(answer, Response):
                return answer
        except InvalidInput as error:
            answer = text_answer(HTTPStatus.BAD_REQUEST, str(error))
        except Unavailable as error:
            answer = text_answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except ClientDisconnect:
            raise
        except Exception:
            log.exception("%s %s failed unexpectedly", request.method, path)
            answer = text_answer(
                HTTPStatus.INTERNAL_SERVER_ERROR, "failed unexpectedly; the server's log has the traceback"
            )
        headers |= {"Content-Type": answer.content_type, **answer.headers}
        if answer.next_query:
            headers["Link"] = f'<{path}?{answer.next_query}>; rel="next"'
        if answer.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = 'Bearer realm="cagrpc"'
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET, HEAD"
        if _has_body(request) and answer.status >= HTTPStatus.BAD_REQUEST:
            headers["Connection"] = "close"  # what is left of it is not read
        return Response(answer.body, answer.status, headers)

    async def _answer(self, request: Request, path: str, query: str) -> HttpAnswer | Response:
        verb = _VERBS.get(request.method)
        if verb is None:
            return text_answer(HTTPStatus.METHOD_NOT_ALLOWED, f"found {request.method[:20]}, expected GET, HEAD or PUT")
        if verb == "get" and (path in PROBES or path in page_files()):
            return self._open_to_all(path, query)
        host, authorization = (request.headers.get(each, "") for each in ("host", "authorization"))
        asked = Asked(verb, path, host, authorization)
        refusal = await self._access.refusal(asked)
        if refusal is not None:
            return refusal
        if path == STREAM and verb == "get":
            return self._stream(request, asked)
        if verb == "get":
            accept = request.headers.get("accept", "")
            return await self._turns.run(lambda: self._site.get(path, query, accept))
        chunked = "transfer-encoding" in request.headers  # then Content-Length says nothing
        length = "" if chunked else request.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > _LARGEST_BODY_BYTES:
            raise InvalidInput(f"Content-Length is {shown(length)}; it must be a number up to {_LARGEST_BODY_BYTES}")
        body = await request.body()
        return await self._turns.run(lambda: self._site.put(path, body))

    def _stream(self, request: Request, asked: Asked) -> HttpAnswer | Response:
        if request.method == "HEAD":
            return HttpAnswer(HTTPStatus.OK, STREAM_TYPE, b"")
        last_id = request.headers.get("last-event-id", "")
        return self._feed.stream(last_id, lambda: self._access.refusal(asked), self._headers)

    def _open_to_all(self, path: str, query: str) -> HttpAnswer:
        if path in PROBES:
            return self._site.probe(path, query)
        file = page_files()[path]
        return HttpAnswer(HTTPStatus.OK, file.content_type, file.content, headers=PAGE_HEADERS)


def _target(request: Request) -> tuple[str, str]:
    """Return path and query of a request's target, which may be a URL. Raises InvalidInput where it is malformed."""
    text = request.scope["raw_path"].decode("ascii")
    try:
        return urlsplit(text).path, request.scope["query_string"].decode("ascii")
    except ValueError as error:
        raise InvalidInput(f"{text[:100]} is not a URL: {error}") from error


def _has_body(request: Request) -> bool:
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
