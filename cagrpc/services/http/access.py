"""Who may read and write pages: whoever is on this machine, whoever comes, nobody, or whom the cluster lets. Whom it
lets is asked in `readers`. Probes are not asked about."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol
from urllib.parse import urlsplit

from cagrpc.runtime.loopback import is_loopback
from cagrpc.services.http.site import HttpAnswer, text_answer


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request wants to do, in the terms of RBAC for non-resource URLs, and what it says of who it is."""

    verb: str
    """`get` or `put`."""
    path: str
    host: str = ""
    """The header Host."""
    authorization: str = ""
    """The header Authorization."""


class PageAccess(Protocol):
    """Decides about requests for pages."""

    async def refusal(self, asked: Asked) -> HttpAnswer | None:
        """Return the answer to a request that is refused; None where it may be served. Raises Unavailable where that
        cannot be said."""
        ...


class Anybody:
    """Whoever reaches the server."""

    async def refusal(self, asked: Asked) -> HttpAnswer | None:
        del asked
        return None


class ThisMachine:
    """Whoever reaches the server by a name of this machine. A page of another site that a browser here shows reaches it
    too, by a name of its own that is made to point here (DNS rebinding); the browser sends that name as Host."""

    async def refusal(self, asked: Asked) -> HttpAnswer | None:
        try:
            host = urlsplit(f"//{asked.host}").hostname
        except ValueError:
            host = asked.host
        if not asked.host or is_loopback(host or ""):  # only HTTP/1.0, which no browser speaks, has no Host
            return None
        return text_answer(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"this server is asked as {asked.host[:100]!r}, and it serves only this machine, as localhost; behind a"
            " proxy say http: {insecure: true}",
        )


class Nobody:
    """Without a cluster there is nobody to ask who a token is of."""

    async def refusal(self, asked: Asked) -> HttpAnswer | None:
        return text_answer(
            HTTPStatus.FORBIDDEN,
            f"{asked.path[:100]} is not served: who may read it is asked of a cluster, and there is none in the"
            " configuration (section kubernetes); a server that listens on a loopback address serves this machine, and"
            " http: {insecure: true} serves whoever comes",
        )
