"""Durations as Go and Kubernetes write them, such as 1m30s: in configurations, objects and flags."""

from __future__ import annotations

import re

from cagrpc.errors import InvalidInput, shown

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_SECONDS = re.compile(_NUMBER)
_PART = re.compile(rf"({_NUMBER})({'|'.join(sorted(_UNITS, key=len, reverse=True))})")
_LONGEST_SECONDS = 2**63 / 1e9  # a Go duration counts nanoseconds in 64 bits: 292 years


def duration_seconds(text: str) -> float | None:
    """Return the seconds of a number (`7200`) or a Go duration (`2h30m`, `1.5h`); None where it is invalid."""
    if _SECONDS.fullmatch(text):
        seconds = float(text)
    elif text and not _PART.sub("", text):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    else:
        return None
    return seconds if seconds < _LONGEST_SECONDS else None


def duration_text(seconds: float) -> str:
    """Return the shortest text of a duration: 1h30m, 90.5s as 1m30.5s, 0.25 as 250ms, nothing as 0s."""
    if 0 < seconds < 1:
        return f"{seconds * 1e3:.9g}ms"
    minutes, rest = divmod(round(seconds, 9), 60)
    hours, minutes = divmod(int(minutes), 60)
    parts = ((hours, "h"), (minutes, "m"), (round(rest, 9), "s"))
    return "".join(f"{count:.12g}{unit}" for count, unit in parts if count) or "0s"


def seconds_of_flag(text: str, flag: str) -> float:
    """Return the seconds of a flag's duration. Raises InvalidInput, which names the flag."""
    seconds = None if _SECONDS.fullmatch(text) else duration_seconds(text)
    if not seconds:
        raise InvalidInput(f"{flag}: found {shown(text)}, expected a duration above 0 such as 500ms, 1s or 1m30s")
    return seconds
