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
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from http.server import BaseHTTPRequestHandler
from threading import RLock
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import urllib3
from kubernetes.client import Configuration

from cagrpc.api.encoding.messages import known_to_message
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.kube.client.access import Access, Session
from cagrpc.kube.client.client import Client, PatchKind
from tests.support.http_server import serving

Document = dict[str, Any]
Backup = tuple[str, int]
NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


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


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: Any
    kind: str = PatchKind.MERGE
    """The content type of a patch."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Refusal(Exception):  # noqa: N818 - named for what happened
    """A refused request. With `lost` the request is executed, and only its response is lost."""

    def __init__(self, code: int, message: str = "refused by the test", *, lost: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.lost = lost


class RefusedOnce:
    """For `ApiServer.before`: the request of this number, from 0, is refused. `seen` counts requests."""

    def __init__(self, number: int, *, lost: bool) -> None:
        self._number, self._lost = number, lost
        self.seen = 0

    def __call__(self, _: str) -> None:
        self.seen += 1
        if self.seen - 1 == self._number:
            raise Refusal(503, "away", lost=self._lost)


class ApiServer:
    """Objects by path. `requests` are those received, as method and path."""

    def __init__(self, *kinds: str) -> None:
        """`kinds` are the paths of the collections that there are."""
        self.kinds = set(kinds)
        self.objects: dict[str, Document] = {}
        self.requests: list[str] = []
        self.unseen: deque[tuple[str, Document, bool]] = deque()
        """Changes that no reflector has passed on yet: path, object, whether it is there."""
        self.before: Callable[[str], None] = lambda _: None
        """Called before each request is done: what others do at that moment, or a `Refusal`."""
        self.fault: Callable[[Request], Fault] = lambda _: Fault.NONE
        self.lateness = 2
        """So many requests after it a LATE one is done."""
        self.clock: Callable[[], float] = lambda: 1.0
        """Dates deletions that wait for finalizers."""
        self.around: Callable[[str, Callable[[], Any]], Any] = lambda _, do: do()
        """Called with each write of a client in the same thread and what does it: there its process can be killed."""
        self.url = ""
        self._late: list[tuple[int, Request]] = []
        self._version = 0
        self._lock = RLock()

    def client(self, wait: Callable[[float], object] = lambda _: None) -> Client:
        return Client(self.access(), wait)

    def access(self) -> Access:
        if not self.url:
            return _InProcess(self)

        def load(configuration: Configuration) -> None:
            configuration.host = self.url

        return Access(load, pool_size=4)

    @property
    def latest_version(self) -> int:
        """Grows with each write."""
        return self._version

    # ---- writes of others

    def put(self, path: str, found: Document) -> Document:
        """Store an object in a new version, overwriting any other."""
        with self._lock:
            self._version += 1
            metadata = {**found.get("metadata", {}), "resourceVersion": str(self._version)}
            metadata.setdefault("name", path.rpartition("/")[2])
            present = self.objects.get(path, {}).get("metadata", {})
            metadata.setdefault("uid", present.get("uid", f"uid-{self._version}"))
            self.objects[path] = _copy({**found, "metadata": metadata})
            self.unseen.append((path, _copy(self.objects[path]), True))
            return self.objects[path]

    def edit(self, path: str, **metadata: Any) -> None:
        """Change an object's metadata."""
        self.change(path, metadata=metadata)

    def change(self, path: str, **patch: Any) -> None:
        self.put(path, _merged(self.objects[path], patch, strategic=True))

    def remove(self, path: str) -> Document:
        with self._lock:
            self._version += 1
            document = self.objects.pop(path)
            document["metadata"]["resourceVersion"] = str(self._version)
            self.unseen.append((path, document, False))
            return document

    def pod(self, name: str, *, node: str = "", **more: Any) -> str:
        """Create a pending pod with one container and return its path. Its UID is made of its name. `more` is merged
        in."""
        path = f"{PODS}/{name}"
        document: Document = {
            "metadata": {"namespace": "default", "uid": f"uid-{name}"},
            "spec": {"containers": [{"name": "main"}], **({"nodeName": node} if node else {})},
            "status": {"phase": "Pending"},
        }
        self.put(path, _merged(document, more))
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
        with self._lock:
            self.objects = json.loads(objects)
            self._late.clear()
            self._version = self._version + 1_000_000 if higher_versions else version

    # ---- the server

    def handle(self, request: Request) -> tuple[int, Any]:
        """Return HTTP status and document; 0 where the connection is to break."""
        self._do_what_is_late()
        self.requests.append(str(request))
        try:
            self.before(str(request))
        except Refusal as refusal:
            if refusal.lost:
                self._try(request)
            return _refused(refusal)
        fault = self.fault(request)
        if fault is Fault.NONE:
            return self._try(request)
        if fault in (Fault.LOST, Fault.ERROR_DONE):
            self._try(request)
        elif fault is Fault.LATE:
            self._late.append((self.lateness, request))
        return _ANSWERS.get(fault, (0, None))

    def _do_what_is_late(self) -> None:
        for due in [late for late in self._late if late[0] <= 0]:
            self._late.remove(due)
            self._try(due[1])
        self._late = [(left - 1, late) for left, late in self._late]

    def _try(self, request: Request) -> tuple[int, Any]:
        try:
            with self._lock:
                return 200, self._do(request)
        except Refusal as refusal:
            return _refused(refusal)

    def _do(self, request: Request) -> Any:
        if request.path in self.kinds:
            return self._listed(request) if request.method == "GET" else self._created(request)
        path, part = request.path.removesuffix("/status"), ""
        if request.method == "POST":
            path, _, part = path.rpartition("/")
        if path.rpartition("/")[0] not in self.kinds:
            raise Refusal(404, "the server could not find the requested resource")
        found = self.objects.get(path)
        if found is None:
            raise Refusal(404, f"{path} not found")
        if request.method == "DELETE":
            return self._deleted(path, found, request.body or {})
        if request.method == "POST" and part == "binding":
            return self._bound(path, found, request.body)
        if request.method == "POST" and part == "eviction":
            return self._evicted(path, found, request.body.get("deleteOptions", {}))
        if request.method in ("PUT", "PATCH"):
            return self.put(path, _as_before(found, _changed(found, request)))
        return found

    def _created(self, request: Request) -> Any:
        path = f"{request.path}/{request.body['metadata']['name']}"
        if path in self.objects:
            raise Refusal(409, f"{path} already exists")
        if "resourceVersion" in request.body["metadata"]:
            raise Refusal(400, "resourceVersion should not be set on objects to be created")
        if request.path == NODES:  # as admission does
            request.body["spec"].setdefault("taints", []).append(NOT_READY)
        return self.put(path, _merged(request.body, {"metadata": {"generation": 1}}))

    def _deleted(self, path: str, found: Document, options: Document) -> Document:
        _check(found, {"metadata": options.get("preconditions", {})})
        if not found["metadata"].get("finalizers"):
            return self.remove(path)
        times = {
            "deletionTimestamp": int(self.clock()),
            "deletionGracePeriodSeconds": options.get("gracePeriodSeconds", 0),
        }
        return self.put(path, _merged(found, {"metadata": times}))

    def _bound(self, path: str, found: Document, binding: Document) -> Document:
        _check(found, binding)
        if found["spec"].get("nodeName"):
            raise Refusal(409, "it is bound already")
        return self.put(path, _merged(found, {"spec": {"nodeName": binding["target"]["name"]}}))

    def _evicted(self, path: str, found: Document, options: Document) -> Document:
        _check(found, {"metadata": options.get("preconditions", {})})
        budgets = f"/apis/policy/v1/namespaces/{found['metadata']['namespace']}/poddisruptionbudgets"
        labels = found["metadata"].get("labels", {}).items()
        for of, budget in [each for each in self.objects.items() if each[0].rpartition("/")[0] == budgets]:
            if budget["spec"]["selector"]["matchLabels"].items() <= labels:
                left = budget["status"]["disruptionsAllowed"] - 1
                if left < 0:
                    raise Refusal(429, "Cannot evict pod as it would violate the pod's disruption budget.")
                self.change(of, status={"disruptionsAllowed": left})
        return self._deleted(path, found, {})

    def _listed(self, request: Request) -> Any:
        paths = sorted(path for path in self.objects if path.rpartition("/")[0] == request.path)
        paths = [path for path in paths if path > request.query.get("continue", "")]
        limit = int(request.query.get("limit", "0")) or len(paths)
        more = {"continue": paths[limit - 1]} if len(paths) > limit else {}
        return {"metadata": more, "items": [self.objects[path] for path in paths[:limit]]}


