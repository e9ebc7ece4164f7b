"""Clocks for the code under test, of either kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def any_clock(seconds: Callable[[], float]) -> Any:
    """Return `seconds` as what both an epoch and a monotonic clock may be."""
    return seconds
