"""Untrusted text to bounded numbers and documents, in time linear in its length."""

from __future__ import annotations

import json
import re
from typing import Any

from cagrpc.errors import InvalidInput

LARGEST = 2**63 - 1
"""Kubernetes counts in 64 bits."""
MOST_LEVELS = 100
"""Of a JSON document, far more than Kubernetes' types nest: what is deeper would be too deep for Python's stack sooner
or later, and says nothing to us."""

_MOST_DIGITS = len(str(LARGEST))
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


def whole_number(text: object, most: int = LARGEST) -> int | None:
    """A whole number from 0 to `most` in ASCII digits; None for anything else. (Python's own `int` also reads signs,
    spaces, underscores and other scripts, and raises for thousands of digits.)"""
    if not (isinstance(text, str) and len(text) <= _MOST_DIGITS and text.isascii() and text.isdecimal()):
        return None
    number = int(text)
    return number if number <= most else None


def json_value(data: bytes) -> Any:
    """What a JSON text in UTF-8 says; null for all that is nested deeper than `MOST_LEVELS`. Whole numbers beyond 64
    bits are floats, perhaps infinite ones. Raises InvalidInput for what is no JSON."""
    try:
        return json.loads(data if _is_shallow(data) else _cut(data), parse_int=_number)
    except ValueError as error:
        raise InvalidInput(f"expected JSON, found {data[:60]!r}: {error}") from error


def _number(text: str) -> int | float:
    return int(text) if len(text) <= _MOST_DIGITS + 1 else float(text)


def _is_shallow(data: bytes) -> bool:
    """False also where brackets in strings make it seem too deep."""
    brackets = data.translate(None, _ALL_BUT_BRACKETS)
    for _ in range(MOST_LEVELS):
        if not brackets:
            return True
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
    return not brackets


def _cut(data: bytes) -> bytes:
    kept, level, start = [], 0, 0
    for found in _STRING_OR_BRACKET.finditer(data):
        match found[0]:
            case b"{" | b"[":
                level += 1
                if level == MOST_LEVELS + 1:
                    kept += [data[start : found.start()], b"null"]
            case b"}" | b"]":
                if level == MOST_LEVELS + 1:
                    start = found.end()
                level -= 1
    return b"".join([*kept, data[start:]])
