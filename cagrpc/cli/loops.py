"""A step that is done again and again in a thread of its own, for as long as the server runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from cagrpc.errors import CagrpcError

log = logging.getLogger(__name__)


WOKEN_SECONDS = 0.02
"""What comes together is done together: at least so long between two steps, however often it is woken."""


class Loop:
    """`step` about every `every_seconds`. What it raises is logged (the same trouble once), and the next is tried."""

    def __init__(
        self,
        name: str,
        step: Callable[[], object],
        every_seconds: float,
        *,
        first: Callable[[], object] | None = None,
        wake: threading.Event | None = None,
    ) -> None:
        """`name` is told in the log: what is done, such as "the fleet's step". `first` is done once before it. `wake`
        is set by whoever has something for it to do now."""
        self._name = name
        self._step = step
        self._first = first
        self._every_seconds = every_seconds
        self._stopping = threading.Event()
        self._wake = wake
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
        if self._first is not None:
            self._first()
        last_problem: str | None = None
        while not self._paused():
            try:
                self._step()
                last_problem = None
            except CagrpcError as error:
                if str(error) != last_problem:  # once, not every second
                    log.warning("%s cannot be done: %s", self._name, error)
                last_problem = str(error)
            except Exception as error:
                if repr(error) != last_problem:
                    log.exception("%s failed unexpectedly; the next one is tried", self._name)
                last_problem = repr(error)

    def _paused(self) -> bool:
        """Waits until the next step is to be done. Whether none is."""
        if self._wake is None:
            return self._stopping.wait(self._every_seconds)
        self._wake.wait(self._every_seconds)
        self._wake.clear()
        return self._stopping.wait(WOKEN_SECONDS)
