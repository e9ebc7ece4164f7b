"""The section `listen`, and addresses in flags."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field

from cagrpc.errors import InvalidInput
from cagrpc.forms import Form, Text, shown

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


def parse_address(text: str) -> Address:
    """Return the address of a flag. Raises InvalidInput."""
    try:
        return Address.of(text)
    except ValueError as error:
        raise InvalidInput(f"address: {error}") from error


_Address = Annotated[Address, Text(Address.of)]


class Listen(Form):
    """Where each server listens, `host:port`; port 0 takes a free one."""

    provider: _Address = Field(default="127.0.0.1:8086", validate_default=True)
    """The address of externalgrpc.CloudProvider, which has mutual TLS."""
    expander: _Address = Field(default="127.0.0.1:8087", validate_default=True)
    """The address of grpcplugin.Expander, which has TLS without client certificates, as CA requires."""
    http: _Address = Field(default="127.0.0.1:8088", validate_default=True)
    """The address of health, metrics and decisions: plain HTTP on a loopback address, and otherwise as `http` says."""
