"""A client of a server's HTTP pages."""

from __future__ import annotations

import http.client
import json
import re
from typing import Any

from cagrpc.config.schema.listen import parse_address
from cagrpc.errors import Unavailable

HTTP_SECONDS = 5.0
_NEXT = re.compile(r'<(/[^>]*)>; rel="next"')


def get_json(address: str, path: str) -> Any:
    """Return a page as JSON. Raises Unavailable where the server does not respond."""
    return _page(address, path)[0]


def get_list(address: str, path: str) -> list[Any]:
    """Return a list, oldest first, from all of its pages. Raises Unavailable where the server does not respond."""
    found: list[Any] = []
    following = path
    while following:
        page, following = _page(address, following)
        found[:0] = page
    return found


def _page(address: str, path: str) -> tuple[Any, str]:
    """Return a page and the path of the next one; empty where there is none."""
    where = parse_address(address)
    connection = http.client.HTTPConnection(where.host, where.port, timeout=HTTP_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != http.client.OK:
            raise Unavailable(f"http://{address}{path} answers {answer.status} {answer.reason}")
        following = _NEXT.fullmatch(answer.headers["Link"] or "")
        return json.loads(body), following[1] if following else ""
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(
            f"http://{address}{path}: {error or type(error).__name__}; is `cagrpc serve` running?"
        ) from error
    finally:
        connection.close()
