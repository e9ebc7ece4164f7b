"""One resource of a cluster, listed and then watched for ever, so that a sink always has it as it is now. How requests
are made is in `client`, how their answers are wrapped in `envelopes`."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
    page,
)
from cagrpc.kube.client.failures import Expired, failure, request_info, status_of
from cagrpc.kube.informer.unreadable import UnreadableObjects
from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.stopping import STOP_SECONDS

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

_log = logging.getLogger(__name__)

_PAGE = 500
_LONGEST_PAGE = 8_000
_WATCH_SECONDS = (300, 600)
"""The server ends a watch after a random time between, so that not all are begun anew together."""
_FIRST_PAUSE_SECONDS = 0.5
_ABSENT_PAUSE_SECONDS = 60.0
_SILENT_WATCHES = 3
"""So many in a row that open and bring nothing, not even a bookmark: the server does not know our resource version."""


class Sink(Protocol[T_contra]):
    """Where the objects go; called by the reflector's thread only. What is applied may be known already."""

    def replaced(self, objects: Iterable[T_contra]) -> None:
        """These are all that there are. They come page by page while they are iterated over; an iteration may end with
        an error, and another `replaced` follows."""
        ...

    def applied(self, obj: T_contra) -> None: ...

    def deleted(self, of: ObjectIdentity) -> None:
        """It is gone, or cannot be read any more. It may be unknown."""
        ...


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """What to follow. `decode` turns protobuf bytes of one object, or its JSON as a dict, into what the sink takes; it
    raises InvalidInput for an object that is to be left out. Whatever else it raises, no other object suffers."""

    path: str
    """Of the collection: `/api/v1/pods`."""
    decode: Callable[[Any], T]
    encoding: Encoding = Encoding.PROTOBUF
    query: Mapping[str, str] = field(default_factory=dict)
    """`fieldSelector`, `labelSelector`."""
    optional: bool = False
    """A kind that the cluster may not know: it has none of them then, and is asked again every minute."""

    @property
    def name(self) -> str:
        """`pods`, `deployments.apps`."""
        return request_info("GET", self.path, {}).resource


class _Unreadable(Exception):  # noqa: N818 - named for what happened
    """Something changed, and not even which object it is can be read: the sink may have it as it was."""


