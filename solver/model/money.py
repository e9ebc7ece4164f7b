"""US dollars as people read them, everywhere: "$1.23/h", "$898/month"."""

from __future__ import annotations

import math

HOURS_A_MONTH = 730
DUST_USD_PER_HOUR = 0.00005
"""Less than that is shown as nothing."""


def hourly(usd_per_hour: float) -> str:
    """Return an amount of US dollars per hour, to the cent; of less than ten cents two digits: "$0.0042/h"."""
    amount = abs(usd_per_hour)
    if amount < DUST_USD_PER_HOUR:
        return "$0.00/h"
    decimals = 2 if amount >= 0.095 else 1 - math.floor(math.log10(amount))
    return f"{'-' if usd_per_hour < 0 else ''}${amount:,.{decimals}f}/h"


def monthly(usd_per_hour: float) -> str:
    """Return what an amount of US dollars per hour comes to in a month, in whole dollars."""
    month = round(usd_per_hour * HOURS_A_MONTH)
    return f"{'-' if month < 0 else ''}${abs(month):,}/month"


def more_or_less(usd_per_hour: float) -> str:
    """Return a difference: "$1.23/h more"."""
    return f"{hourly(abs(usd_per_hour))} {'more' if usd_per_hour > 0 else 'less'}"
