"""Durations, as they are read and written."""

from __future__ import annotations

import pytest

from cagrpc.durations import duration_seconds, duration_text


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
        ("0", 0.0),
        ("0s", 0.0),
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
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.0015, "1.5ms"),
        (0.25, "250ms"),
        (1.0, "1s"),
        (1.5, "1.5s"),
        (59.999, "59.999s"),
        (90, "1m30s"),
        (600.0, "10m"),
        (3600.0, "1h"),
        (3661.5, "1h1m1.5s"),
        (7 * 86_400.0, "168h"),
    ],
)
def test_durations_are_written_as_short_as_they_go(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
    assert duration_seconds(text) == pytest.approx(seconds)
