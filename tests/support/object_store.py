"""An API server in memory that keeps JSON objects as the real one does (resource versions, UIDs, preconditions, paged
lists) and fails where it is told to: for tests that need a fault at one certain request."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kubernetes.client import Configuration

from cagrpc.kube.client.access import Access
from cagrpc.kube.client.client import Client
from tests.support.http_server import serving


class Fault(Enum):
    """What becomes of one request."""

    NONE = auto()
    CUT = auto()
    """The connection breaks; nothing was done."""
    LOST = auto()
    """It was done, and the connection breaks before the answer."""
    LATE = auto()
    """The connection breaks, and it is done later, before a request to come (`lateness`)."""
    ERROR = auto()
    """Nothing was done; HTTP 500."""
    ERROR_DONE = auto()
    """It was done; HTTP 504."""
    BUSY = auto()
    """Nothing was done; HTTP 429, to be asked again after 9 s."""
    REFUSED = auto()
    """Nothing was done; HTTP 422, as of an admission webhook."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: Any


class Refused(Exception):  # noqa: N818 - named for what happened
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class ObjectStore:
    """Objects by path. `fault` is asked for each request; `requests` are those that came."""

    def __init__(self, *kinds: str) -> None:
        """`kinds` are the paths of the collections that there are."""
        self.kinds = set(kinds)
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[Request] = []
        self.fault: Callable[[Request], Fault] = lambda _: Fault.NONE
        self.before: Callable[[Request], None] = lambda _: None
        """Called before each request is done: what others do at that moment."""
        self.lateness = 2
        """So many requests after it a LATE one is done."""
        self.url = ""
        self._late: list[tuple[int, Request]] = []
        self._version = 0

    def client(self, wait: Callable[[float], object] = lambda _: None) -> Client:
        def load(configuration: Configuration) -> None:
            configuration.host = self.url

        return Client(Access(load, pool_size=2), wait)

    def handle(self, request: Request) -> tuple[int, Any]:
        """HTTP status and document; 0 where the connection is to break."""
        for due in [late for late in self._late if late[0] <= 0]:
            self._late.remove(due)
            self._try(due[1])
        self._late = [(left - 1, late) for left, late in self._late]
        self.before(request)
        self.requests.append(request)
        match self.fault(request):
            case Fault.NONE:
                return self._try(request)
            case Fault.LOST:
                self._try(request)
            case Fault.LATE:
                self._late.append((self.lateness, request))
            case Fault.ERROR:
                return 500, {"kind": "Status", "message": "an internal error"}
            case Fault.ERROR_DONE:
                self._try(request)
                return 504, {"kind": "Status", "message": "the answer took too long"}
            case Fault.BUSY:
                return 429, {"kind": "Status", "message": "too many requests", "details": {"retryAfterSeconds": 9}}
            case Fault.REFUSED:
                return 422, {"kind": "Status", "message": "a webhook denied the request"}
        return 0, None

    def put(self, path: str, found: dict[str, Any]) -> dict[str, Any]:
        """Stores an object in a new version."""
        self._version += 1
        metadata = {**found["metadata"], "resourceVersion": str(self._version)}
        metadata.setdefault("uid", f"uid-{self._version}")
        self.objects[path] = json.loads(json.dumps({**found, "metadata": metadata}))
        return self.objects[path]

    def edit(self, path: str, **metadata: Any) -> None:
        """Somebody edits an object's metadata."""
        found = self.objects[path]
        self.put(path, {**found, "metadata": {**found["metadata"], **metadata}})

    def _try(self, request: Request) -> tuple[int, Any]:
        try:
            return 200, self._do(request)
        except Refused as refusal:
            return refusal.code, {"kind": "Status", "message": str(refusal)}

    def _do(self, request: Request) -> Any:
        if request.path in self.kinds:
            if request.method == "GET":
                return self._listed(request)
            return self._created(request)
        if request.path.rpartition("/")[0] not in self.kinds:
            raise Refused(404, "the server could not find the requested resource")
        found = self.objects.get(request.path)
        if found is None:
            raise Refused(404, f"{request.path} not found")
        match request.method:
            case "PUT":
                _check(found, request.body)
                return self.put(request.path, _as_before(found, request.body))
            case "PATCH":
                _check(found, request.body)
                return self.put(request.path, _as_before(found, _merged(found, request.body)))
            case "DELETE":
                if (
                    request.body.get("preconditions", {}).get("uid", found["metadata"]["uid"])
                    != found["metadata"]["uid"]
                ):
                    raise Refused(409, "Precondition failed: UID in precondition does not match")
                return self.objects.pop(request.path)
        return found

    def _created(self, request: Request) -> Any:
        path = f"{request.path}/{request.body['metadata']['name']}"
        if path in self.objects:
            raise Refused(409, f"{path} already exists")
        if "resourceVersion" in request.body["metadata"]:
            raise Refused(400, "resourceVersion should not be set on objects to be created")
        return self.put(path, request.body)

    def _listed(self, request: Request) -> Any:
        paths = sorted(path for path in self.objects if path.rpartition("/")[0] == request.path)
        paths = [path for path in paths if path > request.query.get("continue", "")]
        limit = int(request.query.get("limit", "0")) or len(paths)
        more = {"continue": paths[limit - 1]} if len(paths) > limit else {}
        return {"metadata": more, "items": [self.objects[path] for path in paths[:limit]]}


def _check(found: dict[str, Any], body: Any) -> None:
    if (
        body["metadata"].get("resourceVersion", found["metadata"]["resourceVersion"])
        != found["metadata"]["resourceVersion"]
    ):
        raise Refused(409, "the object has been modified; please apply your changes to the latest version")


def _as_before(found: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "uid": found["metadata"]["uid"]}}


def _merged(found: Any, patch: Any) -> Any:
    if not isinstance(found, dict) or not isinstance(patch, dict):
        return patch
    merged = {**found, **{key: _merged(found.get(key), value) for key, value in patch.items()}}
    return {key: value for key, value in merged.items() if value is not None}


@contextmanager
def object_store(*kinds: str) -> Iterator[ObjectStore]:
    store = ObjectStore(*kinds)
    with serving(_Handler) as (server, url):
        server.store = store  # type: ignore[attr-defined]
        store.url = url
        yield store


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        pass

    def _answer(self) -> None:
        store: ObjectStore = self.server.store  # type: ignore[attr-defined]
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        request = Request(self.command, url.path, dict(parse_qsl(url.query)), json.loads(body) if body else None)
        status, document = store.handle(request)
        if not status:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - names of the base class
