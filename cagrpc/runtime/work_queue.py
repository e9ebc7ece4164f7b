"""Work on many objects with few threads: keys that wait to be handled, each once however often it was added, each by
one thread at a time, and later again where it failed. What is to be done with a key is its owner's."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from cagrpc.errors import CagrpcError
from cagrpc.runtime.back_off import LONGEST_SECONDS, BackOff
from cagrpc.runtime.clock import MonotonicClock, monotonic
from cagrpc.runtime.heartbeat import Heartbeat
from cagrpc.runtime.log_once import LogOnce

K = TypeVar("K", bound=Hashable)

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.5
_MOST_REPORTED = 5
"""Different problems that are logged before there is none left."""


class WorkQueue(Generic[K]):
    """Keys in order of when they are due, handled by `workers` threads between `start` and `stop`.

    `handle` returns after how many seconds its key is to be handled again, or None. Where it raises it is tried again
    after a back-off; the same problem is logged once, however many keys have it. Adding a key that waits brings it
    forward, never back, and not at all where it waits because it failed.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[K], float | None],
        *,
        workers: int,
        longest_pause_seconds: float = LONGEST_SECONDS,
        clock: MonotonicClock = monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`jitter` spreads what failed together: see `BackOff`."""
        self.problem: str | None = None
        """Why something cannot be done now."""
        self._name = name
        self._handle = handle
        self._back_off = BackOff(_FIRST_PAUSE_SECONDS, longest_pause_seconds, jitter)
        self._clock = clock
        self._changed = threading.Condition()
        self._stopped = False
        self._due: dict[K, float] = {}
        # The same in order, also with entries that were brought forward and count no longer.
        self._order: list[tuple[float, int, K]] = []
        self._number = 0
        self._running: set[K] = set()
        self._failures: dict[K, int] = {}
        self._reported = LogOnce(most=_MOST_REPORTED)
        self.heartbeats = [Heartbeat(f"{name}, thread {index}", clock=clock) for index in range(workers)]
        self._threads = [
            threading.Thread(target=self._work, args=(heartbeat,), name=f"{name}-{index}", daemon=True)
            for index, heartbeat in enumerate(self.heartbeats)
        ]

    def add(self, key: K, after_seconds: float = 0.0) -> None:
        """Handle `key` then, or sooner where that is planned already."""
        with self._changed:
            self._plan(key, self._clock() + after_seconds)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, wait_seconds: float) -> None:
        """Begin no further key, and wait at most so long for those under way. May be repeated."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        end = monotonic() + wait_seconds
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, end - monotonic()))

    def run_due(self) -> int:
        """Handle in the calling thread all that is due now, and what becomes due by it. How many that were."""
        handled = 0
        with self._changed:
            key = self._next()
        while key is not None:
            self._handled(key)
            handled += 1
            with self._changed:
                key = self._next()
        return handled

    def _plan(self, key: K, due: float) -> None:
        planned = self._due.get(key)
        if planned is not None and (planned <= due or key in self._failures):
            return
        self._due[key] = due
        if key not in self._running:
            self._push(key, due)

    def _push(self, key: K, due: float) -> None:
        self._number += 1
        heappush(self._order, (due, self._number, key))
        self._changed.notify()

    def _next(self) -> K | None:
        """Take a key that is due, which is then being handled."""
        now = self._clock()
        while self._order and self._order[0][0] <= now:
            due, _, key = heappop(self._order)
            if self._due.get(key) == due and key not in self._running:
                del self._due[key]
                self._running.add(key)
                return key
        return None

    def _work(self, heartbeat: Heartbeat) -> None:
        while True:
            with self._changed:
                while not self._stopped and (key := self._next()) is None:
                    self._changed.wait(max(0.0, self._order[0][0] - self._clock()) if self._order else None)
                if self._stopped:
                    return
            assert key is not None
            with heartbeat.step(key):
                self._handled(key)

    def _handled(self, key: K) -> None:
        try:
            again = self._handle(key)
        except CagrpcError as error:
            self._failed(key, str(error))
        except Exception as error:  # noqa: BLE001 - logged, and tried again
            _log.exception("%s: %s failed unexpectedly; tried again", self._name, key)
            self._failed(key, f"{type(error).__name__}: {error}", logged=True)
        else:
            self._done(key, again)

    def _done(self, key: K, again: float | None) -> None:
        with self._changed:
            if self._failures.pop(key, None) and not self._failures:
                _log.info("%s: everything that had failed is done", self._name)
                self.problem = None
                self._reported.all_over()
            self._ended(key, again)

    def _failed(self, key: K, problem: str, *, logged: bool = False) -> None:
        with self._changed:
            if not logged and not self._stopped and self._reported.is_new(problem, about=problem):
                _log.warning("%s: tried again later: %s", self._name, problem)
            self.problem = problem
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            self._ended(key, self._back_off.seconds(failures))

    def _ended(self, key: K, again: float | None) -> None:
        self._running.discard(key)
        waiting = self._due.get(key)  # added while it was handled
        due = None if again is None else self._clock() + again
        if waiting is not None and (due is None or waiting <= due):
            self._push(key, waiting)
        elif due is not None:
            self._due[key] = due
            self._push(key, due)
