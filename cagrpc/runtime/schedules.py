"""Cron expressions of five fields in a time zone, and the windows that they open. Pure; what applies in a window is
said by whoever has one.

As in Debian's cron, a start in the hour that is skipped when clocks go forward is at the end of that hour, and one in
the hour that is repeated is the first of the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from pydantic import Field

from cagrpc.errors import did_you_mean, shown
from cagrpc.forms import Duration, Section, Text

_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


def parse_cron(text: str) -> str:
    """Return the five fields of an expression, in which a name such as `@daily` stands for its fields. Raises
    ValueError."""
    fields = _NAMED.get(text.strip(), text).split()
    if len(fields) != 5:
        raise ValueError(
            f'found "{text}", expected five fields: minute, hour, day of the month, month, day of the week'
        )
    try:
        CronSim(" ".join(fields), datetime(2024, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise ValueError(f'found "{text}", expected five fields as in a CronJob ({str(error).lower()})') from error
    return " ".join(fields)


def _time_zone(text: str) -> ZoneInfo:
    known = available_timezones()
    if text not in known:
        raise ValueError(
            f'found {shown(text)}, expected the name of a time zone, such as "Europe/Berlin" or "UTC"'
            f"{did_you_mean(text, known)}"
        )
    return ZoneInfo(text)


@dataclass(frozen=True, slots=True)
class Schedule(Section):
    """A window that opens again and again."""

    cron: Annotated[str, Text(parse_cron)]
    """When it opens: minute, hour, day of the month, month, day of the week, as in a CronJob."""
    time_zone: Annotated[ZoneInfo, Text(_time_zone), Field(default=ZoneInfo("UTC"))]
    duration_seconds: Annotated[float, Duration("1m", "168h", '"8h" or "1h30m"')]
    """How long it stays open: "8h", "1h30m"; at most 168h."""

    def open_at(self, now_seconds: float) -> bool:
        """Return whether a window is open at a time (since the epoch)."""
        after = datetime.fromtimestamp(int(now_seconds), self.time_zone) + timedelta(seconds=1)
        start = next(CronSim(self.cron, after, reverse=True), None)
        return start is not None and now_seconds < start.timestamp() + self.duration_seconds
