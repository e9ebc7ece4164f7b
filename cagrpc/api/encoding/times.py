"""Times and durations as Kubernetes' JSON writes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_SECONDS = re.compile(_NUMBER)
_PART = re.compile(rf"({_NUMBER})({'|'.join(sorted(_UNITS, key=len, reverse=True))})")
_LONGEST_SECONDS = 2**63 / 1e9  # a Go duration counts nanoseconds in 64 bits: 292 years


_LATEST = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp())


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


def duration_seconds(text: str) -> float | None:
    """Return the seconds of a number (`7200`) or a Go duration (`2h30m`, `1.5h`); None where it is invalid or not above
    0."""
    if _SECONDS.fullmatch(text):
        seconds = float(text)
    else:
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        if _PART.sub("", text):
            return None
    return seconds if 0 < seconds < _LONGEST_SECONDS else None
