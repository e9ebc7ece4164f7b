"""When a window is open: cron expressions of five fields, in a time zone. Pure; what holds in a window is the target's.

A start that falls into the hour that the clocks leave out comes an hour later; one in the hour that comes twice counts
the first time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, Mapping[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    ("day of the week", 0, 7, {name: number for number, name in enumerate(_WEEKDAYS)}),
)
_YEARS = 8
"""Within so many years every date has come that ever comes, 29 February too."""


@dataclass(frozen=True)
class Cron:
    """Times of a day, and the days on which they are. Made by `parse_cron`."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either_day: bool
    """Both kinds of days are bounded: one of them is enough, as cron has it."""

    @cached_property
    def times(self) -> tuple[time, ...]:
        return tuple(time(hour, minute) for hour in sorted(self.hours) for minute in sorted(self.minutes))

    def on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return in_month or in_week if self.either_day else in_month and in_week


def parse_cron(text: str) -> Cron:
    """Minute, hour, day of the month, month, day of the week: `*`, values, names of months and days, ranges, steps,
    lists. Raises ValueError, naming the field."""
    parts = text.split()
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


@dataclass(frozen=True, slots=True)
class Schedule:
    """Windows that begin when the expression says, in local time, and last so long."""

    cron: Cron
    zone: ZoneInfo
    duration_seconds: float

    def open_at(self, now_seconds: float) -> bool:
        """`now_seconds` since the epoch."""
        latest = next((start for start in self._starts_before(now_seconds) if start <= now_seconds), None)
        return latest is not None and now_seconds < latest + self.duration_seconds

    def _starts_before(self, now_seconds: float) -> Iterator[float]:
        """From about now backwards, as far as a window may reach."""
        today = datetime.fromtimestamp(now_seconds, self.zone).date()
        oldest = datetime.fromtimestamp(now_seconds - self.duration_seconds, self.zone).date() - timedelta(1)
        day = today
        while day >= oldest:
            if self.cron.on(day):
                for each in reversed(self._times_on(day, now_seconds)):
                    yield datetime.combine(day, each, self.zone).timestamp()
            day -= timedelta(1)

    def _times_on(self, day: date, now_seconds: float) -> tuple[time, ...]:
        """Those that may have been: with clocks set back, of the next hours too."""
        times = self.cron.times
        later = datetime.fromtimestamp(now_seconds + 3 * 3600, self.zone)
        return times if later.date() > day else times[: bisect_right(times, later.time())]
