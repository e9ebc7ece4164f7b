"""The journal in a cluster: custom resources behind the fleet's `Journal` protocol.

One object, the root (`root`), is replaced at every commit; it lists the increments in force and carries changes that
the other objects lack yet. A commit is the replacement of the root, so it is atomic although it changes many objects:
the Increments and pages (`objects`) are updated right after it, or by the next reader. New Increments are created
before the root is replaced; until it names them they are not in force.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cagrpc import errors
from cagrpc.fleet.records import KINDS, Changes, Contents, RecordKind
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.parallel import in_parallel
from cagrpc.kube.journal import objects
from cagrpc.kube.journal.objects import FLEET_RECORDS, INCREMENTS, ROOT, Object
from cagrpc.kube.journal.root import PREFIX, ConfirmPolicy, Parts, Root, Superseded, parts_of
from cagrpc.runtime.log_once import LogOnce

_log = logging.getLogger(__name__)

_WHERE = "journal in the cluster"
_NOT_INSTALLED = (
    "the custom resource definitions of deploy/crds.yaml are not installed: kubectl apply -f deploy/crds.yaml"
)
_LISTED_AT_ONCE = 50
"""Increments, each of 1.5 MB at most."""
_WORKERS = 8
"""Increments are written side by side; the root, before and after them, alone."""
_FEW = 8
"""Up to so many Increments are updated after every commit."""
_CATCH_UP_SECONDS = 2.0
"""More Increments are updated only so often, since many change again in a moment (creating, ordered, ids known)."""
_MOST_NODES = 5_000
"""Nodes of pending increments that the root, one size-limited object, carries meanwhile."""
_TRIES = 3
"""How often a write to an object that others change concurrently is tried."""


@dataclass(slots=True)
class _Behind:
    """What the objects lack of the contents in force, by key. Everything but the surplus is in the root as well."""

    increments: set[str] = field(default_factory=set)
    paged: set[tuple[RecordKind[Any], str]] = field(default_factory=set)
    """Records that are in pages."""
    surplus: set[str] = field(default_factory=set)
    """Existing Increments that are not in force: the root does not name them."""

    def after(self, changes: Changes) -> _Behind:
        return _Behind(
            self.increments.union(record.id for record in changes.increments).difference(changes.forgotten_increments),
            self.paged.union((kind, key) for kind in objects.PAGED for key in changes.of(kind)),
            self.surplus.union(changes.forgotten_increments),
        )

    def pending(self, contents: Contents) -> dict[str, Any]:
        """Return what the root has to carry; None for what is forgotten."""
        found = {kind.plural: dict[str, Any]() for kind in KINDS}
        found["increments"] = {key: objects.moving(contents.increments[key]) for key in sorted(self.increments)}
        for kind, key in sorted(self.paged, key=lambda each: each[1]):
            record = contents.of(kind).get(key)
            found[kind.plural][key] = None if record is None else kind.value(record)
        return found

    def pages(self) -> set[str]:
        return {objects.page_of(key) for _, key in self.paged}

    def written(self, page: str) -> None:
        self.paged = {(kind, key) for kind, key in self.paged if objects.page_of(key) != page}


class ClusterJournal:
    """The `cagrpc.fleet.journal.Journal` of a cluster, which has one. `read` takes it over: from then on earlier
    writers are refused, for good. `check` raises `errors.Unavailable` where this process may not write
    (`LeaderElection.check`); it is called before every commit, and by every `check`.

    `read` also raises `errors.InvalidConfiguration` where the custom resource definitions are not installed, and for
    the journal of a cagrpc in another namespace. What does not fit into one object is written in `Parts`."""

    def __init__(
        self,
        client: Client,
        identity: str,
        *,
        namespace: str = "",
        check: Callable[[], None] = lambda: None,
        patience: ConfirmPolicy | None = None,
    ) -> None:
        """`identity` is for people, `namespace` that of the Lease: writers under another Lease are refused, since they
        would supersede each other in turns. Makes no request yet."""
        self._client = client
        self._check = check
        self._lock = threading.Lock()
        patience = patience or ConfirmPolicy()
        self._root = Root(client, identity, namespace, check, patience)
        self._clock = patience.clock
        self._caught_up_at = float("-inf")
        self._read = False
        self._closed = ""
        self._contents = Contents()
        self._behind = _Behind()
        self._pages: dict[str, Object] = {}
        """Outdated pages with their next content, by name."""
        self._versions: dict[str, str] = {}
        """Resource versions by path, as this writer read them last."""
        self._parts = Parts(client, check)
        self._named: dict[str, frozenset[str]] = {}
        """The parts that each Increment and page names."""
        self._reported = LogOnce()

    @property
    def closed_because(self) -> str:
        """Why it takes no more commits; empty while it does. Only a new journal, which reads anew, can continue."""
        return self._closed

    def read(self) -> Contents:
        with self._guarded():
            self._load()
        return self._contents

    def commit(self, changes: Changes) -> None:
        with self._guarded():
            if not self._read:
                self._load()
            after = self._contents.after(changes)
            new = self._new_bodies(changes, after)
            behind = self._behind.after(changes)
            behind.increments.difference_update(new)
            pages = objects.page_bodies(_Behind().after(changes).pages(), after)
            self._behind.surplus.update(new)  # until the root names them
            in_parallel("journal", lambda each: self._create(*each), new.items(), _WORKERS)
            self._root.replace(after.increments, behind.pending(after))
            behind.surplus.difference_update(new)
            self._contents, self._behind = after, behind
            self._pages.update(pages)
            self._catch_up()

    def probe(self) -> None:
        """Replace the root, as every commit does."""
        with self._guarded():
            if not self._read:
                self._load()
            self._root.replace(self._contents.increments, self._behind.pending(self._contents))
            self._catch_up()

    def check(self) -> None:
        if self._closed:
            raise errors.Unavailable(f"{_WHERE}: {self._closed}")
        self._check()

    def close(self) -> None:
        with self._lock:
            self._closed = self._closed or "closed"

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with self._lock:
            self.check()
            try:
                yield
            except Superseded as error:
                self._closed = str(error)
                raise errors.Unavailable(f"{_WHERE}: {error}") from error
            except (errors.Conflict, errors.NotFound, errors.Unavailable) as error:
                raise errors.Unavailable(f"{_WHERE}: {error}") from error

    def _load(self) -> None:
        try:
            listed = partial(self._client.items, at_once=_LISTED_AT_ONCE)
            names, pending = self._root.take_over(lambda: objects.by_age(listed(INCREMENTS)))
            found = {item["metadata"]["name"]: item for item in listed(INCREMENTS)}
            records = {item["metadata"]["name"]: item for item in listed(FLEET_RECORDS)}
        except errors.NotFound as error:
            raise errors.InvalidConfiguration([f"{_NOT_INSTALLED} ({error})"]) from error
        except objects.UNREADABLE as error:
            raise errors.InvalidConfiguration([objects.damaged(f"fleetrecord {ROOT}", error)]) from error
        for name in (name for name in names if name not in found):
            _log.warning(
                "increment %s was deleted by another client; its existing nodes stay", name, extra={"increment": name}
            )
        stored = [name for name in objects.PAGES if name in records]
        self._named = {name: parts_of(item) for name, item in found.items()}
        self._named |= {name: parts_of(records[name]) for name in stored}
        in_force = [self._whole(found[name], records) for name in names if name in found]
        pages = [self._whole(records[name], records) for name in stored]
        self._contents = objects.contents_from(in_force, pages, pending)
        self._versions = {f"{INCREMENTS}/{name}": objects.version(item) for name, item in found.items()}
        self._versions |= {f"{FLEET_RECORDS}/{name}": objects.version(item) for name, item in records.items()}
        self._behind = _Behind(
            self._contents.increments.keys() & pending["increments"].keys(),
            {(kind, key) for kind in objects.PAGED for key in pending[kind.plural]},
            found.keys() - self._contents.increments.keys(),
        )
        named = self._root.parts.union(*self._named.values())
        self._root.surplus_parts = frozenset(name for name in records if name.startswith(PREFIX)) - named
        self._pages = dict(objects.page_bodies(self._behind.pages(), self._contents))
        self._read = True
        self._catch_up()

    def _whole(self, found: Object, records: dict[str, Object]) -> Object:
        try:
            return self._parts.whole(found, records)
        except objects.UNREADABLE:
            return found  # reported with all others that cannot be read

    def _new_bodies(self, changes: Changes, after: Contents) -> dict[str, dict[str, Any]]:
        """Return the bodies of Increments that are new, by name."""
        bodies = {}
        for record in changes.increments:
            known = self._contents.increments.get(record.id)
            if known is None and record.id in after.increments:
                bodies[record.id] = objects.increment_body(record)
            elif known is not None and known.increment != record.increment:
                raise errors.InvalidInput(f"increment {record.id}: what it asks for cannot be changed")
        return bodies

    def _create(self, name: str, whole: Object) -> None:
        body = self._parts.put(whole)
        try:
            made = self._client.create(INCREMENTS, body)
        except errors.Conflict:
            self._check_ours()
            self._discard(name)  # left by an earlier try: it is not in force
            made = self._client.create(INCREMENTS, body)
        self._versions[f"{INCREMENTS}/{name}"] = objects.version(made)
        self._named[name] = parts_of(body)

    def _discard(self, name: str) -> None:
        path = f"{INCREMENTS}/{name}"
        self._versions.pop(path, None)
        try:
            found = self._client.get(path)
        except errors.NotFound:
            return
        self._client.delete(path, uid=found["metadata"]["uid"])
        self._parts.delete(parts_of(found))
        self._named.pop(name, None)

    def _catch_up(self) -> None:
        """Bring the objects up to date, if not just before. What is not written now stays in the root and is tried
        again."""
        behind = self._behind
        nodes = sum(len(self._contents.increments[name].members) for name in behind.increments)
        many = len(behind.increments) > _FEW and nodes <= _MOST_NODES
        if many and self._clock() < self._caught_up_at + _CATCH_UP_SECONDS:
            return
        try:
            in_parallel("journal", self._make_good, sorted(behind.increments), _WORKERS)
            for name in sorted(self._pages):
                self._write_page(name, self._pages[name])
                behind.written(name)
                del self._pages[name]
            for name in sorted(behind.surplus):
                self._discard(name)
                behind.surplus.discard(name)
            self._parts.delete(sorted(self._root.surplus_parts))
            self._root.surplus_parts = frozenset()
        except Superseded as error:  # what was committed stays so
            self._closed = str(error)
        except errors.CagrpcError as error:
            if self._reported.is_new(str(error)):
                _log.warning("%s: objects are behind its commits, which is made good: %s", _WHERE, error)
        else:
            self._reported.over()
        self._caught_up_at = self._clock()

    def _make_good(self, name: str) -> None:
        self._write_increment(name)
        self._behind.increments.discard(name)

    def _write_increment(self, name: str) -> None:
        record, path = self._contents.increments[name], f"{INCREMENTS}/{name}"
        status = self._parts.put({"status": objects.increment_status(objects.moving(record))})
        written: list[Object] = []

        def patch(version: str) -> Object:
            written.append(self._client.patch(path, {"metadata": {"resourceVersion": version}, **status}))
            return written[-1]

        def create() -> Object:
            written.append(self._client.create(INCREMENTS, self._parts.put(objects.increment_body(record))))
            return written[-1]

        self._write(path, patch, create)
        self._name_parts(name, written[-1])

    def _write_page(self, name: str, whole: Object) -> None:
        path, body = f"{FLEET_RECORDS}/{name}", self._parts.put(whole)
        self._write(
            path,
            lambda version: self._client.replace(path, objects.at_version(body, version)),
            lambda: self._client.create(FLEET_RECORDS, body),
        )
        self._name_parts(name, body)

    def _name_parts(self, name: str, written: Object) -> None:
        """Delete the parts that an object names no longer."""
        named = parts_of(written)
        self._parts.delete(self._named.get(name, frozenset()) - named)
        self._named[name] = named

    def _write(self, path: str, change: Callable[[str], Object], create: Callable[[], Object]) -> None:
        for _ in range(_TRIES):
            version = self._versions.get(path, "")
            try:
                self._versions[path] = objects.version(change(version) if version else create())
            except errors.NotFound:
                self._versions[path] = ""
            except errors.Conflict:
                self._versions[path] = self._version_now(path)
            else:
                return
        raise errors.Unavailable(f"{path}: conflicts with other writers, {_TRIES} times in a row")

    def _version_now(self, path: str) -> str:
        """Return the resource version of an object that has changed: by a write of ours whose answer was lost, by
        another client, or by another writer; empty where it is gone. It is read before the root: a writer that takes
        over afterwards writes it again, which outdates this version."""
        try:
            found: Object | None = self._client.get(path)
        except errors.NotFound:
            found = None
        self._check_ours()
        return objects.version(found) if found is not None else ""

    def _check_ours(self) -> None:
        if not self._root.still_ours():
            raise Superseded("another writer took over")
