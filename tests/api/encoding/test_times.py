"""Times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from cagrpc.api.encoding.json_documents import epoch_seconds, timestamp


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
