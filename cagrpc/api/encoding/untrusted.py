"""Untrusted text to bounded numbers and documents, in time linear in its length."""

from __future__ import annotations

import json
import re
from typing import Any

from cagrpc.errors import InvalidInput

LARGEST = 2**63 - 1
"""The largest integer of Kubernetes' API, 64 bits."""
MOST_LEVELS = 100
"""Of a JSON document, far more than Kubernetes' types nest; deeper nesting overflows Python's stack."""

_MOST_DIGITS = len(str(LARGEST))
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # two halves are a character
    rb"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def whole_number(text: object, most: int = LARGEST) -> int | None:
    """Return the whole number from 0 to `most` in ASCII digits; None for anything else. (Python's `int` also reads
    signs, spaces, underscores and other scripts, and raises for thousands of digits.)"""
    if not (isinstance(text, str) and len(text) <= _MOST_DIGITS and text.isascii() and text.isdecimal()):
        return None
    number = int(text)
    return number if number <= most else None


def json_value(data: bytes) -> Any:
    """Return the value of a JSON text in UTF-8, with null for whatever is nested deeper than `MOST_LEVELS`. Whole
    numbers beyond 64 bits become floats, perhaps infinite; half a character, which no encoding has, becomes U+FFFD, as
    Go reads it. Raises InvalidInput for invalid JSON."""
    try:
        shallow = data if _is_shallow(data) else _cut(data)
        return json.loads(_with_whole_characters(shallow).decode(), parse_int=_number)
    except ValueError as error:
        raise InvalidInput(f"expected JSON, found {data[:60]!r}: {error}") from error


def _number(text: str) -> int | float:
    return int(text) if len(text) <= _MOST_DIGITS + 1 else float(text)


def _with_whole_characters(data: bytes) -> bytes:
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    return _ESCAPE.sub(lambda found: rb"\ufffd" if found["half"] else found[0], data)


def _is_shallow(data: bytes) -> bool:
    """Return whether it nests within the limit; False also where brackets in strings make it seem deeper."""
    brackets = data.translate(None, _ALL_BUT_BRACKETS)
    for _ in range(MOST_LEVELS):
        if not brackets:
            return True
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
    return not brackets


def _cut(data: bytes) -> bytes:
    parts, level, start = [], 0, 0
    for found in _STRING_OR_BRACKET.finditer(data):
        match found[0]:
            case b"{" | b"[":
                level += 1
                if level == MOST_LEVELS + 1:
                    parts += [data[start : found.start()], b"null"]
            case b"}" | b"]":
                if level == MOST_LEVELS + 1:
                    start = found.end()
                level -= 1
    return b"".join([*parts, data[start:]])
