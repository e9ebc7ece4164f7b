"""Durations, and windows that open again and again, as sections write them."""

from __future__ import annotations

from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator

from cagrpc.config.problems import shown
from cagrpc.durations import duration_seconds
from cagrpc.errors import did_you_mean
from cagrpc.forms import Form
from cagrpc.runtime.schedules import Schedule, parse_cron


def between(shortest: str, longest: str, such_as: str) -> AfterValidator:
    """Return the validator of a duration within bounds."""
    least, most = seconds(shortest), seconds(longest)

    def validated(text: str) -> str:
        if not least <= seconds(text) <= most:
            raise ValueError(
                f'found {shown(text)}, expected a duration from "{shortest}" to "{longest}", such as {such_as}'
            )
        return text

    return AfterValidator(validated)


def seconds(duration: str) -> float:
    """Return the seconds of a duration; 0 where it is none."""
    return duration_seconds(duration) or 0.0


def cron(text: str) -> str:
    """Return a cron expression that is valid."""
    parse_cron(text)
    return text


def _time_zone(text: str) -> str:
    known = available_timezones()
    if text not in known:
        raise ValueError(
            f'found {shown(text)}, expected the name of a time zone, such as "Europe/Berlin" or "UTC"'
            f"{did_you_mean(text, known)}"
        )
    return text


class WindowForm(Form):
    """A window that opens again and again."""

    cron: Annotated[str, AfterValidator(cron)]
    """When it opens: minute, hour, day of the month, month, day of the week, as in a CronJob."""
    time_zone: Annotated[str, AfterValidator(_time_zone)] = "UTC"
    duration: Annotated[str, between("1m", "168h", '"8h" or "1h30m"')]
    """How long it stays open: "8h", "1h30m"; at most 168h."""

    def schedule(self) -> Schedule:
        """Return when it is open."""
        return Schedule(parse_cron(self.cron), ZoneInfo(self.time_zone), seconds(self.duration))
