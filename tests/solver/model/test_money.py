"""Money as people read it."""

from __future__ import annotations

import pytest

from solver.model.money import hourly, monthly, more_or_less


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (0.0, "$0.00/h"),
        (1.1088, "$1.11/h"),
        (1.632, "$1.63/h"),
        (1234.5, "$1,234.50/h"),
        (0.0961, "$0.10/h"),
        (0.0416, "$0.042/h"),
        (0.00123, "$0.0012/h"),
        (0.00001, "$0.00/h"),
        (-0.00001, "$0.00/h"),
        (-3.2, "-$3.20/h"),
    ],
)
def test_hourly_amounts_have_cents_and_small_ones_two_digits(amount: float, words: str) -> None:
    assert hourly(amount) == words


def test_a_month_has_whole_dollars() -> None:
    assert [monthly(1.23), monthly(1234.5), monthly(-3.2), monthly(-0.0001)] == [
        "$898/month",
        "$901,185/month",
        "-$2,336/month",
        "$0/month",
    ]


def test_a_difference_says_in_which_direction() -> None:
    assert [more_or_less(1.5), more_or_less(-1.5)] == ["$1.50/h more", "$1.50/h less"]
