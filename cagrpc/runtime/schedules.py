"""Cron expressions of five fields in a time zone, and the windows that they open. Pure; what applies in a window is
said by whoever has one.

A start in the hour that is skipped when clocks go forward is an hour later; one in the hour that is repeated is the
first of the two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import cached_property
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

from pydantic import Field

from cagrpc.errors import did_you_mean
from cagrpc.forms import Duration, Section, Text, shown

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, Mapping[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    ("day of the week", 0, 7, {name: number for number, name in enumerate(_WEEKDAYS)}),
)
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_YEARS = 8
"""Every date there is occurs within so many years, 29 February included."""


@dataclass(frozen=True)
class Cron:
    """The times of a day and the days of an expression. Made by `parse_cron`."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either_day: bool
    """Both kinds of days are restricted: matching one of them is enough, as in cron."""

    @cached_property
    def times(self) -> tuple[time, ...]:
        """The times of a day, ascending."""
        return tuple(time(hour, minute) for hour in sorted(self.hours) for minute in sorted(self.minutes))

    def on(self, day: date) -> bool:
        """Return whether a day matches."""
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return in_month or in_week if self.either_day else in_month and in_week


def parse_cron(text: str) -> Cron:
    """Return the expression of minute, hour, day of the month, month and day of the week: `*`, values, names of months
    and days, ranges, steps, lists; or of a name such as `@daily`. Raises ValueError, which names the field."""
    parts = _NAMED.get(text.strip(), text).split()
    if len(parts) != len(_FIELDS):
        raise ValueError(
            f'found "{text}", expected five fields: minute, hour, day of the month, month, day of the week'
        )
    minutes, hours, days, months, weekdays = (_values(part, *field) for part, field in zip(parts, _FIELDS, strict=True))
    cron = Cron(
        text,
        minutes,
        hours,
        days,
        months,
        frozenset(day % 7 for day in weekdays),
        either_day=not (parts[2].startswith("*") or parts[4].startswith("*")),
    )
    first = date(2024, 1, 1)
    if not any(cron.on(first + timedelta(days)) for days in range(366 * _YEARS)):
        raise ValueError(f'found "{text}", which is on no day of any year')
    return cron


def _values(text: str, field: str, lowest: int, highest: int, names: Mapping[str, int]) -> frozenset[int]:
    found: set[int] = set()
    for part in text.lower().split(","):
        span, slash, step_text = part.partition("/")
        first, dash, last = span.partition("-")
        try:
            low, high = (
                (lowest, highest) if span == "*" else (_value(first, names), _value(last if dash else first, names))
            )
            step = int(step_text) if slash else 1
        except ValueError:
            raise ValueError(f'{field}: found "{part}", expected such as *, 5, 1-5, */10 or 1,15') from None
        if slash and not dash and span != "*":
            high = highest
        if not lowest <= low <= high <= highest or step < 1:
            raise ValueError(
                f'{field}: found "{part}", expected values from {lowest} to {highest}, the smaller one first'
            )
        found.update(range(low, high + 1, step))
    return frozenset(found)


def _value(text: str, names: Mapping[str, int]) -> int:
    if text in names:
        return names[text]
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


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

    cron: Annotated[Cron, Text(parse_cron)]
    """When it opens: minute, hour, day of the month, month, day of the week, as in a CronJob."""
    time_zone: Annotated[ZoneInfo, Text(_time_zone), Field(default=ZoneInfo("UTC"))]
    duration_seconds: Annotated[float, Duration("1m", "168h", '"8h" or "1h30m"')]
    """How long it stays open: "8h", "1h30m"; at most 168h."""

    def open_at(self, now_seconds: float) -> bool:
        """Return whether a window is open at a time (since the epoch)."""
        latest = next((start for start in self._starts_before(now_seconds) if start <= now_seconds), None)
        return latest is not None and now_seconds < latest + self.duration_seconds

    def _starts_before(self, now_seconds: float) -> Iterator[float]:
        """Yield starts from about now backwards, as far as an open window may have started."""
        today = datetime.fromtimestamp(now_seconds, self.time_zone).date()
        oldest = datetime.fromtimestamp(now_seconds - self.duration_seconds, self.time_zone).date() - timedelta(1)
        day = today
        while day >= oldest:
            if self.cron.on(day):
                for each in reversed(self._times_on(day, now_seconds)):
                    yield datetime.combine(day, each, self.time_zone).timestamp()
            day -= timedelta(1)

    def _times_on(self, day: date, now_seconds: float) -> tuple[time, ...]:
        """Return the times that may have passed: with clocks set back, some of the next hours too."""
        times = self.cron.times
        later = datetime.fromtimestamp(now_seconds + 3 * 3600, self.time_zone)
        return times if later.date() > day else times[: bisect_right(times, later.time())]
