"""The records in force with the journal behind them. First the journal, then our own memory: what the journal has not
taken has not happened, and nothing is asked of a backend before it is known that the journal takes it.

The records are an immutable value that is replaced, so whoever only reads needs no lock. Whoever changes them holds
`changing` from the decision to the end of the commit; that may be long where the journal is slow, so callers from
outside say how long they wait for it.
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
from cagrpc.fleet.records import Changes
from cagrpc.fleet.serial_backend import PendingCall

_log = logging.getLogger(__name__)

_PROBE_SECONDS = 10.0
"""So long after its last write, and at once after a failed one, the journal is tried, whether or not there is news."""


class Ledger:
    """One writer at a time, of this process and (the journal sees to it) of all. Raises what `Journal.read` raises."""

    def __init__(self, journal: Journal, clock: Callable[[], float]) -> None:
        self.contents = journal.read()
        self.silence = PendingCall("the journal", clock)
        self._journal = journal
        self._clock = clock
        self._lock = threading.RLock()
        self._problem: str | None = None
        self._closed = False
        self._written_at = float("-inf")

    @property
    def problem(self) -> str | None:
        """Why the journal cannot be written, or that it does not answer; None where all is well."""
        return self._problem or self.silence.problem

    @contextmanager
    def changing(self, *, wait_seconds: float = -1.0) -> Iterator[None]:
        """Keeps others from changing anything. May be nested. With `wait_seconds` it raises `Unavailable` where the
        write of another has not ended by then, with nothing changed."""
        if not self._lock.acquire(timeout=wait_seconds):
            raise errors.Unavailable(self.silence.told(wait_seconds))
        try:
            yield
        finally:
            self._lock.release()

    def commit(self, changes: Changes) -> None:
        """Call it in `changing`. Raises `Unavailable` with nothing changed."""
        if not changes:
            return
        self._write(partial(self._journal.commit, changes))
        before = self.contents.increments
        self.contents = self.contents.after(changes)
        for record in changes.increments:
            if record.id not in before or before[record.id].phase is not record.phase:
                # What was withdrawn has no short groups, and is nobody's trouble.
                trouble = record.phase is Phase.ROLLING_BACK and record.short_groups
                level = logging.WARNING if trouble else logging.INFO
                deltas = ", ".join(f"{group}+{delta}" for group, delta in record.increment.deltas.items())
                _log.log(level, "increment %s (%s) is %s %s", record.id, deltas, record.phase, record.message)

    def probe(self, *, only_when_due: bool = False) -> None:
        """Makes sure that the journal takes writes. Raises `Unavailable`."""
        if only_when_due and self._problem is None and 0 <= self._clock() - self._written_at < _PROBE_SECONDS:
            return
        self._write(self._journal.probe)

    def check_open(self) -> None:
        """Raises `Unavailable` after `close`."""
        if self._closed:
            raise errors.Unavailable("the journal is closed")

    def check(self) -> None:
        """Raises `Unavailable` after `close`, where the last write failed, and where another may write by now: a
        backend is asked for nothing then. To be asked immediately before each call that changes something there."""
        self.check_open()
        if self._problem is not None:
            raise errors.Unavailable(self._problem)
        self._journal.check()

    def close(self) -> None:
        """Lets the next writer in. May be repeated."""
        self._closed = True
        with self._lock:
            self._journal.close()

    def _write(self, write: Callable[[], None]) -> None:
        try:
            with self.silence.asking():
                write()
        except errors.Unavailable as error:
            self._problem = str(error)
            raise
        self._problem = None
        self._written_at = self._clock()
