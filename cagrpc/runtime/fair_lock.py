"""A lock that is acquired in the order in which it was asked for: a thread that releases it and asks for it again comes
after all that wait by then."""

from __future__ import annotations

from collections import deque
from threading import Lock
from types import TracebackType


class FairLock:
    """A lock, as a context manager. Not reentrant."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: deque[Lock] = deque()
        """One for each who waits, released when it is handed over."""
        self._held = False

    def acquire(self) -> None:
        with self._lock:
            if not self._held:
                self._held = True
                return
            own = Lock()
            own.acquire()
            self._waiting.append(own)
        own.acquire()

    def release(self) -> None:
        """Hand it over to who has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
