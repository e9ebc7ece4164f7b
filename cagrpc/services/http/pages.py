"""JSON pages of bounded size: lists with `limit` and `continue`, newest items first, and objects with truncated lists.

Each item is encoded by itself, by the C encoder (`indent` would disable it): no other thread waits for long, and no
more is encoded than is sent. Sockets and paths are `server`'s.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qs

from cagrpc.errors import InvalidInput

T = TypeVar("T")

LARGEST_PAGE_BYTES = 4 * 1024 * 1024
"""A page is smaller than this, unless its only item is larger."""

_LONGEST_NUMBER = 9  # digits


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The requested part of a list: at most `limit` items, before the newest `after`."""

    limit: int | None = None
    after: int = 0


def list_options(query: str) -> ListOptions:
    """Return the options in a URL's query, `limit=` and `continue=`. Raises InvalidInput."""
    try:
        given = parse_qs(query, max_num_fields=20)
    except ValueError as error:
        raise InvalidInput(f"the query is invalid: {error}") from error
    return ListOptions(_number(given, "limit", 1), _number(given, "continue", 0) or 0)


def _number(given: Mapping[str, Sequence[str]], name: str, least: int) -> int | None:
    if name not in given:
        return None
    text = given[name][-1]
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER and int(text) >= least):
        raise InvalidInput(f"{name} is {text[:100]!r}; it must be a whole number of {least} or more")
    return int(text)


def list_page(items: Sequence[T], as_json: Callable[[T], Any], options: ListOptions) -> tuple[bytes, str]:
    """Return the newest items, which are the last ones, as a JSON array, oldest first; and the query of the page with
    those before them, empty where there are none."""
    lines: list[bytes] = []
    size, left = 0, max(0, len(items) - options.after)
    for item in reversed(items[:left]):
        if options.limit is not None and len(lines) == options.limit:
            break
        line = _encoded(as_json(item))
        size += len(line) + 2
        if lines and size >= LARGEST_PAGE_BYTES:
            break
        lines.append(line)
    body = b"[" + b",\n".join(reversed(lines)) + b"]\n"
    if len(lines) == left:
        return body, ""
    limit = "" if options.limit is None else f"limit={options.limit}&"
    return body, f"{limit}continue={options.after + len(lines)}"


def object_page(value: Mapping[str, Any]) -> bytes:
    """Return a JSON object. Lists too long for a page are truncated; `left_out` has the number of missing items by
    list."""
    members: list[bytes] = []
    left_out: dict[str, int] = {}
    size = 0
    for name, member in value.items():
        if isinstance(member, list | tuple):
            lines: list[bytes] = []
            for item in member:
                lines.append(_encoded(item))
                size += len(lines[-1]) + 2
                if size >= LARGEST_PAGE_BYTES:
                    left_out[name] = len(member) - len(lines) + 1
                    del lines[-1]
                    break
            text = b"[" + b",\n".join(lines) + b"]"
        else:
            text = _encoded(member)
            size += len(text)
        members.append(_encoded(name) + b": " + text)
    left_out = {name: count for name, count in left_out.items() if count}
    if left_out:
        members.append(b'"left_out": ' + _encoded(left_out))
    return b"{" + b",\n".join(members) + b"}\n"


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()
