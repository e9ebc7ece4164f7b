"""A client of a server's HTTP pages."""

from __future__ import annotations

import http.client
import json
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cagrpc.config.schema.listen import parse_address
from cagrpc.errors import InvalidInput, Unavailable, reason_of

HTTP_SECONDS = 5.0
_NEXT = re.compile(r'<(/[^>]*)>; rel="next"')
_HTTPS = "https://"
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server's HTTP side is, and how to be let in."""

    text: str
    """`HOST:PORT` is plain, `https://HOST:PORT` has TLS."""
    authority: Path | None = None
    """Whose certificate the server must have, with TLS; None for those that this machine trusts."""
    token: str = ""
    """Sent with TLS only."""
    tunnelled: bool = False
    """Whether the address is one end of a tunnel that others vouch for: then the certificate is of another name, and
    without an authority it is not checked."""

    def connection(self) -> http.client.HTTPConnection:
        """Return a connection that is still to be opened. Raises InvalidInput."""
        where = parse_address(self.text.removeprefix(_HTTPS).removeprefix("http://").removesuffix("/"), "--http")
        if not self.text.startswith(_HTTPS):
            return http.client.HTTPConnection(where.host, where.port, timeout=HTTP_SECONDS)
        try:
            context = ssl.create_default_context(cafile=self.authority)
        except OSError as error:  # ssl.SSLError is one
            raise InvalidInput(f"{self.authority}: its certificates cannot be read: {reason_of(error)}") from error
        if self.tunnelled:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE if self.authority is None else ssl.CERT_REQUIRED
        return http.client.HTTPSConnection(where.host, where.port, timeout=HTTP_SECONDS, context=context)

    def headers(self) -> dict[str, str]:
        """Return those of a request."""
        return {"Authorization": f"Bearer {self.token}"} if self.token and self.text.startswith(_HTTPS) else {}

    def __str__(self) -> str:
        return self.text if "://" in self.text else f"http://{self.text}"


def get_json(server: ServerAddress, path: str) -> Any:
    """Return a page as JSON. Raises Unavailable where the server does not respond, or refuses."""
    return _page(server, path)[0]


def get_list(server: ServerAddress, path: str) -> list[Any]:
    """Return a list, oldest first, from all of its pages. Raises Unavailable where the server does not respond, or
    refuses."""
    found: list[Any] = []
    following = path
    while following:
        page, following = _page(server, following)
        found[:0] = page
    return found


def _page(server: ServerAddress, path: str) -> tuple[Any, str]:
    """Return a page and the path of the next one; empty where there is none."""
    connection = server.connection()
    try:
        connection.request("GET", path, headers=server.headers())
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != http.client.OK:
            why = body.decode(errors="replace").strip()[:_LONGEST_REASON]
            raise Unavailable(f"{server}{path} answers {answer.status} {answer.reason}{f': {why}' if why else ''}")
        following = _NEXT.fullmatch(answer.headers["Link"] or "")
        return json.loads(body), following[1] if following else ""
    except ssl.SSLCertVerificationError as error:
        raise Unavailable(
            f"{server}{path}: its certificate is not trusted ({error.verify_message}); --http-ca names the authority"
        ) from error
    except json.JSONDecodeError as error:
        raise Unavailable(
            f"{server}{path}: the answer is not JSON; is it the HTTP address of `cagrpc serve`?"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(f"{server}{path}: {reason_of(error)}; is `cagrpc serve` running?") from error
    finally:
        connection.close()
