"""The root: the one object whose replacement is a commit, and how its writer finds out whether a commit was written.

Every replacement has the resource version that this writer read last as its precondition. So a commit is one atomic
request, and once a new writer has replaced the root no earlier one can ever commit again, however long it was paused.
Its content is in `objects`, what follows from it in `journal`.

Content that is too large for one object is in parts: FleetRecords `part-…` that are written before the object that
names them, never changed, and deleted after it names others. So an object changes as a whole, however large it is.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cagrpc import errors
from cagrpc.kube.client.client import Client
from cagrpc.kube.journal.objects import (
    FLEET_RECORDS,
    LARGEST_BYTES,
    NOTHING_PENDING,
    ROOT,
    Object,
    at_version,
    head,
    pack,
    part_body,
    size,
    unpack,
    version,
)
from cagrpc.runtime.clock import MonotonicClock, monotonic

_log = logging.getLogger(__name__)

PREFIX = "part-"
_NAMES = "parts:"
"""What content begins with that is in parts; their names follow. Packed content has no colon."""
_PART_BYTES = LARGEST_BYTES - 10_000
_SECTIONS = ("spec", "status")

_PATH = f"{FLEET_RECORDS}/{ROOT}"
_TRIES = 10
"""How often it is tried against concurrent writers."""
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.05, 1.0


class Parts:
    """Writes, reads and deletes parts. Whoever may not write any more is refused by `check`."""

    def __init__(self, client: Client, check: Callable[[], None]) -> None:
        self._client = client
        self._check = check

    def put(self, body: Object) -> dict[str, Any]:
        """Return the body as it fits into one object: content that is too large is written as parts, the largest
        first."""
        fitting = dict(body)
        by_size = sorted(_SECTIONS, key=lambda name: -len(body.get(name, {}).get("content", "")))
        for section in by_size:
            content = body.get(section, {}).get("content", "")
            if content and size(fitting) > LARGEST_BYTES:
                fitting[section] = {**body[section], "content": self._write(content)}
        return fitting

    def _write(self, content: str) -> str:
        self._check()
        mark = secrets.token_hex(8)
        names = []
        for number, start in enumerate(range(0, len(content), _PART_BYTES)):
            names.append(f"{PREFIX}{mark}-{number}")
            self._client.create(FLEET_RECORDS, part_body(names[-1], content[start : start + _PART_BYTES]))
        return _NAMES + ",".join(names)

    def whole(self, found: Object, known: Mapping[str, Object] | None = None) -> Object:
        """Return the object with its content whole. `known` are FleetRecords by name that were read already. Raises
        ValueError where a part is gone."""
        sections = {name: found[name] for name in _SECTIONS if isinstance(found.get(name), Mapping)}
        joined = {
            name: {**section, "content": "".join(self._read(part, known or {}) for part in names)}
            for name, section in sections.items()
            if (names := _named(section))
        }
        return {**found, **joined} if joined else found

    def _read(self, name: str, known: Mapping[str, Object]) -> str:
        try:
            found = known.get(name) or self._client.get(f"{FLEET_RECORDS}/{name}")
        except errors.NotFound as error:
            raise ValueError(f"its {name} is gone") from error
        return str(found["spec"]["content"])

    def delete(self, names: Iterable[str]) -> None:
        """Delete parts that no object names any more."""
        for name in names:
            self._client.delete(f"{FLEET_RECORDS}/{name}")


def parts_of(found: Object) -> frozenset[str]:
    """Return the names of the parts that an object names."""
    return frozenset(name for section in _SECTIONS for name in _named(found.get(section)))


def _named(section: Any) -> tuple[str, ...]:
    content = section.get("content") if isinstance(section, Mapping) else None
    if not isinstance(content, str) or not content.startswith(_NAMES):
        return ()
    return tuple(content.removeprefix(_NAMES).split(","))


class Superseded(Exception):  # noqa: N818 - named for what happened
    """This writer may not commit any more; the message says why."""


@dataclass(frozen=True, slots=True)
class ConfirmPolicy:
    """How long to retry the confirmation of a commit whose answer was lost."""

    settle_seconds: float = 7.0
    clock: MonotonicClock = monotonic
    wait: Callable[[float], object] = time.sleep


def _refused(error: errors.InvalidInput) -> errors.Unavailable:
    """The root is well formed: a rejection by the API server, a webhook or a proxy is no fault of the caller, and
    nothing can be written until an operator fixes it."""
    return errors.Unavailable(f"nothing was written, the root is refused: {error}")


class Root:
    """The root as this writer read it last."""

    def __init__(
        self, client: Client, writer: str, namespace: str, check: Callable[[], None], patience: ConfirmPolicy
    ) -> None:
        """`namespace` is that of the Lease, empty where there is none; `check` raises `Unavailable` once this process
        may not write any more."""
        self._client = client
        self._writer = writer
        self._namespace = namespace
        self._check = check
        self._patience = patience
        self._parts = Parts(client, check)
        self._seen: Object = {}
        self.surplus_parts: frozenset[str] = frozenset()
        """Parts that the root no longer names, to be deleted."""

    @property
    def parts(self) -> frozenset[str]:
        """The parts that the root names."""
        return parts_of(self._seen)

    def take_over(self, without_root: Callable[[], Iterable[str]]) -> tuple[list[str], dict[str, Any]]:
        """Replace the root with itself, in this writer's name: from now on no other writer commits. Return the
        increments in force, in order of creation, and what is pending. Without a root, create one of the increments of
        `without_root`. Raises `NotFound` where the API does not serve the kind, `Unavailable`, ValueError, KeyError or
        TypeError for a damaged root, and `InvalidConfiguration`, with nothing written, for a root that is written under
        the Lease of another namespace."""
        for _ in range(_TRIES):
            try:
                found = self._found()
                if found is None:
                    names, pending = list(without_root()), dict(NOTHING_PENDING)
                    self._seen = self._client.create(FLEET_RECORDS, self._parts.put(self._body(1, names, pending)))
                else:
                    content, sequence = unpack(self._parts.whole(found)["spec"]["content"]), found["spec"]["sequence"]
                    self._check_namespace(content.get("namespace", ""), found["spec"]["writer"])
                    names, pending = list(content["increments"]), {**NOTHING_PENDING, **content["pending"]}
                    body = self._parts.put(self._body(sequence + 1, names, pending))
                    self._seen = self._client.replace(_PATH, at_version(body, version(found)))
                    _log.info("journal taken over from %s at commit %d", found["spec"]["writer"], sequence)
            except errors.Conflict:
                continue
            except errors.InvalidConfiguration:
                raise
            except errors.InvalidInput as error:
                raise _refused(error) from error
            return names, pending
        raise errors.Unavailable(f"conflicts with other writers, {_TRIES} times in a row")

    def _check_namespace(self, theirs: str, writer: str) -> None:
        if theirs and self._namespace and theirs != self._namespace:
            problem = (
                f"the cluster's journal is that of the cagrpc in namespace {theirs} (last writer {writer}), this one's"
                f" Lease is in namespace {self._namespace}, and a cluster has one cagrpc. Run it in {theirs}, or, where"
                f" that one is gone for good, kubectl delete fleetrecord {ROOT}"
            )
            raise errors.InvalidConfiguration([problem])

    def still_ours(self) -> bool:
        """Return whether no other writer has committed since our last commit."""
        found = self._found()
        return found is not None and version(found) == version(self._seen)

    def replace(self, increments: Iterable[str], pending: object) -> None:
        """Commit. Raises `Unavailable` where it was not written, and `Superseded` where another writer took over, or
        where it cannot be confirmed in time."""
        before = self._seen
        try:
            body = self._parts.put(self._body(before["spec"]["sequence"] + 1, increments, pending))
        except (errors.Conflict, errors.InvalidInput) as error:
            raise errors.Unavailable(f"nothing was written, a part of the root is refused: {error}") from error
        try:
            self._seen = self._client.replace(_PATH, at_version(body, version(before)))
        except (errors.Conflict, errors.InvalidInput, errors.Unavailable) as error:
            self.surplus_parts |= parts_of(body)
            self._settle(body, error)  # a refusal may be of our own try, sent twice
        except errors.NotFound as error:
            raise Superseded(f"it was deleted: {error}") from error
        self.surplus_parts = (self.surplus_parts | parts_of(before)) - self.parts

    def _settle(self, body: Object, problem: errors.CagrpcError) -> None:
        """Return if the body is in force; raise `Unavailable` if it is not and never will be."""
        patience = self._patience
        deadline = patience.clock() + patience.settle_seconds
        spec = self._seen["spec"]
        outdating: Object = {**self._seen, "spec": {**spec, "commit": secrets.token_hex(8)}}
        wait = _FIRST_WAIT_SECONDS
        while True:
            try:
                self._check()
                written = self._confirm(body, outdating)
                break
            except errors.Conflict:
                continue  # the write arrived after all, or another writer took over: the next read shows
            except errors.NotFound as error:
                raise Superseded(f"it was deleted: {error}") from error
            except errors.InvalidInput as error:
                raise _refused(error) from error
            except errors.Unavailable as error:
                if patience.clock() >= deadline:
                    raise Superseded(f"a commit could not be confirmed: {error}") from error
                patience.wait(wait)
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        if not written:
            raise errors.Unavailable(f"nothing was written: {problem}") from problem

    def _confirm(self, body: Object, outdating: Object) -> bool:
        """Return whether the body is in force. Where it is not, it never will be: it may still be on its way, so the
        version that it replaces is outdated first."""
        found = self._client.get(_PATH)
        commit = found["spec"]["commit"]
        if commit != body["spec"]["commit"]:
            if version(found) == version(self._seen):
                found = self._client.replace(_PATH, outdating)
            elif commit != outdating["spec"]["commit"]:
                raise Superseded(f"another writer took over: {found['spec']['writer']}")
        self._seen = found
        return bool(commit == body["spec"]["commit"])

    def _found(self) -> Object | None:
        try:
            return self._client.get(_PATH)
        except errors.NotFound:
            self._client.get(FLEET_RECORDS, {"limit": "1"})  # which is not found either where the kind is not known
            return None

    def _body(self, sequence: int, increments: Iterable[str], pending: object) -> dict[str, Any]:
        """Return the root: `increments` are the ids in force in order of creation, `pending` what the objects may lack
        yet."""
        names = list(increments)
        spec = {
            "sequence": sequence,
            "writer": self._writer,
            "commit": secrets.token_hex(8),
            "increments": len(names),
            "content": pack({"namespace": self._namespace, "increments": names, "pending": pending}),
        }
        return {**head("FleetRecord", ROOT), "spec": spec}
