"""Informers: each lists and watches one resource of a cluster, so that a sink always has its current objects. Objects
that cannot be decoded or accepted are logged once each, and counted. Requests are made in `client`, responses decoded
in `envelopes`."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sized
from threading import Event as Signal
from threading import Lock, Thread
from typing import Any, Generic, Protocol, TypeVar

from cagrpc.errors import CagrpcError, InvalidInput, NotFound, Unavailable
from cagrpc.kube.client.client import Client, Stream
from cagrpc.kube.client.envelopes import (
    NOBODY,
    Encoding,
    ListPage,
    ObjectIdentity,
    WatchEvent,
    WatchEventType,
    event,
    frames,
    identity,
    is_older,
    page,
)
from cagrpc.kube.client.failures import Expired, failure, request_info, status_of
from cagrpc.kube.informer.resource import Resource, UnreadableObjects
from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.health import still_to_come
from cagrpc.runtime.stopping import STOP_SECONDS, stop_all

_log = logging.getLogger(__name__)

T = TypeVar("T")


T_contra = TypeVar("T_contra", contravariant=True)


_PAGE = 500
_LONGEST_PAGE = 8_000
_WATCH_SECONDS = (300, 600)
"""The range of the random watch timeout, which spreads the restarts of watches."""
_FIRST_PAUSE_SECONDS = 0.5
_ABSENT_PAUSE_SECONDS = 60.0
_SILENT_WATCHES = 3
"""Watches in a row that open and yield nothing, not even a bookmark, after which the resource version is considered
unknown to the server."""


class Sink(Protocol[T_contra]):
    """Receives the objects, on the informer's thread only. `applied` may repeat a known state."""

    def replaced(self, objects: Iterable[T_contra]) -> None:
        """Replace all objects by these. They are fetched page by page during the iteration, which may end with an
        error; another `replaced` follows then."""
        ...

    def applied(self, obj: T_contra) -> None: ...

    def deleted(self, of: ObjectIdentity) -> None:
        """Remove an object that was deleted or cannot be decoded any more. It may be unknown."""
        ...


class _Unreadable(Exception):  # noqa: N818 - named for what happened
    """A watch event cannot be decoded, not even its object's identity: the sink may be outdated."""


