"""Whether only this machine reaches an address."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether an address, or a name, is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"
