"""An API server in memory that keeps JSON objects as the real one does, as far as its clients can see (resource
versions, UIDs, preconditions, finalizers, paged lists, patches of every kind), and fails at the requests that a test
chooses. Its objects can be passed on as informers deliver them. It listens (`api_server`), or its client calls it in
the same thread. Responses that are scripted byte by byte are in `scripted_api`."""

from __future__ import annotations

import io
import json
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import urllib3
from kubernetes.client import Configuration

from cagrpc.api.encoding.messages import known_to_message
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.demonstration.objects import NODES, ApiRequest, Document, ObjectStore, Refusal, merged, refused
from cagrpc.kube.client.access import Access, Session
from cagrpc.kube.client.client import Client
from tests.support.http_server import serving

__all__ = ["NODES", "ApiRequest", "Document", "Refusal"]  # from the demonstration, which has the objects

Backup = tuple[str, int]
PODS = "/api/v1/namespaces/default/pods"
NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


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


_ANSWERS: dict[Fault, tuple[int, Document]] = {
    Fault.ERROR: (500, {"kind": "Status", "message": "an internal error"}),
    Fault.ERROR_DONE: (504, {"kind": "Status", "message": "the answer took too long"}),
    Fault.BUSY: (429, {"kind": "Status", "message": "too many requests", "details": {"retryAfterSeconds": 9}}),
    Fault.REFUSED: (422, {"kind": "Status", "message": "a webhook denied the request"}),
}


class RefusedOnce:
    """For `ApiServer.before`: the request of this number, from 0, is refused. `seen` counts requests."""

    def __init__(self, number: int, *, lost: bool) -> None:
        self._number, self._lost = number, lost
        self.seen = 0

    def __call__(self, _: str) -> None:
        self.seen += 1
        if self.seen - 1 == self._number:
            raise Refusal(503, "away", lost=self._lost)


class ApiServer(ObjectStore):
    """`requests` are those received, as method and path."""

    def __init__(self, *kinds: str) -> None:
        """`kinds` are the paths of the collections that there are."""
        self.kinds: set[str]
        super().__init__(set(kinds), lambda: 1.0)
        self.requests: list[str] = []
        self.unseen: deque[tuple[str, Document, bool]] = deque()
        """Changes that no informer has passed on yet: path, object, whether it is there."""
        self.before: Callable[[str], None] = lambda _: None
        """Called before each request is done: what others do at that moment, or a `Refusal`."""
        self.fault: Callable[[ApiRequest], Fault] = lambda _: Fault.NONE
        self.lateness = 2
        """So many requests after it a LATE one is done."""
        self.around: Callable[[str, Callable[[], Any]], Any] = lambda _, do: do()
        """Called with each write of a client in the same thread and what does it: there its process can be killed."""
        self.url = ""
        self._late: list[tuple[int, ApiRequest]] = []

    def client(self, wait: Callable[[float], object] = lambda _: None) -> Client:
        return Client(self.access(), wait)

    def access(self) -> Access:
        if not self.url:
            return _InProcess(self)

        def load(configuration: Configuration) -> None:
            configuration.host = self.url

        return Access(load, pool_size=4)

    # ---- writes of others

    def tell(self, path: str, document: Document, *, there: bool) -> None:
        self.unseen.append((path, document, there))

    def edit(self, path: str, **metadata: Any) -> None:
        """Change an object's metadata."""
        self.change(path, metadata=metadata)

    def pod(self, name: str, *, node: str = "", **more: Any) -> str:
        """Create a pending pod with one container and return its path. Its UID is made of its name. `more` is merged
        in."""
        path = f"{PODS}/{name}"
        document: Document = {
            "metadata": {"namespace": "default", "uid": f"uid-{name}"},
            "spec": {"containers": [{"name": "main"}], **({"nodeName": node} if node else {})},
            "status": {"phase": "Pending"},
        }
        self.put(path, merged(document, more))
        return path

    def node(self, name: str) -> Document:
        return self.objects[f"{NODES}/{name}"]

    def taint(self, name: str, taint: Document) -> None:
        self.change(f"{NODES}/{name}", spec={"taints": [*self.node(name)["spec"].get("taints", ()), taint]})

    def taints(self, name: str) -> list[str]:
        return [taint["key"] for taint in self.node(name)["spec"].get("taints", ())]

    # ---- backups

    def backup(self) -> Backup:
        """Return all that there is now."""
        return json.dumps(self.objects), self._version

    def restore(self, backup: Backup, *, higher_versions: bool = False) -> None:
        """Be as then: with resource versions that go on from there, and so come again, or with higher ones than ever.
        What was under way is lost."""
        objects, version = backup
        with self.changed:
            self.objects = json.loads(objects)
            self._late.clear()
            self._version = self._version + 1_000_000 if higher_versions else version

    # ---- the server

    def handle(self, request: ApiRequest) -> tuple[int, Any]:
        """Return HTTP status and document; 0 where the connection is to break."""
        self._do_what_is_late()
        self.requests.append(str(request))
        try:
            self.before(str(request))
        except Refusal as refusal:
            if refusal.lost:
                self.answer(request)
            return refused(refusal)
        fault = self.fault(request)
        if fault is Fault.NONE:
            return self.answer(request)
        if fault in (Fault.LOST, Fault.ERROR_DONE):
            self.answer(request)
        elif fault is Fault.LATE:
            self._late.append((self.lateness, request))
        return _ANSWERS.get(fault, (0, None))

    def _do_what_is_late(self) -> None:
        for due in [late for late in self._late if late[0] <= 0]:
            self._late.remove(due)
            self.answer(due[1])
        self._late = [(left - 1, late) for left, late in self._late]


def node_bytes(document: Document) -> bytes:
    """Return a Node as an informer gets it."""
    return known_to_message(kubernetes_pb2.Node, document).SerializeToString()


class _InProcess(Access):
    """Access to an API server that does not listen."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        super().__init__(lambda _: None, 1)

    def _loaded(self) -> Session:
        pool: Any = self
        return Session("memory:", pool, Configuration())

    def request(self, method: str, url: str, *, body: bytes | None, headers: Any, **_: Any) -> urllib3.HTTPResponse:
        """Answer as a pool of connections does."""
        target = urlsplit(url.removeprefix("memory:"))
        document, kind = json.loads(body) if body else None, headers.get("content-type", "")
        request = ApiRequest(method, target.path, dict(parse_qsl(target.query)), document, kind)
        handled = partial(self.api.handle, request)
        status, answer = handled() if method == "GET" else self.api.around(str(request), handled)
        if not status:
            raise urllib3.exceptions.ProtocolError("the connection was cut")
        return urllib3.HTTPResponse(io.BytesIO(json.dumps(answer).encode()), status=status)

    def close(self) -> None:
        pass


@contextmanager
def api_server(*kinds: str) -> Iterator[ApiServer]:
    """Run an API server that listens. Without `kinds` it has Nodes, the pods of one namespace, and the Leases of
    Nodes."""
    api = ApiServer(*(kinds or (NODES, PODS, NODE_LEASES)))
    with serving(_ObjectsHandler) as (server, url):
        server.api = api  # type: ignore[attr-defined]
        api.url = url
        yield api


class _ObjectsHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # the whole answer at once
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        pass

    def _answer(self) -> None:
        api: ApiServer = self.server.api  # type: ignore[attr-defined]
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        document, kind = json.loads(body) if body else None, self.headers.get("content-type", "")
        request = ApiRequest(self.command, url.path, dict(parse_qsl(url.query)), document, kind)
        status, document = api.handle(request)
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
