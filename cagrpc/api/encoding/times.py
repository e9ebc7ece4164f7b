"""Times as Kubernetes' JSON writes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

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
