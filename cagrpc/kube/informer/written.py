"""Objects of an informer together with our own writes: whoever wrote reads what was written, also while the watch is
behind."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from cagrpc.api.encoding.json_documents import Document
from cagrpc.kube.client.envelopes import ObjectIdentity
from cagrpc.runtime.clock import MonotonicClock, monotonic

_UNSEEN_SECONDS = 30.0
"""How long a write is assumed though no watch has shown it."""
_JUST_NOW = "9999-12-31T23:59:59Z"
"""The deletionTimestamp of an object whose deletion the watch has not shown."""
_MOST_DELETED = 10_000
"""UIDs of deleted objects that are remembered: an answer that comes after the deletion revives nothing."""


@dataclass(frozen=True, slots=True)
class _OwnWrite:
    document: Document
    at_seconds: float


class WrittenObjects:
    """An informer's sink of JSON objects by name, of one collection. Thread-safe."""

    def __init__(self, clock: MonotonicClock = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._objects: dict[str, Document] = {}
        self._written: dict[str, _OwnWrite] = {}
        """Our own writes by UID, until the watch has caught up."""
        self._deleting: dict[str, float] = {}
        """When the deletion of an object was accepted, by UID."""
        self._deleted: OrderedDict[str, None] = OrderedDict()

    # ---- the watch

    def replaced(self, objects: Iterable[Document]) -> None:
        found = {_name(each): each for each in objects}
        with self._lock:
            self._objects = found
            for each in found.values():
                self._confirm(each)

    def applied(self, obj: Document) -> None:
        with self._lock:
            self._objects[_name(obj)] = obj
            self._confirm(obj)

    def deleted(self, of: ObjectIdentity) -> None:
        with self._lock:
            found = self._objects.get(of.name)
            if found is not None and _uid(found) == of.uid:
                del self._objects[of.name]
            self._written.pop(of.uid, None)
            self._deleting.pop(of.uid, None)
            self._deleted[of.uid] = None
            while len(self._deleted) > _MOST_DELETED:
                self._deleted.popitem(last=False)

    # ---- our own

    def wrote(self, document: Document) -> None:
        """Remember the answer to a write."""
        with self._lock:
            if _uid(document) not in self._deleted:
                self._written[_uid(document)] = _OwnWrite(document, self._clock())
                known = self._objects.get(_name(document))
                if known is not None and _uid(known) == _uid(document):
                    self._confirm(known)

    def asked_to_delete(self, document: Document) -> None:
        """Remember that the deletion of an object was accepted: it is being deleted, or gone."""
        with self._lock:
            if _uid(document) not in self._deleted:
                self._deleting[_uid(document)] = self._clock()

    def current(self) -> dict[str, Document]:
        """Return the objects by name, each as observed or as written, whichever is newer."""
        with self._lock:
            oldest = self._clock() - _UNSEEN_SECONDS
            self._written = {uid: each for uid, each in self._written.items() if each.at_seconds >= oldest}
            self._deleting = {uid: at for uid, at in self._deleting.items() if at >= oldest}
            found = {**self._objects, **{_name(each.document): each.document for each in self._written.values()}}
            return {name: self._as_deleted(each) for name, each in found.items()} if self._deleting else found

    def _as_deleted(self, document: Document) -> Document:
        if _uid(document) not in self._deleting or document["metadata"].get("deletionTimestamp"):
            return document
        return {**document, "metadata": {**document["metadata"], "deletionTimestamp": _JUST_NOW}}

    def _confirm(self, seen: Document) -> None:
        written = self._written.get(_uid(seen))
        if written is not None and _version(seen) >= _version(written.document):
            del self._written[_uid(seen)]


def _name(document: Document) -> str:
    return str(document["metadata"]["name"])


def _uid(document: Document) -> str:
    return str(document["metadata"]["uid"])


def _version(document: Document) -> int:
    """Resource versions of one object are ordered (Kubernetes API concepts, "Resource versions", since 1.35)."""
    text = str(document["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
