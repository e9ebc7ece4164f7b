"""The section `http`: TLS of the HTTP side, and who may read it. Where it listens is in `listen`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from cagrpc.forms import FilePath, Form
from cagrpc.runtime.loopback import is_loopback


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """How the HTTP side is reached, and by whom."""

    insecure: bool | None = None
    """None: plain on a loopback address alone."""
    certificate: Path | None = None
    """With `key`; None for that of the gRPC servers."""
    key: Path | None = None
    audiences: tuple[str, ...] = ()
    """Of readers' tokens; empty for the API server's own."""

    def is_secured(self, host: str) -> bool:
        """Return whether it has TLS, and asks readers for a token, where it listens on `host`."""
        return not is_loopback(host) if self.insecure is None else not self.insecure


class Http(Form):
    """The HTTP side. On a loopback address it is plain and for whoever is on the machine; anywhere else it has TLS,
    probes are open, and the cluster is asked whether a reader's bearer token may read a page."""

    insecure: bool | None = None
    """`true`: plain, and for whoever reaches it, wherever it listens. `false`: TLS and tokens on a loopback address,
    too."""
    certificate: FilePath | None = None
    """With `key`. Default: that of `tls`."""
    key: FilePath | None = None
    audiences: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Whom readers' tokens must be made for. Default: the API server's own audience."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            found, absent = ("certificate", "key") if self.certificate else ("key", "certificate")
            raise ValueError(f"found {found} without {absent}")
        given = [name for name in ("certificate", "key", "audiences") if getattr(self, name)]
        if self.insecure and given:
            raise ValueError(f"found {' and '.join(given)} with insecure: true; plain HTTP has neither TLS nor tokens")
        return self

    def settings(self, directory: Path) -> HttpAccess:
        """Return the settings; paths are relative to `directory`."""
        certificate, key = (None if each is None else directory / each for each in (self.certificate, self.key))
        return HttpAccess(self.insecure, certificate, key, tuple(self.audiences))
