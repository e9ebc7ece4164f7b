"""Runs what may take a while in threads beside the loop: few at once, so that the other threads of the process have
most of the time, and few waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

from cagrpc.errors import Unavailable

T = TypeVar("T")

TURN_SECONDS = 5.0
"""How long one waits for a turn."""


class BoundedThreads:
    """Threads of one kind of work, each of which takes a turn. Belongs to one loop."""

    def __init__(self, what: str, at_once: int, waiting: int) -> None:
        self._why_not = f"the limit of {at_once} {what} at once is reached; try again"
        self._free = asyncio.Semaphore(at_once)
        self._most = at_once + waiting
        self._admitted = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises. Raises Unavailable where there is no turn within a short
        wait. A turn ends with the work, even if nobody waits for its result any more."""
        if self._admitted >= self._most:
            raise Unavailable(self._why_not)
        self._admitted += 1
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            self._admitted -= 1
            raise Unavailable(self._why_not) from None
        except BaseException:
            self._admitted -= 1
            raise
        return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def finish(set_result: Callable[[Any], None], found: Any) -> None:
            self._free.release()
            self._admitted -= 1
            if not done.done():
                set_result(found)

        def run() -> None:
            set_result: Callable[[Any], None] = done.set_result
            found: Any
            try:
                found = work()
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                set_result, found = done.set_exception, error
            try:
                loop.call_soon_threadsafe(finish, set_result, found)
            except RuntimeError:
                return  # the loop has ended, and nobody waits

        try:
            Thread(target=run, name="http-page", daemon=True).start()
        except RuntimeError as error:
            finish(done.set_exception, Unavailable(f"no thread for it: {error}"))
        return await done
