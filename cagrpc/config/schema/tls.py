"""The section `tls`: where certificates are. Loading them is in `cagrpc.server.tls`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from cagrpc.forms import File, Form


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
        return TlsPaths(made / "server.crt", made / "server.key", made / "ca.crt", made, names)
