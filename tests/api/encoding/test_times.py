"""Times and durations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from cagrpc.api.encoding.times import duration_seconds, epoch_seconds, timestamp


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7200", 7200.0),
        ("0.5", 0.5),
        ("2h30m", 9000.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1h1m1s1ms1us1ns", 3661.001001001),
        ("1µs1μs", 0.000002),
        ("30m2h", 9000.0),  # Go takes them in any order
        ("0", None),
        ("0s", None),
        ("-2h", None),
        ("-1", None),
        ("2h30", None),
        ("2 h", None),
        ("2d", None),
        ("soon", None),
        ("", None),
        ("h", None),
        (".", None),
        ("1e3", None),
        ("inf", None),
        ("300y", None),
        ("2600000h", None),  # more than Go's 292 years
        ("9" * 400, None),
    ],
)
def test_durations_are_seconds_or_what_go_writes(text: str, seconds: float | None) -> None:
    found = duration_seconds(text)
    assert found == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("found", "seconds"),
    [
        ("2026-01-02T03:04:05Z", 1767323045),
        ("2026-01-02T04:04:05+01:00", 1767323045),
        ("2026-01-02T03:04:05.999999Z", 1767323045),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), 1767323045),
        ("yesterday", 0),
        (None, 0),
        (5, 0),
    ],
)
def test_times_of_json_and_yaml(found: Any, seconds: int) -> None:
    assert epoch_seconds(found) == seconds


def test_a_time_that_is_written_is_the_one_that_is_read() -> None:
    assert epoch_seconds(timestamp(1767323045.7)) == 1767323045
