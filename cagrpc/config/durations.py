"""Durations in flags."""

from __future__ import annotations

import re

from cagrpc.errors import InvalidInput

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_seconds(text: str, flag: str) -> float:
    """Return the seconds of a duration such as 500ms, 1s, 1.5s or 2m. Raises InvalidInput, which names the flag."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
    seconds = float(found[1]) * _UNIT_SECONDS[found[2]] if found else 0.0
    if not seconds:
        raise InvalidInput(f"{flag}: found {text!r}, expected a duration above 0 such as 500ms, 1s or 2m")
    return seconds
