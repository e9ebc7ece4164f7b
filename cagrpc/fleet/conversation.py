"""How the fleet waits for its backend: one thread at a time talks to it, how long it has been silent is known, and who
waits for a step does so for a limited time. What is said is `fleet`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from cagrpc.fleet.backend import Backend, BackendInstance, Order

Submit = Callable[[Callable[[], None]], object]
"""Runs work, by and by or at once, on whatever thread."""


class Conversation:
    """The backend with the lock that keeps conversations apart: its calls need `turn` to be held by the caller."""

    def __init__(self, backend: Backend, clock: Callable[[], float]) -> None:
        self.turn = threading.Lock()
        self._backend = backend
        self._clock = clock
        self._asked_at: float | None = None

    @property
    def silent_seconds(self) -> float:
        """For how long the call under way has had no answer; 0 where there is none."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else max(0.0, self._clock() - asked_at)

    def list_instances(self) -> tuple[BackendInstance, ...]:
        with self._asking():
            return tuple(self._backend.list_instances())

    def order(self, orders: Sequence[Order]) -> None:
        with self._asking():
            self._backend.order(orders)

    def delete(self, instance_ids: Sequence[str]) -> None:
        with self._asking():
            self._backend.delete(instance_ids)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        self._asked_at = self._clock()
        try:
            yield
        finally:
            self._asked_at = None


class Shared:
    """Work that many may ask for at once: it is done by a thread of its own, and whoever comes while it is under way
    waits for that, so that any number of callers hold one thread at most."""

    def __init__(self, work: Callable[[], None], submit: Submit) -> None:
        self._work = work
        self._submit = submit
        self._lock = threading.Lock()
        self._under_way: Future[None] | None = None

    def wait(self, seconds: float) -> None:
        """Raises `TimeoutError` where the work has not ended by then (it goes on), else what the work raised."""
        with self._lock:
            future, is_new = self._under_way, False
            if future is None or future.done():
                future, is_new = Future[None](), True
                self._under_way = future
        if is_new:
            self._submit(lambda: self._run(future))
        future.result(timeout=seconds)

    def _run(self, future: Future[None]) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - whoever waits is told
            future.set_exception(error)
        else:
            future.set_result(None)
