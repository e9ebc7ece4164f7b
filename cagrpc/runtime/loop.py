"""A step that is done again and again in a thread of its own, for as long as the server runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from cagrpc.errors import CagrpcError
from cagrpc.runtime.heartbeat import Heartbeat

log = logging.getLogger(__name__)


WOKEN_SECONDS = 0.02
"""What comes together is done together: at least so long between two steps, however often it is woken."""


class Loop:
    """`step` about every `every_seconds`. What it raises is logged (the same trouble once), and the next is tried; one
    that failed and has told so itself answers False. `heartbeat` says whether it goes on."""

    def __init__(
        self,
        name: str,
        step: Callable[[], object],
        every_seconds: float,
        *,
        first: Callable[[], object] = lambda: None,
        wake: threading.Event | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """`name` is told in the log: what is done, such as "the fleet's step". `first` is done before it, until it does
        not fail. `wake` is set by whoever has something for it to do now."""
        self.heartbeat = heartbeat or Heartbeat(name)
        self._name = name
        self._step = step
        self._first = first
        self._every_seconds = every_seconds
        self._stopping = threading.Event()
        self._wake = wake
        self._told: str | None = None
        # A daemon: a step that waits for what does not answer must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, wait_seconds: float) -> None:
        """No further step is begun; waits at most so long for the one under way. May be repeated."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(wait_seconds)

    def _run(self) -> None:
        step = self._first
        while True:
            if self._done(step):
                step = self._step
            if self._paused():
                return

    def _done(self, step: Callable[[], object]) -> bool:
        """Whether the step did not fail."""
        try:
            with self.heartbeat.step():
                well = step() is not False
            problem = None
        except CagrpcError as error:
            well, problem = False, str(error)
            if problem != self._told:  # once, not every second
                log.warning("%s cannot be done: %s", self._name, error)
        except Exception as error:
            well, problem = False, repr(error)
            if problem != self._told:
                log.exception("%s failed unexpectedly; the next one is tried", self._name)
        self._told = problem
        self.heartbeat.failed_steps += not well
        return well

    def _paused(self) -> bool:
        """Waits until the next step is to be done. Whether none is."""
        if self._wake is None:
            return self._stopping.wait(self._every_seconds)
        self._wake.wait(self._every_seconds)
        self._wake.clear()
        return self._stopping.wait(WOKEN_SECONDS)
