"""The sections `listen`, `tls` and `http`: where a server listens, with which certificates, and who may read its HTTP
side; and addresses in flags. Loading certificates is in `cagrpc.server.tls`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from cagrpc.errors import InvalidInput, shown
from cagrpc.forms import File, Form, Section, Text
from cagrpc.runtime.loopback import is_loopback

_PORTS = 65_536


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens; port 0 takes a free one."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the address in `host:port` or `[::1]:port`. Raises ValueError."""
        host, _, port = text.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not bare or re.search(r"[\s/\[\]]", bare) or (":" in bare and bare == host):
            raise ValueError(f'found {shown(text)}, expected host:port, such as "127.0.0.1:8086" or "[::1]:8086"')
        if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) >= _PORTS:
            raise ValueError(f"found {shown(text)}, expected a port from 0 to {_PORTS - 1} after the last colon")
        return cls(bare, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, flag: str = "address") -> Address:
    """Return the address of a flag. Raises InvalidInput, which names it."""
    try:
        return Address.of(text)
    except ValueError as error:
        raise InvalidInput(f"{flag}: {error}") from error


_Address = Annotated[Address, Text(Address.of)]


class Listen(Form):
    """Where each server listens, `host:port`; port 0 takes a free one."""

    provider: _Address = Field(default="127.0.0.1:8086", validate_default=True)
    """The address of externalgrpc.CloudProvider, which has mutual TLS."""
    expander: _Address = Field(default="127.0.0.1:8087", validate_default=True)
    """The address of grpcplugin.Expander, which has TLS without client certificates, as CA requires."""
    http: _Address = Field(default="127.0.0.1:8088", validate_default=True)
    """The address of health, metrics and decisions: plain HTTP on a loopback address, and otherwise as `http` says."""


@dataclass(frozen=True, slots=True)
class TlsPaths:
    """The files of the servers' certificate, its key, and the authority of CA's client certificate. They may not exist
    yet: a server may be about to make them."""

    certificate: Path
    key: Path
    client_ca: Path
    directory: Path | None = None
    """Set where they are in a directory of `cagrpc certs`."""
    client_names: tuple[str, ...] = ()
    """Names of the client certificates that the provider accepts; empty for any of the authority's."""

    @classmethod
    def made_in(cls, directory: Path, client_names: tuple[str, ...] = ()) -> TlsPaths:
        """Return those that `cagrpc certs` makes there."""
        return cls(directory / "server.crt", directory / "server.key", directory / "ca.crt", directory, client_names)


class Tls(Form):
    """One of: a directory as `cagrpc certs` makes it, three files, or `insecure: true`."""

    directory: File | None = None
    """The directory that has server.crt, server.key and ca.crt. The default is `certs` in the state directory."""
    certificate: File | None = None
    key: File | None = None
    client_ca: File | None = None
    """The authority that must have signed CA's client certificate."""
    client_names: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Whose certificates the provider accepts, by common name, DNS name or URI. The default is whoever client_ca has
    signed one for."""
    insecure: bool = False
    """Whether the servers are plaintext, which is for tests: CA's expander client always wants TLS."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        own = {name: getattr(self, name) for name in ("certificate", "key", "client_ca")}
        given = [name for name, value in own.items() if value is not None]
        if sum((bool(self.directory), bool(given), self.insecure)) > 1:
            raise ValueError("expected one of directory, certificate with key and client_ca, or insecure: true")
        if given and len(given) < len(own):
            absent = " and ".join(name for name in own if name not in given)
            raise ValueError(f"found {' and '.join(given)} without {absent}")
        if self.client_names and self.insecure:
            raise ValueError("found client_names with insecure: true; without TLS clients have no names")
        return self

    def paths(self, state: Path) -> TlsPaths | None:
        """Return the files, by default those in `certs` of the state directory; None with `insecure: true`."""
        if self.insecure:
            return None
        names = tuple(self.client_names)
        if self.certificate and self.key and self.client_ca:
            return TlsPaths(self.certificate, self.key, self.client_ca, client_names=names)
        made = self.directory or state / "certs"
        return TlsPaths.made_in(made, names)


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