def _copy(document: Document) -> Document:
    copy: Document = json.loads(json.dumps(document))
    return copy


def _refused(refusal: Refusal) -> tuple[int, Document]:
    return refusal.code, {"kind": "Status", "code": refusal.code, "message": str(refusal)}


def _check(found: Document, body: Any) -> None:
    present, asked = found["metadata"], body.get("metadata", {})
    if asked.get("uid", present["uid"]) != present["uid"]:
        raise Refusal(409, "Precondition failed: UID in precondition does not match")
    if asked.get("resourceVersion", present["resourceVersion"]) != present["resourceVersion"]:
        raise Refusal(409, "the object has been modified; please apply your changes to the latest version")


def _changed(found: Document, request: Request) -> Document:
    if isinstance(request.body, list):
        return _operated(found, request)
    _check(found, request.body)
    if request.method == "PUT":
        document: Document = request.body
        return document
    merged: Document = _merged(found, request.body, strategic=request.kind == PatchKind.STRATEGIC)
    return merged


def _as_before(found: Document, body: Document) -> Document:
    metadata = {**body["metadata"], "uid": found["metadata"]["uid"]}
    if "generation" in found["metadata"]:
        asked, before = ({**each, "metadata": None, "status": None} for each in (body, found))
        metadata["generation"] = found["metadata"]["generation"] + (asked != before)
    return {**body, "metadata": metadata}


