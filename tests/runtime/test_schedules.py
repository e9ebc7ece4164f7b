"""Windows: cron expressions in time zones, and when they are open."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.runtime.schedules import Schedule, parse_cron

BERLIN = ZoneInfo("Europe/Berlin")


def schedule(cron: str, hours: float, zone: str = "UTC") -> Schedule:
    return Schedule(parse_cron(cron), ZoneInfo(zone), hours * 3600)


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


@pytest.mark.parametrize(
    ("cron", "when", "open_then"),
    [
        ("0 8 * * *", "2026-11-21T08:00", True),
        ("0 8 * * *", "2026-11-21T07:59:59", False),
        ("0 8 * * *", "2026-11-21T09:59:59", True),
        ("0 8 * * *", "2026-11-21T10:00", False),
        ("30 23 * * *", "2026-11-22T01:00", True),  # across midnight
        ("0 8 * * mon-fri", "2026-11-20T09:00", True),  # a Friday
        ("0 8 * * mon-fri", "2026-11-21T09:00", False),
        ("0 8 * * 6,7", "2026-11-22T09:00", True),  # 7 is Sunday, too
        ("0 8 * * SAT-SUN", "2026-11-21T09:00", None),  # names count from Sunday
        ("0 8 1 * *", "2026-12-01T09:00", True),
        ("0 8 1 * mon", "2026-11-23T09:00", True),  # either day is enough
        ("0 8 * feb *", "2026-11-21T09:00", False),
        ("*/15 9-17/4 * * *", "2026-11-21T17:50", True),
        ("10/20 * * * *", "2026-11-21T00:05", True),  # 10, 30, 50: the one of yesterday, 23:50
    ],
)
def test_when_a_window_of_two_hours_is_open(cron: str, when: str, open_then: bool | None) -> None:
    if open_then is None:
        with pytest.raises(ValueError, match="bad day-of-week"):
            schedule(cron, 2)
        return
    assert schedule(cron, 2).open_at(at(when)) is open_then


@pytest.mark.parametrize(
    ("cron", "problem"),
    [
        ("0 8 * *", 'found "0 8 * *", expected five fields'),
        ("60 8 * * *", "bad minute"),
        ("0 25 * * *", "bad hour"),
        ("0 0 0 * *", "bad day-of-month"),
        ("0 0 * foo *", "bad month"),
        ("0 0 * * 5-2", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("1, * * * *", "bad minute"),
        ("-5 * * * *", "bad minute"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("0 0 0 8 * *", 'found "0 0 0 8 * *", expected five fields'),
    ],
)
def test_invalid_expressions(cron: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r"found|expected") as caught:
        parse_cron(cron)
    assert problem in str(caught.value)


def test_29_february_comes() -> None:
    assert schedule("0 0 29 2 *", 1).open_at(at("2028-02-29T00:30"))


def test_local_time_moves_with_the_clocks() -> None:
    window = schedule("0 8 * * *", 1, "Europe/Berlin")
    assert window.open_at(at("2026-01-15T07:30"))  # 08:30 there
    assert not window.open_at(at("2026-01-15T06:30"))
    assert window.open_at(at("2026-07-15T06:30"))
    assert not window.open_at(at("2026-07-15T07:30"))


def test_a_start_in_the_hour_that_is_skipped_comes_at_its_end() -> None:
    window = schedule("30 2 * * *", 1, "Europe/Berlin")  # clocks go from 02:00 to 03:00 on 29 March 2026
    assert not window.open_at(at("2026-03-29T01:59", "Europe/Berlin"))
    assert window.open_at(at("2026-03-29T03:00", "Europe/Berlin"))
    assert not window.open_at(at("2026-03-29T04:00", "Europe/Berlin"))


def test_a_start_in_the_hour_that_comes_twice_counts_the_first_time() -> None:
    window = schedule("30 2 * * *", 0.5, "Europe/Berlin")  # 25 October 2026
    assert window.open_at(at("2026-10-25T02:45", "Europe/Berlin"))
    assert not window.open_at(at("2026-10-25T02:45", "Europe/Berlin", fold=1))


FIELDS = st.tuples(
    st.integers(0, 59).map(str) | st.sampled_from(["*", "*/20", "5,50"]),
    st.integers(0, 23).map(str) | st.sampled_from(["*", "*/6", "8-10"]),
    st.sampled_from(["*", "1", "25-31", "*/9"]),
    st.sampled_from(["*", "mar,oct", "6-12"]),
    st.sampled_from(["*", "sun", "1-5", "7"]),
)


@given(
    FIELDS,
    st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata", "Pacific/Apia"]),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)),  # noqa: DTZ001 - made UTC below
    st.integers(1, 3 * 24 * 60),
)
def test_a_window_is_open_after_each_start_and_only_then(
    fields: tuple[str, ...], zone: str, moment: datetime, minutes: int
) -> None:
    """The same by looking at every minute; not where clocks change, which is tested above."""
    now = moment.replace(tzinfo=UTC)
    local = ZoneInfo(zone)
    if now.astimezone(local).utcoffset() != (now - timedelta(days=4)).astimezone(local).utcoffset():
        return
    cron = parse_cron(" ".join(fields))
    starts = (now.replace(second=0, microsecond=0) - timedelta(minutes=back) for back in range(minutes + 1))
    expected = any(
        _matches(fields, start.astimezone(local)) and now < start + timedelta(minutes=minutes) for start in starts
    )
    assert Schedule(cron, local, minutes * 60).open_at(now.timestamp()) is expected


def _matches(fields: tuple[str, ...], moment: datetime) -> bool:
    values = (moment.minute, moment.hour, moment.day, moment.month, moment.isoweekday() % 7)
    minute, hour, day, month, weekday = (
        any(_in(part, value, least, most) for part in field.split(","))
        for field, value, (least, most) in zip(
            fields, values, ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6)), strict=True
        )
    )
    days = day and weekday if fields[2].startswith("*") or fields[4].startswith("*") else day or weekday
    return minute and hour and month and days


def _in(part: str, value: int, least: int, most: int) -> bool:
    """Read what `FIELDS` has: a value, a name, a range, or every so many."""
    names = {"mar": 3, "oct": 10, "sun": 0, "7": 0}
    if part.startswith("*"):
        return (value - least) % int(part.removeprefix("*").removeprefix("/") or 1) == 0
    first, _, last = part.partition("-")
    low = names[first] if first in names and most in (6, 12) else int(first)
    return low <= value <= (int(last) if last else low)


def test_names_of_cron_stand_for_their_fields() -> None:
    assert parse_cron("@daily") == "0 0 * * *"
    with pytest.raises(ValueError, match="expected five fields"):
        parse_cron("@reboot")
