"""The records in force, in memory, with the journal behind them. Written ahead: a change is in the journal before it is
in memory, and before anything is asked of a backend. Each change is logged, and added to the increment's trace.

The records are an immutable value that is replaced, so readers need no lock. Writers hold `changing` from the decision
to the end of the commit, which may take long with a slow journal; outside callers wait for it with a timeout.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from cagrpc import errors
from cagrpc.fleet.journal import Journal
from cagrpc.fleet.model import Phase
from cagrpc.fleet.records import Changes, IncrementRecord
from cagrpc.fleet.serial_backend import PendingCall
from cagrpc.runtime import tracing
from cagrpc.runtime.clock import EpochClock

_log = logging.getLogger(__name__)

WAITING = "waiting"

_PROBE_SECONDS = 10.0
"""So long after the last write, and at once after a failed one, the journal is probed."""
Moved = Callable[[IncrementRecord, float], None]
"""Called with an increment that has reached another phase, and the seconds since its creation."""


class IncrementSpans:
    """Traces increments from phase to phase. Not for several threads."""

    def __init__(self, since_seconds: float) -> None:
        """`since_seconds` is when this process began to watch increments."""
        self._since_seconds = since_seconds
        self._entered: dict[str, float] = {}
        """When each increment in flight entered its phase, where this process saw it."""

    def moved(self, before: IncrementRecord | None, after: IncrementRecord, now: float) -> None:
        """Add to the trace what is over with this change."""
        if not tracing.on():
            return
        subject = tracing.increment(after.id)
        if before is None:
            waiting_since = after.increment.waiting_since_seconds
            if waiting_since is not None:
                self._add(subject, WAITING, waiting_since, after.created_at_seconds)
        elif before.phase is not after.phase:
            seen_at = self._entered.get(after.id)
            began_at = self._entered_before(before) if seen_at is None else seen_at
            self._add(subject, before.phase.value, began_at, now, taken_over=seen_at is None)
        if after.phase.in_flight:
            self._entered[after.id] = now
        else:
            self._entered.pop(after.id, None)
            tracing.past(_whole(subject, after, now))

    def _entered_before(self, record: IncrementRecord) -> float:
        """Return when an increment entered its phase in another process, as far as the journal has it."""
        match record.phase:
            case Phase.PLANNED:
                return record.created_at_seconds
            case Phase.CREATING:
                return record.ordered_at_seconds or record.created_at_seconds
            case Phase.ROLLING_BACK if record.failed_at_seconds is not None:
                return record.failed_at_seconds
        return self._since_seconds

    def _add(
        self, subject: tracing.Subject, name: str, began_at: float, ended_at: float, *, taken_over: bool = False
    ) -> None:
        attributes = {**subject.attributes, **({"cagrpc.taken_over": True} if taken_over else {})}
        tracing.past(tracing.Past(subject, name, began_at, ended_at, attributes))


def _whole(subject: tracing.Subject, record: IncrementRecord, now: float) -> tracing.Past:
    """Return the span of all of an increment that is over, with a link to the round that planned it."""
    asked = record.increment
    plan = tracing.plan(asked.plan) if asked.plan else None
    attributes: dict[str, tracing.Value] = {
        **subject.attributes,
        **(plan.attributes if plan is not None else {}),
        "cagrpc.phase": record.phase.value,
        "cagrpc.origin": asked.origin.value,
        "cagrpc.node_groups": ", ".join(f"{group}+{delta}" for group, delta in asked.deltas.items())[:1000],
        "cagrpc.nodes": sum(asked.deltas.values()),
        "cagrpc.pods": len(asked.pods),
        "cagrpc.reason": asked.reason[:1000],
    }
    began_at = asked.waiting_since_seconds or record.created_at_seconds
    links = () if plan is None else (plan,)
    # One that was withdrawn has no short groups, and is no failure.
    error = record.message if record.short_groups else ""
    return tracing.Past(subject, subject.kind, min(began_at, record.created_at_seconds), now, attributes, links, error)


class Ledger:
    """One writer at a time, in this process and (ensured by the journal) in all. Raises what `Journal.read` raises."""

    def __init__(self, journal: Journal, clock: EpochClock, moved: Moved = lambda *_: None) -> None:
        """`moved` is told of each increment that has reached another phase; it must be quick."""
        self.contents = journal.read()
        self.pending = PendingCall("the journal", clock)
        self._journal = journal
        self._clock = clock
        self._moved = moved
        self._lock = threading.RLock()
        self._problem: str | None = None
        self._closed = False
        self._written_at = float("-inf")
        self._spans = IncrementSpans(clock())

    @property
    def problem(self) -> str | None:
        """Why the journal cannot be written, or that it does not answer; None if neither."""
        return self._problem or self.pending.problem

    @contextmanager
    def changing(self, *, wait_seconds: float = -1.0) -> Iterator[None]:
        """Lock the records for a change; reentrant. With `wait_seconds` raise `Unavailable`, with nothing changed,
        where another writer has not finished by then."""
        if not self._lock.acquire(timeout=wait_seconds):
            raise errors.Unavailable(self.pending.describe(wait_seconds))
        try:
            yield
        finally:
            self._lock.release()

    def commit(self, changes: Changes) -> None:
        """Write the changes, inside `changing`. Raises `Unavailable` with nothing changed."""
        if not changes:
            return
        self._write(partial(self._journal.commit, changes))
        before = self.contents.increments
        self.contents = self.contents.after(changes)
        for record in changes.increments:
            if record.id not in before or before[record.id].phase is not record.phase:
                # A withdrawn increment has no short groups, and is no failure.
                failed = record.phase is Phase.ROLLING_BACK and record.short_groups
                level = logging.WARNING if failed else logging.INFO
                deltas = ", ".join(f"{group}+{delta}" for group, delta in record.increment.deltas.items())
                message = f": {record.message}" if record.message else ""
                about = {"increment": record.id, **({"plan": record.increment.plan} if record.increment.plan else {})}
                _log.log(level, "increment %s (%s) is %s%s", record.id, deltas, record.phase, message, extra=about)
                self._spans.moved(before.get(record.id), record, self._clock())
                self._moved(record, max(0.0, self._clock() - record.created_at_seconds))

    def probe(self, *, only_when_due: bool = False) -> None:
        """Verify that the journal takes writes. Raises `Unavailable`."""
        if only_when_due and self._problem is None and 0 <= self._clock() - self._written_at < _PROBE_SECONDS:
            return
        self._write(self._journal.probe)

    def check_open(self) -> None:
        """Raise `Unavailable` after `close`."""
        if self._closed:
            raise errors.Unavailable("the journal is closed")

    def check(self) -> None:
        """Raise `Unavailable` after `close`, where the last write failed, and where another process may lead by now.
        Call it immediately before each call that changes something in the backend."""
        self.check_open()
        if self._problem is not None:
            raise errors.Unavailable(self._problem)
        self._journal.check()

    def close(self) -> None:
        """Release the journal to the next writer. Idempotent."""
        self._closed = True
        with self._lock:
            self._journal.close()

    def _write(self, write: Callable[[], None]) -> None:
        try:
            with self.pending.in_progress():
                write()
        except errors.Unavailable as error:
            self._problem = str(error)
            raise
        self._problem = None
        self._written_at = self._clock()
