"""How the objects in memory reach clients of an API server in the same process: requests and answers as over HTTP,
lists and watches in protobuf or JSON, as `cagrpc.kube.client.envelopes` reads them."""

from __future__ import annotations

import io
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import urllib3
from google.protobuf.message import Message
from kubernetes.client import Configuration

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.api.encoding.messages import known_to_message
from cagrpc.api.gen import api_pb2, kubernetes_pb2
from cagrpc.cluster.documents import KINDS
from cagrpc.demonstration.objects import ApiRequest, Document, ObjectStore, collection_of
from cagrpc.kube.client.access import Access, Session
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.envelopes import Encoding, WatchEventType
from cagrpc.runtime.clock import EpochClock

ADDRESS = "memory:"
_MAGIC = b"k8s\x00"
_MOST_CHANGES = 20_000
"""How many of the last changes a watch can begin before."""
_BOOKMARK_SECONDS = 60.0
_BUILT_IN = re.compile(
    r"(/api/v1|/apis/(apps|batch|coordination\.k8s\.io|events\.k8s\.io|node\.k8s\.io|policy|scheduling\.k8s\.io"
    r"|storage\.k8s\.io)/v1)(/namespaces/[^/]+)?/[a-z]+"
)


class _BuiltIn:
    """The collections that every cluster has."""

    def __contains__(self, path: object) -> bool:
        return _BUILT_IN.fullmatch(str(path)) is not None


class ApiInMemory(ObjectStore):
    """Objects that are followed by watches."""

    def __init__(self, clock: EpochClock) -> None:
        super().__init__(_BuiltIn(), clock)
        self._ended = False
        self._changes: deque[tuple[int, str, Document, bool]] = deque(maxlen=_MOST_CHANGES)

    def client(self) -> Client:
        """Return a client whose requests are answered in the thread that makes them."""
        return Client(_InProcess(self))

    def end(self) -> None:
        """End all watches."""
        with self.changed:
            self._ended = True
            self.changed.notify_all()

    def tell(self, path: str, document: Document, *, there: bool) -> None:
        self._changes.append((self.latest_version, path, document, there))
        self.changed.notify_all()

    def born(self) -> Document:
        return {"creationTimestamp": timestamp(self.clock())}

    def listed(self, request: ApiRequest, encoding: Encoding) -> tuple[int, bytes]:
        """Return the HTTP status and the body of a list, or of one object."""
        with self.changed:
            status, answer = self.answer(request)
            version = str(self.latest_version)
        if "items" not in answer:
            return status, json.dumps(answer).encode()
        items = [each for each in answer["items"] if _selected(request.query, each)]
        if encoding is Encoding.JSON:
            metadata = {"resourceVersion": version, **answer["metadata"]}
            return status, json.dumps({"metadata": metadata, "items": items}).encode()
        found = api_pb2.List(items=[protobuf(f"{request.path}/_", each) for each in items])
        found.metadata.resourceVersion = version
        found.metadata.continueToken = answer["metadata"].get("continue", "")
        return status, _enveloped(found.SerializeToString())

    def watched(self, request: ApiRequest, encoding: Encoding, closed: Callable[[], bool]) -> Iterator[bytes]:
        """Yield the frames of a watch, until it is closed."""
        seen = int(request.query["resourceVersion"])
        while True:
            with self.changed:
                if not self._ended and not closed() and self.latest_version <= seen:
                    self.changed.wait(_BOOKMARK_SECONDS)
                if closed() or self._ended:
                    return
                news = self._since(seen)
                seen = self.latest_version
            if not news:
                yield _bookmark(request.path, seen, encoding)
            for _, path, document, there in news:
                if request.path in (path.rpartition("/")[0], collection_of(path)):
                    kept = there and _selected(request.query, document)
                    change = WatchEventType.MODIFIED if kept else WatchEventType.DELETED
                    yield _frame(change, path, document, encoding)

    def _since(self, version: int) -> list[tuple[int, str, Document, bool]]:
        return [*takewhile(lambda each: each[0] > version, reversed(self._changes))][::-1]

    def closing(self) -> None:
        """Let watches see whether they are closed."""
        with self.changed:
            self.changed.notify_all()


