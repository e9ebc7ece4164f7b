"""How the fleet waits for its backend and its journal: one thread at a time talks to the backend, how long either has
been silent is known, and who waits for a step does so for a limited time. What is said is `fleet`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from cagrpc.fleet.backend import Backend, BackendInstance, Order

Submit = Callable[[Callable[[], None]], object]
"""Runs work, by and by or at once, on whatever thread."""


_SILENCE_SECONDS = 5.0
"""A call that takes longer is told as a problem."""


class PendingCall:
    """For how long `who` has not answered the call under way."""

    def __init__(self, who: str, clock: Callable[[], float]) -> None:
        self._who = who
        self._clock = clock
        self._asked_at: float | None = None

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Around a call. One at a time."""
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
        """0 where no call is under way."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else max(0.0, self._clock() - asked_at)

    @property
    def problem(self) -> str | None:
        """That it is silent, where it is so for long."""
        return self.told() if self.seconds >= _SILENCE_SECONDS else None

    def told(self, at_least_seconds: float = 0.0) -> str:
        """In words, by one who has waited for it."""
        return f"{self._who} has not answered for {max(at_least_seconds, self.seconds):.3g} s"


class SerialBackend:
    """The backend with the lock that keeps conversations apart: its calls need `turn` to be held by the caller. `beat`
    is told of each call."""

    def __init__(self, backend: Backend, clock: Callable[[], float], beat: Callable[[str], None]) -> None:
        self.turn = threading.Lock()
        self.silence = PendingCall("the backend", clock)
        self._backend = backend
        self._beat = beat

    def list_instances(self) -> tuple[BackendInstance, ...]:
        self._beat("listing instances")
        with self.silence.asking():
            return tuple(self._backend.list_instances())

    def order(self, orders: Sequence[Order]) -> None:
        self._beat(f"ordering {len(orders)} instances")
        with self.silence.asking():
            self._backend.order(orders)

    def delete(self, instance_ids: Sequence[str]) -> None:
        self._beat(f"deleting {len(instance_ids)} instances")
        with self.silence.asking():
            self._backend.delete(instance_ids)


class SingleFlight:
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
