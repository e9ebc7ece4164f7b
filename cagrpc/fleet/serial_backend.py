"""How the fleet waits for its backend and its journal: one backend call at a time, the duration of the call under way,
and waiting for a shared step with a timeout. What is called and when is in `fleet` and `orders`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from cagrpc.fleet.backend import Backend, BackendInstance, Listing, Order, Pace
from cagrpc.runtime.clock import EpochClock

Submit = Callable[[Callable[[], None]], object]
"""Runs work, now or later, on any thread."""

_SLOW_SECONDS = 5.0
"""A call that takes longer is reported as a problem."""


class PendingCall:
    """The call to `who` that is under way, and for how long."""

    def __init__(self, who: str, clock: EpochClock) -> None:
        self._who = who
        self._clock = clock
        self._asked_at: float | None = None

    @contextmanager
    def in_progress(self) -> Iterator[None]:
        """Wrap one call; one at a time."""
        self._asked_at = self._clock()
        try:
            yield
        finally:
            self._asked_at = None

    @property
    def under_way(self) -> bool:
        return self._asked_at is not None

    @property
    def seconds(self) -> float:
        """Duration of the call under way; 0 where there is none."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else max(0.0, self._clock() - asked_at)

    @property
    def problem(self) -> str | None:
        """That there is no answer, once the call takes long; else None."""
        return self.describe() if self.seconds >= _SLOW_SECONDS else None

    def describe(self, at_least_seconds: float = 0.0) -> str:
        """Return the message for a caller that has waited at least so long."""
        return f"{self._who} has not answered for {max(at_least_seconds, self.seconds):.3g} s"


class SerialBackend:
    """The backend, called by one thread at a time: callers hold `turn`. `beat` is called before each call."""

    def __init__(self, backend: Backend, clock: EpochClock, beat: Callable[[str], None]) -> None:
        self.turn = threading.Lock()
        self.pending = PendingCall("the backend", clock)
        self._backend = backend
        self._beat = beat

    @property
    def pace(self) -> Pace:
        return self._backend.pace

    @property
    def problem(self) -> str | None:
        """Why the backend creates nothing though it answers."""
        return self._backend.problem

    def list_instances(self) -> Listing:
        self._beat("listing instances")
        with self.pending.in_progress():
            return self._backend.list_instances()

    def order(self, order: Order) -> None:
        self._beat(f"ordering {len(order.wanted)} instances")
        with self.pending.in_progress():
            self._backend.order(order)

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        self._beat(f"deleting {len(instances)} instances")
        with self.pending.in_progress():
            self._backend.delete(instances)


class SingleFlight:
    """Work that many callers may wait for at once: it runs on one thread, and a caller that comes while it is under way
    joins it."""

    def __init__(self, work: Callable[[], None], submit: Submit) -> None:
        self._work = work
        self._submit = submit
        self._lock = threading.Lock()
        self._under_way: Future[None] | None = None

    def wait(self, seconds: float) -> None:
        """Wait for the work. Raise `TimeoutError` where it has not ended by then (it goes on), else what it raised."""
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
        except BaseException as error:  # noqa: BLE001 - raised to every waiter
            future.set_exception(error)
        else:
            future.set_result(None)
