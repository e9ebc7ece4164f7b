"""Objects in memory, kept as an API server keeps them, as far as its clients can see: resource versions, UIDs,
preconditions, finalizers, paged lists, patches of every kind, bindings, evictions. How they are sent is in `wire`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from threading import Condition
from typing import Any

from cagrpc.kube.client.client import PatchKind

Document = dict[str, Any]
NODES = "/api/v1/nodes"
_IN_NAMESPACE = re.compile(r"/namespaces/[^/]+(?=/)")
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


@dataclass(frozen=True)
class ApiRequest:
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

    def __init__(self, code: int, message: str = "refused", *, lost: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.lost = lost


class ObjectStore:
    """Objects by path."""

    def __init__(self, kinds: Container[str], clock: Callable[[], float]) -> None:
        """`kinds` are the paths of the collections that there are; `clock` dates deletions that wait for finalizers."""
        self.kinds = kinds
        self.clock = clock
        self.objects: dict[str, Document] = {}
        self.changed = Condition()
        """Held during each write, and notified of it."""
        self._version = 0

    @property
    def latest_version(self) -> int:
        """Grows with each write."""
        return self._version

    def put(self, path: str, found: Document) -> Document:
        """Store an object in a new version, overwriting any other."""
        with self.changed:
            self._version += 1
            metadata = {**found.get("metadata", {}), "resourceVersion": str(self._version)}
            metadata.setdefault("name", path.rpartition("/")[2])
            present = self.objects.get(path, {}).get("metadata", {})
            metadata.setdefault("uid", present.get("uid", f"uid-{self._version}"))
            self.objects[path] = copied({**found, "metadata": metadata})
            self.tell(path, copied(self.objects[path]), there=True)
            return self.objects[path]

    def change(self, path: str, **patch: Any) -> None:
        with self.changed:
            self.put(path, merged(self.objects[path], patch, strategic=True))

    def remove(self, path: str) -> Document:
        with self.changed:
            self._version += 1
            document = self.objects.pop(path)
            document["metadata"]["resourceVersion"] = str(self._version)
            self.tell(path, document, there=False)
            return document

    def tell(self, path: str, document: Document, *, there: bool) -> None:
        """Pass a change on; called with each, under `changed`."""

    def answer(self, request: ApiRequest) -> tuple[int, Any]:
        """Do what is asked, and return HTTP status and document."""
        try:
            with self.changed:
                return 200, self._do(request)
        except Refusal as refusal:
            return refused(refusal)

    def _do(self, request: ApiRequest) -> Any:
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

    def _created(self, request: ApiRequest) -> Any:
        path = f"{request.path}/{request.body['metadata']['name']}"
        if path in self.objects:
            raise Refusal(409, f"{path} already exists")
        if "resourceVersion" in request.body["metadata"]:
            raise Refusal(400, "resourceVersion should not be set on objects to be created")
        if request.path == NODES:  # as admission does
            request.body["spec"].setdefault("taints", []).append(NOT_READY)
        return self.put(path, merged(request.body, {"metadata": {"generation": 1, **self.born()}}))

    def born(self) -> Document:
        """Return the metadata that dates a new object; none where nobody asks for its age."""
        return {}

    def _deleted(self, path: str, found: Document, options: Document) -> Document:
        _check(found, {"metadata": options.get("preconditions", {})})
        if not found["metadata"].get("finalizers"):
            return self.remove(path)
        times = {
            "deletionTimestamp": int(self.clock()),
            "deletionGracePeriodSeconds": options.get("gracePeriodSeconds", 0),
        }
        return self.put(path, merged(found, {"metadata": times}))

    def _bound(self, path: str, found: Document, binding: Document) -> Document:
        _check(found, binding)
        if found["spec"].get("nodeName"):
            raise Refusal(409, "it is bound already")
        return self.put(path, merged(found, {"spec": {"nodeName": binding["target"]["name"]}}))

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

    def _listed(self, request: ApiRequest) -> Any:
        paths = sorted(path for path in self.objects if _is_in(path, request.path))
        paths = [path for path in paths if path > request.query.get("continue", "")]
        limit = int(request.query.get("limit", "0")) or len(paths)
        more = {"continue": paths[limit - 1]} if len(paths) > limit else {}
        return {"metadata": more, "items": [self.objects[path] for path in paths[:limit]]}


def collection_of(path: str) -> str:
    """Return the collection of all namespaces in which an object is listed."""
    return _IN_NAMESPACE.sub("", path).rpartition("/")[0]


def _is_in(path: str, collection: str) -> bool:
    """Return whether a list of the collection, of one namespace or of all, has the object at `path`."""
    return collection in (path.rpartition("/")[0], collection_of(path))


def copied(document: Document) -> Document:
    copy: Document = json.loads(json.dumps(document))
    return copy


def refused(refusal: Refusal) -> tuple[int, Document]:
    return refusal.code, {"kind": "Status", "code": refusal.code, "message": str(refusal)}


def merged(found: Any, patch: Any, *, strategic: bool = False) -> Any:
    """Return the document with an RFC 7386 patch; with `strategic`, conditions are merged by their type."""
    if not isinstance(found, dict) or not isinstance(patch, dict):
        return patch
    result = {**found, **{key: merged(found.get(key), each, strategic=strategic) for key, each in patch.items()}}
    if strategic and "conditions" in patch:
        types = {condition["type"] for condition in patch["conditions"]}
        others = [condition for condition in found.get("conditions", ()) if condition["type"] not in types]
        result["conditions"] = [*others, *patch["conditions"]]
    return {key: value for key, value in result.items() if value is not None}


def _check(found: Document, body: Any) -> None:
    present, asked = found["metadata"], body.get("metadata", {})
    if asked.get("uid", present["uid"]) != present["uid"]:
        raise Refusal(409, "Precondition failed: UID in precondition does not match")
    if asked.get("resourceVersion", present["resourceVersion"]) != present["resourceVersion"]:
        raise Refusal(409, "the object has been modified; please apply your changes to the latest version")


def _changed(found: Document, request: ApiRequest) -> Document:
    if isinstance(request.body, list):
        return _operated(found, request)
    _check(found, request.body)
    if request.method == "PUT":
        document: Document = request.body
        return document
    changed: Document = merged(found, request.body, strategic=request.kind == PatchKind.STRATEGIC)
    return changed


def _as_before(found: Document, body: Document) -> Document:
    metadata = {**body["metadata"], "uid": found["metadata"]["uid"]}
    if "generation" in found["metadata"]:
        asked, before = ({**each, "metadata": None, "status": None} for each in (body, found))
        metadata["generation"] = found["metadata"]["generation"] + (asked != before)
    return {**body, "metadata": metadata}


def _operated(found: Document, request: ApiRequest) -> Document:
    """Return the document with the RFC 6902 operations in use, on members and list elements."""
    document = copied(found)
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