class Informer(Generic[T]):
    """One followed resource, as `cagrpc.runtime.health.SyncedResource`.

    It lists in pages, then watches from there. A broken watch is resumed from the last resource version, of events or
    bookmarks; objects are listed again only when that version has expired (410).

    For the sink an object that cannot be decoded does not exist: it fails no list, and a change to it does not cause
    another list.

    `wait(seconds)` pauses, and returns True once `stop` was called; `jitter()` is a number from 0 to 1.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        sink: Sink[T],
        *,
        needed: bool = True,
        refused: Sized = (),
        wait: Callable[[float], bool] | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """If it is not `needed`, the process works without it while it cannot be listed. `refused` are objects that the
        sink could not accept."""
        self.needed = needed
        self._refused = refused
        self.synced = False
        """Whether the sink has received a complete list."""
        self.problem: str | None = None
        """Why the sink currently receives no changes; None where it does."""
        self._client = client
        self.resource = resource
        self.sink = sink
        self._stopped = Signal()
        self._wait = wait or self._stopped.wait
        self._jitter = jitter
        self._back_off = BackOff(_FIRST_PAUSE_SECONDS, jitter=jitter)
        self._lock = Lock()
        self._stream: Stream | None = None
        self._thread: Thread | None = None
        self._version = ""
        """The resource version to watch from; empty to list first."""
        self._page_size = _PAGE
        self._failures = 0
        self._silent_watches = 0
        self._unreadable = 0
        """Lists caused by undecodable events since a watch ended without one."""
        self.name = resource.name
        self.undecoded: UnreadableObjects[ObjectIdentity] = UnreadableObjects(self.name)
        """Objects that cannot be decoded."""

    @property
    def left_out(self) -> int:
        return len(self.undecoded) + len(self._refused)

    def start(self) -> None:
        """Follow the resource in a thread of its own."""
        self._thread = Thread(target=self.run, name=f"informer-{self.name}", daemon=True)
        self._thread.start()

    def stop(self, wait_seconds: float = STOP_SECONDS) -> None:
        """Stop, and wait at most this long for the thread to end; a hanging request ends by its own timeout.
        Idempotent."""
        self._stopped.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()
        if self._thread is not None:
            self._thread.join(wait_seconds)

    def run(self) -> None:
        """Follow the resource until `stop` is called."""
        while not self._stopped.is_set():
            try:
                pause = self._round()
            except _Unreadable as error:
                self._version = ""
                self._unreadable += 1
                if self._unreadable == 1:  # log once and back off: it may recur often
                    _log.warning("%s: listing again: what has changed cannot be read: %s", self.name, error)
                pause = self._back_off.seconds(self._unreadable)
            except Exception as error:  # noqa: BLE001 - logged and retried
                # A defect of the sink, which must not leave it with outdated objects unnoticed.
                _log.exception("%s: the objects could not be taken", self.name)
                self._version = ""
                self._failed(error)
                pause = self._back_off.seconds(self._failures)
            if pause and self._wait(pause):
                return

    def _round(self) -> float:
        """List if needed, and watch until the watch ends; return the pause before the next round."""
        try:
            if not self._version or self._went_back():
                self._list()
            lasted = self._watch()
            self._unreadable = 0
            if lasted:
                self._failures = 0
                if self._silent_watches < _SILENT_WATCHES:
                    return 0.0
            else:
                self._failures += 1  # it ended without an event: back off
        except Expired as expired:
            _log.info("%s: listing again: %s", self.name, expired)
            self._version = ""
            self._failures += 1
            if self._failures == 1:
                return 0.0
        except NotFound as absent:
            self._version = ""
            if self.resource.optional:
                self._none_known()
                return _ABSENT_PAUSE_SECONDS
            self._failed(absent)
        except CagrpcError as error:
            self._failed(error)
        if self._silent_watches >= _SILENT_WATCHES:
            self._version = ""
            self._silent_watches = 0
        return self._back_off.seconds(self._failures)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        if self._stopped.is_set():
            return
        if self.problem is None:
            _log.warning("%s: not followed for now: %s", self.name, error)
        self.problem = str(error)

    def _works(self) -> None:
        if self.problem is not None:
            _log.info("%s: followed again", self.name)
        self.problem = None

    def _none_known(self) -> None:
        if not self.synced:
            _log.debug("%s: the cluster does not serve %s", self.name, self.resource.path)
        self.sink.replaced(())
        self.undecoded.only(())
        self.synced = True
        self._failures = 0
        self._works()

    def _list(self) -> None:
        first = self._page("")
        try:
            self.sink.replaced(self._listed(first))
        except Expired:
            # The list took so long that it expired: use fewer and larger pages.
            self._page_size = min(_LONGEST_PAGE, 2 * self._page_size)
            raise
        self._page_size = _PAGE
        self._version = first.resource_version
        self.synced = True

    def _went_back(self) -> bool:
        """Return whether the API server was restored from an older backup, with versions that come again: a watch from
        a version that it has not come to yet is silent until then, and never tells what happened before."""
        query = {**self.resource.query, "limit": "1"}
        now = page(Encoding.JSON, self._client.read(self.resource.path, query, Encoding.JSON)).resource_version
        older = is_older(now, self._version)
        if older:
            _log.warning("%s: listing again: version %s is older than %s: restored?", self.name, now, self._version)
        return older

    def _page(self, continue_token: str) -> ListPage:
        query = {**self.resource.query, "limit": str(self._page_size)}
        if continue_token:
            query["continue"] = continue_token
        return page(self.resource.encoding, self._client.read(self.resource.path, query, self.resource.encoding))

    def _listed(self, current: ListPage) -> Iterator[T]:
        left_out: set[ObjectIdentity] = set()
        while True:
            for item in current.items:
                try:
                    decoded = self.resource.decode(item)
                except Exception as error:  # noqa: BLE001 - it must not affect other objects
                    of = self._identity(item)
                    left_out.add(of)
                    self.undecoded.add(of, error)
                else:
                    yield decoded
            token = current.continue_token
            if not token:
                self.undecoded.only(left_out)
                return
            if self._stopped.is_set():
                raise Unavailable(f"{self.name}: stopped while listing")
            del current  # hold one page at a time
            current = self._page(token)

    def _identity(self, item: Any) -> ObjectIdentity:
        try:
            return identity(self.resource.encoding, item)
        except InvalidInput:
            return NOBODY

    def _watch(self) -> bool:
        """Watch until the watch ends; return whether it yielded an event, or was open until the read timeout."""
        least, most = _WATCH_SECONDS
        query = {
            **self.resource.query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(int(least + (most - least) * self._jitter())),
        }
        stream = self._client.stream(self.resource.path, query, self.resource.encoding)
        if not self._opened(stream):
            return False
        self._works()
        self._silent_watches += 1
        try:
            for frame in frames(self.resource.encoding, stream):
                self._apply(self._event(frame))
                self._silent_watches = self._failures = 0
        finally:
            self._stream = None
        return stream.fell_silent or not self._silent_watches

    def _opened(self, stream: Stream) -> bool:
        with self._lock:
            self._stream = stream
            if self._stopped.is_set():
                stream.close()
                return False
        return True

    def _event(self, frame: bytes) -> WatchEvent:
        try:
            return event(self.resource.encoding, frame)
        except InvalidInput as error:
            raise _Unreadable(str(error)) from error

    def _apply(self, change: WatchEvent) -> None:
        match change.change:
            case WatchEventType.ERROR:
                status = status_of(change.item)
                request = request_info("GET", self.resource.path, {"watch": "1"})
                raise failure(self._client.server, request, status.code, status)
            case WatchEventType.DELETED:
                self.undecoded.discard(change.of)
                self.sink.deleted(change.of)
            case WatchEventType.ADDED | WatchEventType.MODIFIED:
                self._changed(change)
        self._version = change.resource_version or self._version

    def _changed(self, change: WatchEvent) -> None:
        try:
            decoded = self.resource.decode(change.item)
        except Exception as error:  # noqa: BLE001 - as in lists
            self.undecoded.add(change.of, error)
            self.sink.deleted(change.of)
        else:
            self.undecoded.discard(change.of)
            self.sink.applied(decoded)


class InformerStore:
    """Base class of stores that informers keep up to date between `start` and `stop`."""

    informers: tuple[Informer[Any], ...]

    def start(self) -> None:
        for each in self.informers:
            each.start()

    def stop(self, wait_seconds: float = STOP_SECONDS) -> None:
        """Stop the informers, waiting at most this long. Idempotent."""
        stop_all([each.stop for each in self.informers], wait_seconds)

    @property
    def synced(self) -> bool:
        """Whether every needed resource has been listed once."""
        return not still_to_come(self.informers)

    @property
    def problem(self) -> str | None:
        """Why a needed resource is not up to date; None where all are."""
        return next((each.problem for each in self.informers if each.needed and each.problem), None)