def protobuf(path: str, document: Document) -> bytes:
    """Return an object as informers get it that ask for protobuf."""
    plural = collection_of(path).rpartition("/")[2]
    if plural == "pods":
        return pod_bytes(document)
    template = document.get("spec", {}).get("template")
    if template is not None and plural != "daemonsets":  # in bytes, as it is parsed only where it is asked for
        data = known_to_message(kubernetes_pb2.PodTemplateSpec, template).SerializeToString()
        document = {**document, "spec": {**document["spec"], "template": data}}
    message: type[Message] = getattr(kubernetes_pb2, KINDS[plural])
    return known_to_message(message, document).SerializeToString()


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


def _selected(query: Mapping[str, str], document: Document) -> bool:
    """Return whether the selectors of a list or a watch select an object."""
    labels = document["metadata"].get("labels", {})
    for each in filter(None, query.get("labelSelector", "").split(",")):
        key, equals, value = each.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    for each in filter(None, query.get("fieldSelector", "").split(",")):
        names, equals, value = each.partition("!=" if "!=" in each else "=")
        found: Any = document
        for name in names.split("."):
            found = found.get(name, "") if isinstance(found, dict) else ""
        if (found == value) is (equals == "!="):
            return False
    return True


def _frame(change: WatchEventType, path: str, document: Document, encoding: Encoding) -> bytes:
    if encoding is Encoding.JSON:
        return json.dumps({"type": change, "object": document}).encode() + b"\n"
    event = api_pb2.WatchEvent(type=change)
    event.object.raw = _enveloped(protobuf(path, document))
    data = event.SerializeToString()
    return len(data).to_bytes(4, "big") + data


def _bookmark(collection: str, version: int, encoding: Encoding) -> bytes:
    return _frame(WatchEventType.BOOKMARK, f"{collection}/_", {"metadata": {"resourceVersion": str(version)}}, encoding)


def _enveloped(data: bytes) -> bytes:
    return _MAGIC + api_pb2.Unknown(raw=data).SerializeToString()


class _Watch:
    """A streamed response, as of urllib3."""

    status = 200

    def __init__(self, api: ApiInMemory, request: ApiRequest, encoding: Encoding) -> None:
        self._api, self._request, self._encoding = api, request, encoding
        self._closed = False

    def stream(self, amt: int | None = None) -> Iterator[bytes]:
        assert amt is None
        return self._api.watched(self._request, self._encoding, lambda: self._closed)

    def close(self) -> None:
        self._closed = True
        self._api.closing()

    shutdown = close


class _InProcess(Access):
    """Access to objects in the same process."""

    def __init__(self, api: ApiInMemory) -> None:
        self.api = api
        super().__init__(lambda _: None, 1)

    def _loaded(self) -> Session:
        pool: Any = self
        return Session(ADDRESS, pool, Configuration())

    def request(self, method: str, url: str, *, body: bytes | None, headers: Mapping[str, str], **_: Any) -> Any:
        """Answer as a pool of connections does."""
        target = urlsplit(url.removeprefix(ADDRESS))
        document, kind = json.loads(body) if body else None, headers.get("content-type", "")
        request = ApiRequest(method, target.path, dict(parse_qsl(target.query)), document, kind)
        encoding = Encoding.PROTOBUF if headers["accept"].startswith(Encoding.PROTOBUF) else Encoding.JSON
        if request.query.get("watch"):
            return _Watch(self.api, request, encoding)
        if method == "GET":
            status, data = self.api.listed(request, encoding)
        else:
            status, answer = self.api.answer(request)
            data = json.dumps(answer).encode()
        return urllib3.HTTPResponse(io.BytesIO(data), status=status)

    def close(self) -> None:
        self.api.end()
