"""Ending several things that run by themselves, with one deadline for all of them: what hangs (an API server that does
not answer) costs the time once, not once for each."""

from __future__ import annotations

from collections.abc import Callable, Collection

from cagrpc.runtime.clock import monotonic

STOP_SECONDS = 3.0
"""How long the end of steps under way is waited for. Threads are daemons: what hangs longer ends with the process."""

Stop = Callable[[float], object]
"""Ask something to end, and wait at most so many seconds until it has. May be called again."""


def stop_all(stops: Collection[Stop], wait_seconds: float) -> None:
    """Ask all to end, in their order, before any is waited for."""
    end = monotonic() + wait_seconds
    for stop in stops:
        stop(0.0)
    for stop in stops:
        stop(max(0.0, end - monotonic()))
