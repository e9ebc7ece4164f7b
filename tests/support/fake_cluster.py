"""An API server in memory that keeps Nodes, pods and Leases as the real one does, as far as their controllers can see,
and that fails where a test wants it to. What it holds is told to sinks as a reflector would."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from itertools import count
from threading import RLock
from typing import Any
from urllib.parse import parse_qs

from kubernetes.client import Configuration

from cagrpc.api.encoding.messages import packed
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.kube.client.access import Access
from cagrpc.kube.client.client import Client
from tests.support.http_server import serving

Document = dict[str, Any]
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


class Refusal(Exception):  # noqa: N818 - named for what happened
    """With `lost` the request is done, and only its answer is not given."""

    def __init__(self, code: int, message: str = "refused by the test", *, lost: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.lost = lost


@dataclass
class FakeCluster:
    """`objects` by path. `before` is called with every request, method and path, before it is done: it may change
    `objects` (by `write`, as another client) or raise a `Refusal`."""

    url: str = ""
    objects: dict[str, Document] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda request: None
    unseen: deque[tuple[str, Document, bool]] = field(default_factory=deque)
    """Changes that sinks have not been told of: path, object, whether it is there."""

    def __post_init__(self) -> None:
        self._versions = count(1)
        self._lock = RLock()

    def client(self) -> Client:
        def load(configuration: Configuration) -> None:
            configuration.host = self.url

        return Client(Access(load, pool_size=4), lambda seconds: None)

    # ---- what tests do

    def write(self, path: str, document: Document) -> Document:
        """As it is, whatever was there."""
        with self._lock:
            kept = deepcopy(document)
            name = path.rpartition("/")[2]
            uid = self.objects.get(path, {}).get("metadata", {}).get("uid", f"uid-{name}")
            kept["metadata"] = {"name": name, "uid": uid, **kept.get("metadata", {})}
            kept["metadata"]["resourceVersion"] = str(next(self._versions))
            self.objects[path] = kept
            self.unseen.append((path, deepcopy(kept), True))
            return kept

    def remove(self, path: str) -> None:
        with self._lock:
            document = self.objects.pop(path)
            document["metadata"]["resourceVersion"] = str(next(self._versions))
            self.unseen.append((path, document, False))

    def pod(self, name: str, *, node: str = "", **more: Any) -> str:
        """A pod with one container, pending; its path. `more` is merged in."""
        path = f"/api/v1/namespaces/default/pods/{name}"
        document: Document = {"metadata": {"namespace": "default"}, "spec": {"containers": [{"name": "main"}]}}
        if node:
            document["spec"]["nodeName"] = node
        self.write(path, _merged({**document, "status": {"phase": "Pending"}}, more))
        return path

    def changed(self, path: str, **patch: Any) -> None:
        self.write(path, _merged(self.objects[path], patch))

    def node(self, name: str) -> Document:
        return self.objects[f"/api/v1/nodes/{name}"]

    def taint(self, name: str, taint: Document) -> None:
        self.changed(f"/api/v1/nodes/{name}", spec={"taints": [*self.node(name)["spec"].get("taints", ()), taint]})

    def taints(self, name: str) -> list[str]:
        return [taint["key"] for taint in self.node(name)["spec"].get("taints", ())]

    # ---- what the server does

    def answer(self, method: str, path: str, body: Any, field_manager: str = "") -> Document:
        request = f"{method} {path}"
        with self._lock:
            self.requests.append(request)
            try:
                self.before(request)
            except Refusal as refusal:
                if refusal.lost:
                    self._do(method, path, body, field_manager)
                raise
            return self._do(method, path, body, field_manager)

    def _do(self, method: str, path: str, body: Any, field_manager: str) -> Document:
        match method:
            case "GET" if path == "/api/v1/nodes":
                return {"kind": "NodeList", "items": []}
            case "GET":
                return self._found(path)
            case "POST" if path.endswith("/binding"):
                return self._bind(path.removesuffix("/binding"), body)
            case "POST":
                return self._create(f"{path}/{body['metadata']['name']}", body)
            case "PATCH":
                return self._patch(path.removesuffix("/status"), body, field_manager)
            case "DELETE":
                return self._delete(path, body)
        raise Refusal(405)

    def _found(self, path: str) -> Document:
        if path not in self.objects:
            raise Refusal(404, f"{path} not found")
        return self.objects[path]

    def _create(self, path: str, body: Document) -> Document:
        if path in self.objects:
            raise Refusal(409, "already exists")
        if path.startswith("/api/v1/nodes/"):
            body["spec"].setdefault("taints", []).append(NOT_READY)
        return self.write(path, body)

    def _bind(self, path: str, body: Document) -> Document:
        pod = self._found(path)
        if pod["metadata"]["uid"] != body["metadata"]["uid"] or pod["spec"].get("nodeName"):
            raise Refusal(409, "bound already, or another")
        return self.write(path, _merged(pod, {"spec": {"nodeName": body["target"]["name"]}}))

    def _patch(self, path: str, patch: Any, field_manager: str) -> Document:
        if isinstance(patch, list):
            return self._patch_json(path, patch, field_manager)
        present = self._found(path)["metadata"]
        asked = patch.get("metadata", {})
        if any(asked.get(key, present[key]) != present[key] for key in ("uid", "resourceVersion")):
            raise Refusal(409, "it has been changed")
        return self.write(path, _merged(self.objects[path], patch))

    def _patch_json(self, path: str, operations: list[Any], field_manager: str) -> Document:
        """RFC 6902, as far as it is used, for members and the elements of lists."""
        document = deepcopy(self._found(path))
        for each in operations:
            *parents, last = each["path"].strip("/").split("/")
            holder: Any = document
            for name in parents:
                holder = holder[int(name) if isinstance(holder, list) else name]
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
        if field_manager:
            document["metadata"]["managedFields"] = [field_manager]
        return self.write(path, document)

    def _delete(self, path: str, options: Document) -> Document:
        document = self._found(path)
        if options.get("preconditions", {}).get("uid", document["metadata"]["uid"]) != document["metadata"]["uid"]:
            raise Refusal(409, "another one")
        if document["metadata"].get("finalizers"):
            times = {"deletionTimestamp": 1, "deletionGracePeriodSeconds": options["gracePeriodSeconds"]}
            return self.write(path, _merged(document, {"metadata": times}))
        self.remove(path)
        return document


def _merged(document: Document, patch: Document) -> Document:
    result = dict(document)
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _merged(result[key], value)
        elif key == "conditions":
            others = [c for c in result.get(key, ()) if c["type"] not in {n["type"] for n in value}]
            result[key] = [*others, *value]
        else:
            result[key] = value
    return result


def pod_bytes(document: Document) -> bytes:
    """What a reflector gets of a pod. Who manages any field of it manages its nomination."""
    status = {key: value for key, value in document["status"].items() if key in ("phase", "nominatedNodeName")}
    metadata = dict(document["metadata"])
    managers = metadata.pop("managedFields", ())
    pod = packed(kubernetes_pb2.Pod, {"metadata": metadata, "spec": document["spec"], "status": status})
    for manager in managers:
        entry = {"manager": manager, "fieldsV1": {"Raw": b'{"f:status":{"f:nominatedNodeName":{}}}'}}
        pod.metadata.managed_fields.append(packed(kubernetes_pb2.ManagedFieldsEntry, entry).SerializeToString())
    return pod.SerializeToString()


def node_bytes(document: Document) -> bytes:
    """What a reflector gets of a Node."""
    return packed(kubernetes_pb2.Node, document).SerializeToString()


@contextmanager
def fake_cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    with serving(_Handler) as (server, url):
        server.cluster = cluster  # type: ignore[attr-defined]
        cluster.url = url
        yield cluster


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # the whole answer at once
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        pass

    def _answer(self) -> None:
        cluster: FakeCluster = self.server.cluster  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path, _, query = self.path.partition("?")
        manager = parse_qs(query).get("fieldManager", [""])[0]
        try:
            code, document = 200, cluster.answer(self.command, path, json.loads(body) if body else None, manager)
        except Refusal as refusal:
            code, document = refusal.code, {"kind": "Status", "code": refusal.code, "message": str(refusal)}
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815 - names of the base class