def _merged(found: Any, patch: Any, *, strategic: bool = False) -> Any:
    """Return the document with an RFC 7386 patch; with `strategic`, conditions are merged by their type."""
    if not isinstance(found, dict) or not isinstance(patch, dict):
        return patch
    merged = {**found, **{key: _merged(found.get(key), each, strategic=strategic) for key, each in patch.items()}}
    if strategic and "conditions" in patch:
        types = {condition["type"] for condition in patch["conditions"]}
        others = [condition for condition in found.get("conditions", ()) if condition["type"] not in types]
        merged["conditions"] = [*others, *patch["conditions"]]
    return {key: value for key, value in merged.items() if value is not None}


def _operated(found: Document, request: Request) -> Document:
    """Return the document with the RFC 6902 operations in use, on members and list elements."""
    document = _copy(found)
    for each in request.body:
        *parents, last = each["path"].strip("/").split("/")
        holder: Any = document
        try:
            for name in parents:
                holder = holder[int(name) if isinstance(holder, list) else name]
        except (KeyError, IndexError):
            raise Refusal(422, f"there is no {each['path']}") from None
        if isinstance(holder, list) and last == "-":
            holder.append(each["value"])
            continue
        key: Any = int(last) if isinstance(holder, list) else last
        present = holder[key] if isinstance(holder, list) and key < len(holder) else None
        present = holder.get(key) if isinstance(holder, dict) else present
        if each["op"] == "test":
            if present != each["value"]:
                raise Refusal(422, f"testing {each['path']} failed")
        elif each["op"] == "remove":
            del holder[key]
        else:
            holder[key] = each["value"]
    if "fieldManager" in request.query:
        document["metadata"]["managedFields"] = [request.query["fieldManager"]]
    return document


def pod_bytes(document: Document) -> bytes:
    """Return a pod as an informer gets it. The manager of any field is the manager of its nomination."""
    metadata = dict(document["metadata"])
    managers = metadata.pop("managedFields", ())
    pod = known_to_message(kubernetes_pb2.Pod, {**document, "metadata": metadata})
    for manager in managers:
        entry = {"manager": manager, "fieldsV1": {"Raw": b'{"f:status":{"f:nominatedNodeName":{}}}'}}
        pod.metadata.managed_fields.append(
            known_to_message(kubernetes_pb2.ManagedFieldsEntry, entry).SerializeToString()
        )
    return pod.SerializeToString()


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
        request = Request(method, target.path, dict(parse_qsl(target.query)), document, kind)
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
        request = Request(self.command, url.path, dict(parse_qsl(url.query)), document, kind)
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
