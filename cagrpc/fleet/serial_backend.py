"""How the fleet asks its backend and waits for it: one call at a time, the duration of the call under way, waiting for
a shared step with a timeout, and lists at the backend's pace and without flicker: an instance that a list lacks is kept
until it counts as gone. What is called and when is in `fleet` and `orders`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from cagrpc.fleet.backend import Backend, BackendInstance, Listing, Order, Pace
from cagrpc.fleet.model import InstanceState
from cagrpc.runtime.clock import EpochClock
from solver.model.quantities import pluralize

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
    """The backend, called by one thread at a time: callers hold `lock`. `beat` is called before each call."""

    def __init__(self, backend: Backend, clock: EpochClock, beat: Callable[[str], None]) -> None:
        self.lock = threading.Lock()
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
        self._beat(f"ordering {pluralize(len(order.wanted), 'instance')}")
        with self.pending.in_progress():
            self._backend.order(order)

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        self._beat(f"deleting {pluralize(len(instances), 'instance')}")
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


class DebouncedListing:
    """The last list, with the instances that lists have lacked for less than `Pace.absent_after_seconds`. Callers hold
    the backend's `lock`.

    Absence counts from the first list that lacks an instance to the last: between lists, however far apart, nothing is
    known.
    """

    def __init__(self, backend: SerialBackend, clock: EpochClock) -> None:
        self._backend = backend
        self._clock = clock
        self._last: Listing | None = None
        self.machines: Mapping[str, BackendInstance] = {}
        """Those of the last list by token, or by id where somebody else has made them and they have none. Unchanged
        ones are the same objects as before, and where all are, so is this: readers need to look at the others only."""
        self._lacking: dict[str, float] = {}
        """The time of the first list that lacked an instance that is kept, by token."""
        self._listed_at_seconds: deque[float] = deque()
        """The times of lists, of those that are at least `absent_after_seconds` old the newest only."""
        self._outdated = False
        self._found: tuple[BackendInstance, ...] = ()
        """The instances as the backend listed them last."""
        self._deleted: set[str] = set()
        """Tokens of those that it was asked to delete since."""

    @property
    def absent_from_seconds(self) -> float:
        """Return the time of the newest list that is at least `Pace.absent_after_seconds` older than the last: what
        none has had since is gone. -inf where this process has none."""
        return self._absent_from(self._backend.pace.absent_after_seconds)

    def current(self) -> Listing:
        """Return the list of now, or the last one where it is recent enough for the backend's pace. Raises
        `Unavailable`."""
        pace, last = self._backend.pace, self._last
        recent = last is not None and 0 <= self._clock() - last.as_of_seconds < pace.list_every_seconds
        if last is not None and recent and not self._outdated:
            return last
        found = self._backend.list_instances()
        self._outdated = False
        self._note_time(found.as_of_seconds)
        if last is None or found.instances is not self._found or self._lacking or self._deleted:
            machines = self._machines_of(found, gone_from=self._absent_from(pace.absent_after_seconds))
            if machines != self.machines or last is None:
                self.machines, last = machines, Listing(tuple(machines.values()), found.as_of_seconds)
        self._found = found.instances
        self._last = Listing(last.instances, found.as_of_seconds)
        return self._last

    def changed(self, deleted: Iterable[BackendInstance] = ()) -> None:
        """Note that the backend was asked to create or delete something: it is listed again at once, and nothing that
        it was asked to delete is kept."""
        self._outdated = True
        self._deleted.update(each.token or each.id for each in deleted)

    def _machines_of(self, found: Listing, *, gone_from: float) -> dict[str, BackendInstance]:
        """Return what is listed, and what is kept, which comes last."""
        before = self.machines
        machines: dict[str, BackendInstance] = {}
        for each in found.instances:
            key = each.token or each.id
            known = before.get(key)
            machines[key] = each if known is None or (known is not each and known != each) else known
        lacking: dict[str, float] = {}
        for token in before.keys() - machines.keys() - self._deleted:
            since = min(self._lacking.get(token, found.as_of_seconds), found.as_of_seconds)
            if before[token].state is not InstanceState.DELETING and since > gone_from:
                lacking[token] = since
        machines.update((token, before[token]) for token in before if token in lacking)
        self._lacking, self._deleted = lacking, set()
        return machines

    def _note_time(self, now: float) -> None:
        times = self._listed_at_seconds
        while times and times[-1] > now:  # the clock was set back
            times.pop()
        times.append(now)
        while len(times) > 1 and now - times[1] >= self._backend.pace.absent_after_seconds:
            times.popleft()

    def _absent_from(self, absent_after_seconds: float) -> float:
        times = self._listed_at_seconds
        old_enough = (at for at in reversed(times) if times[-1] - at >= absent_after_seconds)
        return next(old_enough, float("-inf"))
