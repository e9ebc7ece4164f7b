"""Whether what goes on by itself does go on: since when a step is in the middle of the same thing.

A step goes on as long as it does something new: a request to the API server or a call of a backend that begins is
progress, however many of them there are and however slow the other side is. What does nothing new for its patience (a
call that hangs, two threads that wait for each other, an endless computation) is stuck.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cagrpc.runtime.clock import MonotonicClock, monotonic

PATIENCE_SECONDS = 300.0
"""Generous: every request has a timeout of its own, and who is wrongly taken for stuck costs a change of leaders."""


class Heartbeat:
    """The heartbeat of one loop or thread. `step` is for its thread, all else for any."""

    def __init__(
        self,
        name: str,
        patience_seconds: float = PATIENCE_SECONDS,
        clock: MonotonicClock = monotonic,
    ) -> None:
        """`name` is for people, such as "the planner loop"."""
        self.name = name
        self.failed_steps = 0
        self._patience = patience_seconds
        self._clock = clock
        self._finished_at = self._moved_at = clock()
        self._doing: object = None

    @contextmanager
    def step(self, doing: object = "its step") -> Iterator[None]:
        """Run a step in it. What calls `beat` in its course, also in the threads of `in_parallel`, is its progress."""
        self.beat(doing)
        token = _of_this_thread.set(self)
        try:
            yield
        finally:
            _of_this_thread.reset(token)
            self._doing = None
            self._finished_at = self._clock()

    def beat(self, doing: object) -> None:
        """Note that the step goes on, with this from now on."""
        self._moved_at = self._clock()
        self._doing = doing

    @property
    def seconds_since_step(self) -> float:
        """Return the seconds since the last step was finished, whether or not it failed, or else since the
        beginning."""
        return self._clock() - self._finished_at

    @property
    def doing(self) -> str:
        """Return what it is in the middle of, and for how long; empty between two steps."""
        doing = self._doing  # first: what is seen began at `_moved_at` or before
        return "" if doing is None else f"in the middle of {doing} for {self._clock() - self._moved_at:.0f} s"

    @property
    def problem(self) -> str:
        """Return that it is stuck, and at what; empty where it is not."""
        doing = self.doing
        stuck = doing and self._clock() - self._moved_at >= self._patience
        return f"{self.name} makes no progress: {doing}" if stuck else ""


_of_this_thread: ContextVar[Heartbeat | None] = ContextVar("heartbeat", default=None)


def beat(doing: object) -> None:
    """Note that the step that this thread is in the middle of, if it is in one, goes on with this."""
    heartbeat = _of_this_thread.get()
    if heartbeat is not None:
        heartbeat.beat(doing)
