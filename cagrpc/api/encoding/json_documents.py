"""Documents as Kubernetes' JSON writes them: untrusted bytes to values within bounds, in time linear in their length;
readers of fields, which report each problem with its path; and times."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from cagrpc.errors import InvalidInput, shown

Document = Mapping[str, Any]
Problems = list[str]
"""Messages for people, each beginning with the path of the invalid field."""

LARGEST = 2**63 - 1
"""The largest integer of Kubernetes' API, 64 bits."""
LARGEST_INT32 = 2**31 - 1
MOST_LEVELS = 100
"""How deep a JSON document nests, far deeper than Kubernetes' types; what nests deeper overflows Python's stack."""

_MOST_DIGITS = len(str(LARGEST))
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # two halves are a character
    rb"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_LATEST = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp())


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
        raise InvalidInput(f"expected JSON, found {shown(data[:60])}: {error}") from error


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


def _add(problems: Problems | None, problem: str) -> None:
    if problems is not None:
        problems.append(problem)


def mapping(
    document: Mapping[str, Any], field: str, path: str = "", problems: Problems | None = None
) -> Mapping[str, Any]:
    """Return the mapping `document[field]`; empty where absent or null. Anything else is a problem, at
    `path`, which is added to `problems` where there are any; so is what the readers below do not expect."""
    value = document.get(field)
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    _add(problems, f"{path}.{field}: expected a mapping, found {_kind(value)}".removeprefix("."))
    return {}


def members(
    document: Mapping[str, Any], field: str, path: str = "", problems: Problems | None = None
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield each mapping of the list `document[field]` with its path; nothing where absent or null."""
    value = document.get(field)
    if value is None:
        return
    at = f"{path}.{field}".removeprefix(".")
    if not isinstance(value, list):
        _add(problems, f"{at}: expected a list, found {_kind(value)}")
        return
    for index, item in enumerate(value):
        if isinstance(item, Mapping):
            yield item, f"{at}[{index}]"
        else:
            _add(problems, f"{at}[{index}]: expected a mapping, found {_kind(item)}")


def strings(
    document: Mapping[str, Any], field: str, path: str = "", problems: Problems | None = None
) -> dict[str, str]:
    """Return `document[field]`, a mapping of text to text such as labels."""
    found = {}
    for key, value in mapping(document, field, path, problems).items():
        if isinstance(key, str) and isinstance(value, str):
            found[key] = value
        else:
            _add(problems, f"{path}.{field}.{key}: expected text, found {_kind(value)}; quote it".removeprefix("."))
    return found


def texts(document: Mapping[str, Any], field: str, path: str = "", problems: Problems | None = None) -> tuple[str, ...]:
    """Return `document[field]`, a list of texts; empty where absent or null."""
    value = document.get(field)
    if value is None:
        return ()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    _add(problems, f"{path}.{field}: expected a list of texts, found {shown(value)}; quote numbers".removeprefix("."))
    return ()


def one_of(
    document: Mapping[str, Any],
    name: str,
    path: str,
    problems: Problems,
    choices: tuple[str, ...],
    default: str | None = None,
) -> str:
    """Return `document[name]`, one of `choices`; where it is absent or invalid, `default` or else the first choice."""
    value = document.get(name)
    if value in choices:
        return str(value)
    if value or default is not None:
        problems.append(f"{path}.{name}: {shown(value)} is not one of {', '.join(choices)}")
    return choices[0] if default is None else default


def whole(
    document: Mapping[str, Any],
    name: str,
    path: str,
    problems: Problems,
    least: int,
    most: int,
    default: int = 0,
) -> int:
    """Return the whole number `document[name]`; `default` where it is invalid, or absent and not required."""
    value = document.get(name)
    if value is None and least <= default:
        return default
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    problems.append(f"{path}.{name}: {shown(value)} is not a whole number from {least} to {most}")
    return default


def object_key(document: Mapping[str, Any]) -> str:
    """Return the `namespace/name` of an object; its name where it has no namespace."""
    metadata = mapping(document, "metadata")
    namespace, name = str(metadata.get("namespace") or ""), str(metadata.get("name") or "")
    return f"{namespace}/{name}" if namespace else name


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"{shown(value)}"


def timestamp(seconds: float) -> str:
    """Return the metav1.Time of seconds since the epoch: whole seconds, at most the year 9999."""
    return datetime.fromtimestamp(min(seconds, _LATEST), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(seconds: float) -> str:
    """Return the metav1.MicroTime of seconds since the epoch, as in Leases."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def epoch_seconds(timestamp: Any) -> int:
    """Return the seconds since the epoch of a metav1.Time as YAML or JSON gives it; 0 where it is absent, invalid or
    before the epoch."""
    if isinstance(timestamp, str):
        try:
            timestamp = datetime.fromisoformat(timestamp)
        except ValueError:
            return 0
    if not isinstance(timestamp, datetime):
        return 0
    seconds = (timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)).timestamp()
    return min(max(0, int(seconds)), _LATEST)
