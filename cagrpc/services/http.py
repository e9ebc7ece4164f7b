"""The plain HTTP side: liveness, readiness, metrics, decisions and increments for people and probes, and the switches
of a simulated backend where there is one."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from cagrpc.errors import InvalidInput, Unavailable
from cagrpc.fleet.model import FleetSnapshot, IncrementStatus, requests_among
from cagrpc.services.decisions import Decisions
from cagrpc.services.metrics import CONTENT_TYPE, Metrics

log = logging.getLogger(__name__)

_LARGEST_BODY_BYTES = 1024 * 1024
_SILENCE_SECONDS = 10.0
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"


class Simulation(Protocol):
    """The behaviour of a simulated backend, readable and settable while it runs."""

    def get(self) -> Mapping[str, Any]:
        """The behaviour, as JSON can say it."""
        ...

    def put(self, behaviour: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change what is named, leave the rest; answers the whole. Raises InvalidInput and Unavailable, with nothing
        changed."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    status: HTTPStatus
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Site:
    """Every page, apart from the socket. `why_not_ready` answers an empty text where the server is ready. Pages may
    raise InvalidInput and Unavailable."""

    snapshot: Callable[[], FleetSnapshot]
    decisions: Decisions
    metrics: Metrics
    why_not_ready: Callable[[], str]
    simulation: Callable[[], Simulation | None] = lambda: None
    plans: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    """The planner loop's rounds, oldest first, as JSON can say them."""
    requests: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    """ProvisioningRequests that are served, oldest first, as JSON can say them."""
    slack: Callable[[], Mapping[str, Any]] = dict
    """What is held in reserve, as JSON can say it; empty where nothing is."""
    about: Callable[[], Mapping[str, Any]] = dict
    """What else `/status` says, for people."""
    informers: Callable[[], Iterable[str]] = tuple
    """A line for each resource that is followed, for `/readyz?verbose`."""
    stuck: Callable[[], str] = str
    """What does not go on and cannot by itself; empty where all does."""

    def get(self, target: str) -> Answer:
        """The page of a request's target, which may be a whole URL."""
        path, query = _path_and_query(target)
        page = self._pages(query).get(path)
        if page is None:
            return _text(HTTPStatus.NOT_FOUND, f"there is no {path[:100]}; there is {', '.join(self._pages())}")
        return page()

    def _pages(self, query: str = "") -> dict[str, Callable[[], Answer]]:
        pages = {
            "/healthz": lambda: _ok_unless(self.stuck()),
            "/readyz": lambda: self._readyz(verbose="verbose" in parse_qs(query, keep_blank_values=True)),
            "/metrics": lambda: Answer(HTTPStatus.OK, CONTENT_TYPE, self.metrics.text()),
            "/decisions": lambda: _json([decision.as_json() for decision in self.decisions.latest()]),
            "/status": self._status,
            "/plans": lambda: _json(list(self.plans())),
            "/provisioningrequests": lambda: _json(list(self.requests())),
            "/slack": lambda: _json(self.slack()),
            "/increments": lambda: _json([_increment(status) for status in self.snapshot().increments]),
        }
        simulation = self.simulation()
        return pages if simulation is None else {**pages, "/simulation": lambda: _json(simulation.get())}

    def _readyz(self, *, verbose: bool) -> Answer:
        why_not = self.why_not_ready()
        lines = [*self.informers(), f"readyz check failed: {why_not}" if why_not else "readyz check passed"]
        text = "\n".join(lines) if verbose else why_not or "ok"
        return _text(HTTPStatus.SERVICE_UNAVAILABLE if why_not else HTTPStatus.OK, text)

    def _status(self) -> Answer:
        why_not = self.why_not_ready()
        in_flight = sum(status.phase.in_flight for status in self.snapshot().increments)
        ready = {"ready": not why_not, "why_not_ready": why_not}
        return _json({**ready, "increments_in_flight": in_flight, **self.about()})

    def put(self, target: str, body: bytes) -> Answer:
        path, _ = _path_and_query(target)
        simulation = self.simulation()
        if path != "/simulation" or simulation is None:
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, f"{path[:100]} cannot be written")
        try:
            behaviour = json.loads(body)
        except (ValueError, RecursionError) as error:
            return _text(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}")
        if not isinstance(behaviour, dict):
            return _text(HTTPStatus.BAD_REQUEST, "the body is not a JSON object")
        return _json(simulation.put(behaviour))


def _path_and_query(target: str) -> tuple[str, str]:
    """Raises InvalidInput for a target that is malformed."""
    try:
        _, _, path, query, _ = urlsplit(target)
    except ValueError as error:
        raise InvalidInput(f"{target[:100]} is no URL: {error}") from error
    return path, query


def _text(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, _TEXT, f"{text}\n".encode(errors="backslashreplace"))  # JSON may hold half a character


def _ok_unless(problem: str) -> Answer:
    return _text(HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK, problem or "ok")


def _json(value: Any) -> Answer:
    return Answer(HTTPStatus.OK, _JSON, json.dumps(value, indent=1).encode())


def _increment(status: IncrementStatus) -> dict[str, Any]:
    return {
        "id": status.id,
        "phase": status.phase.value,
        "deltas": dict(status.increment.deltas),
        "origin": status.increment.origin.value,
        "pods": len(status.increment.pods) - len(status.increment.requests),
        "requests": list(status.increment.requests),
        "reason": status.increment.reason,
        "plan": status.increment.plan,
        "cost_usd_per_hour": status.increment.cost_usd_per_hour,
        "gap": status.increment.gap,
        "message": status.message,
        "short_groups": list(status.short_groups),
        "held": [
            {
                "instance": node.instance_id,
                "node_group": node.node_group,
                "pods": len(node.pods) - len(requests_among(node.pods)),
            }
            for node in status.held
        ],
        "created_at_seconds": status.created_at_seconds,
        "deadline_at_seconds": status.deadline_at_seconds,
    }


class HttpServer:
    """A `Site` on a socket, one thread a request."""

    def __init__(self, host: str, port: int, site: Site) -> None:
        """`port` 0 is any free one. Raises Unavailable where it cannot listen."""
        try:
            self._server = _Listener((host, port), _handler(site))
        except OSError as error:
            raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="http")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        log.debug("%s went away before its answer was sent", client_address, exc_info=True)  # noqa: LOG014 - called in one


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _SILENCE_SECONDS  # a client that says nothing does not hold a thread for ever
        server_version = "cagrpc"
        sys_version = ""

        def do_GET(self) -> None:
            self._answer(site.get)

        do_HEAD = do_GET  # noqa: N815 - the library's name

        def do_PUT(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > _LARGEST_BODY_BYTES:
                self.close_connection = True
                message = f"Content-Length is {length!r}; it must be a number up to {_LARGEST_BODY_BYTES}"
                self._answer(lambda _: _text(HTTPStatus.BAD_REQUEST, message))
                return
            body = self.rfile.read(int(length))
            self._answer(lambda target: site.put(target, body))

        def _answer(self, page: Callable[[str], Answer]) -> None:
            try:
                answer = page(self.path)
            except InvalidInput as error:
                answer = _text(HTTPStatus.BAD_REQUEST, str(error))
            except Unavailable as error:
                answer = _text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            except Exception:
                log.exception("%s %s failed unexpectedly", self.command, self.path)
                answer = _text(HTTPStatus.INTERNAL_SERVER_ERROR, "unexpected; the server's log has the traceback")
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            log.debug(format, *args)

    return Handler
