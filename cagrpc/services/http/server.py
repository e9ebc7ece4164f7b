"""The HTTP server: a listening socket, and the thread with the loop that serves it."""

from __future__ import annotations

import asyncio
import socket
from threading import Thread

from cagrpc.errors import Unavailable
from cagrpc.runtime.loopback import is_loopback
from cagrpc.services.http.access import Anybody, PageAccess
from cagrpc.services.http.application import Application, Observe
from cagrpc.services.http.listener import Listener
from cagrpc.services.http.site import Site
from cagrpc.services.tls import LiveTls

_BACKLOG = 128


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
            raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
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