class Reflector(Generic[T]):
    """Lists in pages, then watches from there. A broken watch is resumed from the last resource version that was seen,
    in events or bookmarks; all is listed again only where the server does not keep that one any more (410).

    An object that cannot be read is not there for the sink: it fails no list, and a change to it asks for none.

    `wait(seconds)` pauses, and returns True once `stop` was called; `jitter()` is a number from 0 to 1.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        sink: Sink[T],
        *,
        wait: Callable[[float], bool] | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.synced = False
        """Whether the sink has had a whole list."""
        self.problem: str | None = None
        """Why the sink does not learn of changes now."""
        self._client = client
        self._resource = resource
        self._sink = sink
        self._stopped = Signal()
        self._wait = wait or self._stopped.wait
        self._jitter = jitter
        self._back_off = BackOff(_FIRST_PAUSE_SECONDS, jitter=jitter)
        self._lock = Lock()
        self._stream: Stream | None = None
        self._thread: Thread | None = None
        self._version = ""
        """Where to watch from; empty: list first."""
        self._page_size = _PAGE
        self._failures = 0
        self._silent_watches = 0
        self._unreadable = 0
        """So many lists for what could not be read, since a watch ended without."""
        self.name = resource.name
        self.left_out: UnreadableObjects[ObjectIdentity] = UnreadableObjects(self.name)
        """Objects that cannot be read."""

    def start(self) -> None:
        """Follow the resource in a thread of its own."""
        self._thread = Thread(target=self.run, name=f"reflector-{self.name}", daemon=True)
        self._thread.start()

    def stop(self, wait_seconds: float = STOP_SECONDS) -> None:
        """Returns when the thread has ended, or after so long: a request that hangs ends by its own timeout. May be
        repeated."""
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
                if self._unreadable == 1:  # told once, and asked less and less: it may come often
                    _log.warning("%s: listing again: what has changed cannot be read: %s", self.name, error)
                pause = self._back_off.seconds(self._unreadable)
            except Exception as error:  # noqa: BLE001 - told, and tried again
                # Of the sink: a mistake of ours, which must not leave it with old objects and nobody the wiser.
                _log.exception("%s: the objects could not be taken", self.name)
                self._version = ""
                self._failed(error)
                pause = self._back_off.seconds(self._failures)
            if pause and self._wait(pause):
                return

    def _round(self) -> float:
        """A list, where one is needed, and a watch until it ends; the time to pause then."""
        try:
            if not self._version:
                self._list()
            lasted = self._watch()
            self._unreadable = 0
            if lasted:
                self._failures = 0
                if self._silent_watches < _SILENT_WATCHES:
                    return 0.0
            else:
                self._failures += 1  # begun and ended without a word: not to be asked at once again and again
        except Expired as expired:
            _log.info("%s: listing again: %s", self.name, expired)
            self._version = ""
            self._failures += 1
            if self._failures == 1:
                return 0.0
        except NotFound as absent:
            self._version = ""
            if self._resource.optional:
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
            _log.info("%s: the cluster does not know this kind", self.name)
        self._sink.replaced(())
        self.left_out.only(())
        self.synced = True
        self._failures = 0
        self._works()

    def _list(self) -> None:
        first = self._page("")
        try:
            self._sink.replaced(self._listed(first))
        except Expired:
            # It took too long for the server to keep it: fewer and larger steps next time.
            self._page_size = min(_LONGEST_PAGE, 2 * self._page_size)
            raise
        self._page_size = _PAGE
        self._version = first.resource_version
        self.synced = True

    def _page(self, continue_token: str) -> ListPage:
        query = {**self._resource.query, "limit": str(self._page_size)}
        if continue_token:
            query["continue"] = continue_token
        return page(self._resource.encoding, self._client.read(self._resource.path, query, self._resource.encoding))

    def _listed(self, current: ListPage) -> Iterator[T]:
        left_out: set[ObjectIdentity] = set()
        while True:
            for item in current.items:
                try:
                    decoded = self._resource.decode(item)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is this object's alone
                    of = self._identity(item)
                    left_out.add(of)
                    self.left_out.add(of, error)
                else:
                    yield decoded
            token = current.continue_token
            if not token:
                self.left_out.only(left_out)
                return
            if self._stopped.is_set():
                raise Unavailable(f"{self.name}: stopped while listing")
            del current  # two pages are never held
            current = self._page(token)

    def _identity(self, item: Any) -> ObjectIdentity:
        try:
            return identity(self._resource.encoding, item)
        except InvalidInput:
            return NOBODY

    def _watch(self) -> bool:
        """Whether the watch brought anything before it ended, or was open for long without."""
        least, most = _WATCH_SECONDS
        query = {
            **self._resource.query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(int(least + (most - least) * self._jitter())),
        }
        stream = self._client.stream(self._resource.path, query, self._resource.encoding)
        if not self._opened(stream):
            return False
        self._works()
        self._silent_watches += 1
        try:
            for frame in frames(self._resource.encoding, stream):
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
            return event(self._resource.encoding, frame)
        except InvalidInput as error:
            raise _Unreadable(str(error)) from error

    def _apply(self, change: WatchEvent) -> None:
        match change.change:
            case WatchEventType.ERROR:
                status = status_of(change.item)
                request = request_info("GET", self._resource.path, {"watch": "1"})
                raise failure(self._client.server, request, status.code, status)
            case WatchEventType.DELETED:
                self.left_out.discard(change.of)
                self._sink.deleted(change.of)
            case WatchEventType.ADDED | WatchEventType.MODIFIED:
                self._changed(change)
        self._version = change.resource_version or self._version

    def _changed(self, change: WatchEvent) -> None:
        try:
            decoded = self._resource.decode(change.item)
        except Exception as error:  # noqa: BLE001 - as in lists
            self.left_out.add(change.of, error)
            self._sink.deleted(change.of)
        else:
            self.left_out.discard(change.of)
            self._sink.applied(decoded)
