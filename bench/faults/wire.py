"""The connection between one process and the API server: as it is, slow, or dead."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

_CHUNK = 64 * 1024


class Wire:
    """Passes TCP connections on to a port of this machine, in a thread of its own."""

    def __init__(self, target_port: int) -> None:
        self.delay_seconds = 0.0
        """Of each piece of data, in both directions."""
        self._passes = asyncio.Event()
        self._passes.set()
        self._target_port = target_port
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="wire", daemon=True)
        self._thread.start()
        started.wait()

    def cut(self) -> None:
        """Break all connections. New ones are let through."""
        self._loop.call_soon_threadsafe(self._abort)

    def die(self) -> None:
        """Let nothing through any more, and tell nobody."""
        self._loop.call_soon_threadsafe(self._passes.clear)

    def heal(self) -> None:
        self.delay_seconds = 0.0
        self._loop.call_soon_threadsafe(self._passes.set)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = int(server.sockets[0].getsockname()[1])
        started.set()
        self._loop.run_forever()
        server.close()
        self._passes.set()
        self._abort()
        self._loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(self._loop), return_exceptions=True))
        self._loop.close()

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            theirs, onward = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, onward}
        try:
            await asyncio.gather(self._pass(reader, onward), self._pass(theirs, writer))
        finally:
            for each in (writer, onward):
                each.transport.abort()
                self._writers.discard(each)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
