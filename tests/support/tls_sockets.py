"""Before 3.11.8 and 3.12.2 Python leaves a TLS socket to the garbage collector when the connection is reset before the
handshake begins (python/cpython#113280), which fails a test in which a server restarts."""

from __future__ import annotations

import ssl
import sys

_LEFT_OPEN = sys.version_info < (3, 11, 8) or (3, 12) <= sys.version_info < (3, 12, 2)


class _ClosedWhenReset(ssl.SSLSocket):
    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """The constructor reads in this way, and only to find out about the reset."""
        try:
            return super().recv(buflen, flags)
        except ConnectionError:
            self.close()
            raise


def close_tls_sockets_that_are_reset() -> None:
    if _LEFT_OPEN:
        ssl.SSLContext.sslsocket_class = _ClosedWhenReset
