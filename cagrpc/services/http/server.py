"""The HTTP server: its sockets, and the thread with the loop that serves them, uvicorn's HTTP/1.1: how many
connections, for how long, with which certificate. What is answered is `application`'s."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from cagrpc.errors import InvalidInput, Unavailable, in_words, reason_of
from cagrpc.runtime.loopback import is_loopback
from cagrpc.services.http.access import Anybody, PageAccess
from cagrpc.services.http.application import Application, Observe
from cagrpc.services.http.site import Site
from cagrpc.services.tls import LiveTls, TlsMaterial

log = logging.getLogger(__name__)

_LARGEST_HEADERS_BYTES = 32 * 1024
_REQUEST_SECONDS = 10.0  # until the first request's headers are there, TLS handshake included; and idle between two
_LONGEST_SECONDS = 30.0  # of a request, whatever its client does; a stream goes on while its client takes it
_MOST_CONNECTIONS = 64
_TICK_SECONDS = 1.0
_STOP_SECONDS = 1
_NO_SOCKET_SECONDS = 0.1

_BACKLOG = 128


class _Protocol(H11Protocol):
    """A connection with deadlines, which uvicorn has between requests only."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn does
        super().connection_made(transport)
        self.lost: asyncio.Future[None] = self.loop.create_future()
        self._within(_REQUEST_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()
        if not self.lost.done():
            self.lost.set_result(None)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._within(_LONGEST_SECONDS)

    def on_response_complete(self) -> None:
        self._within(_LONGEST_SECONDS)  # it may not be read yet
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, saying why: it is called where h11's error is caught."""
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            body = f"{error or msg}\n".encode(errors="backslashreplace")
            headers = [
                ("content-type", "text/plain; charset=utf-8"),
                ("content-length", str(len(body))),
                ("x-content-type-options", "nosniff"),
                ("connection", "close"),
            ]
            for event in (h11.Response(status_code=status, headers=headers), h11.Data(body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _within(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._end)

    def _end(self) -> None:
        """End the connection, unless its client takes what is sent to it, piece by piece."""
        streams = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if streams and not self.flow.write_paused:
            self._within(_LONGEST_SECONDS)
        else:
            self.transport.abort()


class Listener(uvicorn.Server):
    """Serves one listening socket. Closes the oldest connection when there is one too many, so that probes are answered
    however many stay open: also those that never end their TLS handshake, which uvicorn does not see."""

    def __init__(self, application: ASGIApp, listening: socket.socket, tls: LiveTls | None) -> None:
        """`tls=None` is plain. Raises InvalidInput where its certificate cannot be used."""
        config = uvicorn.Config(
            application,
            http=_Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",  # it would warn of every stranger's malformed request
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(_REQUEST_SECONDS),
            timeout_graceful_shutdown=_STOP_SECONDS,
            h11_max_incomplete_event_size=_LARGEST_HEADERS_BYTES,
        )
        super().__init__(config)
        self._listening = listening
        self._contexts = _Contexts(tls) if tls is not None else None
        self._open: dict[asyncio.Task[None], None] = {}  # oldest first
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Accept nothing more, and end. Called by any thread."""
        self.should_exit = True
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._stopping.set)
            except RuntimeError:
                return  # it has ended

    async def startup(self, sockets: Any = None) -> None:
        del sockets
        self._loop = asyncio.get_running_loop()
        self.servers: list[asyncio.base_events.Server] = []
        self._accepting = self._loop.create_task(self._accept())
        self.started = True

    async def main_loop(self) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        while not await self.on_tick(0):
            await asyncio.wait({stopping, self._accepting}, timeout=_TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if self._accepting.done():
                self._accepting.result()
        stopping.cancel()

    async def shutdown(self, sockets: Any = None) -> None:
        # First: asyncio would accept a connection that has just come for the cancelled future, and fail.
        asyncio.get_running_loop().remove_reader(self._listening)
        self._accepting.cancel()
        await super().shutdown(sockets)
        for each in self._open:
            each.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as error:  # there are too many open files
                log.warning("no connection can be accepted: %s", in_words(error))
                await asyncio.sleep(_NO_SOCKET_SECONDS)
                continue
            if len(self._open) >= _MOST_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                oldest.cancel()
            task = loop.create_task(self._serve_one(accepted))
            self._open[task] = None
            task.add_done_callback(lambda ended: self._open.pop(ended, None))
            await asyncio.sleep(0)  # it begins, and closes the socket even if it is cancelled

    async def _serve_one(self, accepted: socket.socket) -> None:
        """Serve a connection until it is closed, or this is cancelled."""
        context = self._contexts.now() if self._contexts is not None else None
        loop = asyncio.get_running_loop()
        try:
            transport, protocol = await loop.connect_accepted_socket(
                lambda: _Protocol(self.config, self.server_state, {}, loop),
                accepted,
                ssl=context,
                ssl_handshake_timeout=_REQUEST_SECONDS if context is not None else None,
                ssl_shutdown_timeout=_STOP_SECONDS if context is not None else None,
            )
        except OSError:
            log.debug("a connection without a TLS handshake", exc_info=True)
            accepted.close()
            return
        except asyncio.CancelledError:
            accepted.close()
            raise
        try:
            await protocol.lost
        finally:
            transport.abort()


class _Contexts:
    """Contexts of the certificates in use: a connection has the one of when it was accepted."""

    def __init__(self, tls: LiveTls) -> None:
        """Raises InvalidInput where OpenSSL refuses the certificate."""
        self._tls = tls
        self._made = tls.now
        self._context = _context(self._made)

    def now(self) -> ssl.SSLContext:
        if self._tls.now is not self._made:
            self._made = self._tls.now
            try:
                self._context = _context(self._made)
            except InvalidInput as error:
                log.error("http: %s; the one before stays", error)  # noqa: TRY400 - the reason is in it
        return self._context


def _context(tls: TlsMaterial) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        with _file(tls.certificate + b"\n" + tls.key) as path:
            context.load_cert_chain(path)
    except ssl.SSLError as error:
        raise InvalidInput(f"its certificate and key cannot be used for TLS: {error}") from error
    return context


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """Yield a path to read `content` at, which is all that OpenSSL's binding takes: in memory where there is such a
    file system, since it holds a key."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("tls"), "wb", buffering=0) as memory:
            memory.write(content)
            yield f"/proc/self/fd/{memory.fileno()}"
    else:
        with tempfile.NamedTemporaryFile(buffering=0) as file:
            file.write(content)
            yield file.name


class HttpServer:
    """A `Site` on a socket, for those that `access` lets."""

    def __init__(
        self,
        host: str,
        port: int,
        site: Site,
        access: PageAccess | None = None,
        tls: LiveTls | None = None,
        observe: Observe = lambda *_: None,
    ) -> None:
        """Listen; `port` 0 is any free one. By default whoever comes is served, and plain. Raises Unavailable where the
        address cannot be bound, and InvalidInput where the certificate cannot be used. `observe` is told of every
        answered request."""
        hsts = tls is not None and not is_loopback(host)
        self._application = Application(site, access or Anybody(), hsts=hsts, observe=observe)
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            both = host == "::" and socket.has_dualstack_ipv6()  # as gRPC has it
            self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        except OSError as error:
            raise Unavailable(f"cannot listen on {host}:{port}: {reason_of(error)}") from error
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        try:
            self._listener = Listener(self._application, self._socket, tls)
        except BaseException:
            self._socket.close()
            raise
        self._thread = Thread(target=lambda: asyncio.run(self._listener.serve()), name="http")

    def start(self) -> None:
        """Accept connections from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Accept no more connections, give running requests a moment, and close the socket."""
        self._application.end_streams()
        if self._thread.is_alive():
            self._listener.stop()
            self._thread.join()
        self._socket.close()
