"""The section `http`: TLS of the HTTP side, and who may read it. Where it listens is in `listen`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from cagrpc.forms import File, Section
from cagrpc.runtime.loopback import is_loopback


@dataclass(frozen=True, slots=True)
class HttpAccess(Section):
    """The HTTP side. On a loopback address it is plain and for whoever is on the machine; anywhere else it has TLS,
    probes are open, and the cluster is asked whether a reader's bearer token may read a page."""

    insecure: bool | None = None
    """With `true` it is plain and open to whoever reaches it, wherever it listens. With `false` it has TLS and asks for
    tokens on a loopback address, too."""
    certificate: File | None = None
    """The file of the certificate; `key` goes with it. The default is the certificate of `tls`."""
    key: File | None = None
    audiences: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """The audiences that readers' tokens must be made for. The default is the API server's own audience."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            found, absent = ("certificate", "key") if self.certificate else ("key", "certificate")
            raise ValueError(f"found {found} without {absent}")
        given = [name for name in ("certificate", "key", "audiences") if getattr(self, name)]
        if self.insecure and given:
            raise ValueError(f"found {' and '.join(given)} with insecure: true; plain HTTP has neither TLS nor tokens")

    def is_secured(self, host: str) -> bool:
        """Return whether it has TLS, and asks readers for a token, where it listens on `host`."""
        return not is_loopback(host) if self.insecure is None else not self.insecure
