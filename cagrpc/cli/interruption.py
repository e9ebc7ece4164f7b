"""Ctrl-C while a command plans: the first one ends planning, and the command prints the best plan so far; a second one
ends the command at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from solver.model.budget import Interruption

T = TypeVar("T")

EXIT_INTERRUPTED = 130
_TOLD = b"\ncagrpc: interrupted; the best plan so far follows, and Ctrl-C again ends at once\n"
_NO_PLAN = b"cagrpc: there is no plan yet\n"
_SHOW_CURSOR = b"\x1b[?25h"


def interruptible(work: Callable[[Interruption], T]) -> tuple[T, int]:
    """Return what `work` returns, whose planning ends by the interruption that it is given, and the exit code.

    The work has a thread of its own: Python tells of a signal only when its main thread is back from a solver.
    """
    from concurrent.futures import ThreadPoolExecutor

    from solver.model.budget import Interruption

    interruption = Interruption()

    def interrupt(*_: object) -> None:
        if interruption.happened:
            if os.isatty(2):
                os.write(2, _SHOW_CURSOR)  # which the progress on a terminal hides
            os._exit(EXIT_INTERRUPTED)
        interruption.interrupt()
        os.write(2, _TOLD)

    if threading.current_thread() is not threading.main_thread():  # which alone hears of signals
        return work(interruption), 0
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with ThreadPoolExecutor(1) as thread:
            result = thread.submit(work, interruption).result()
    except KeyboardInterrupt:  # raised by the work, which had not begun to plan
        os.write(2, _NO_PLAN)
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    return result, EXIT_INTERRUPTED if interruption.happened else 0
