"""Reading a table of prices."""

from __future__ import annotations

import math
from pathlib import Path

from cagrpc.api.encoding.json_documents import Problems
from cagrpc.api.files.documents import rows
from cagrpc.errors import InvalidConfiguration
from cagrpc.fleet.catalogue import Catalogue
from cagrpc.fleet.prices import NodePlace, PriceList
from solver.model.validation import MAX_PRICE_USD_PER_HOUR

_PLACE = ("zone", "capacity_type")


def price_list(catalogue: Catalogue, path: Path | None) -> PriceList:
    """Return the prices of a table (the columns instance_type, usd_per_hour and, optionally, zone and capacity_type)
    over the catalogue's. Raises InvalidConfiguration with every problem of the table."""
    if path is None:
        return PriceList(catalogue)
    problems: Problems = []
    table: dict[NodePlace, float] = {}
    for place, row in rows(path, ("instance_type", "usd_per_hour"), _PLACE, problems):
        price = _dollars(row["usd_per_hour"])
        if price is None:
            found = row["usd_per_hour"][:40]
            most = MAX_PRICE_USD_PER_HOUR
            problems.append(f"{place}: usd_per_hour: found {found!r}, expected US dollars per hour from 0 to {most}")
            continue
        key = NodePlace(row["instance_type"], row.get("zone", ""), row.get("capacity_type", ""))
        if key in table:
            problems.append(f"{place}: there is a price of {'/'.join(filter(None, key))} above")
        table[key] = price
    if problems:
        raise InvalidConfiguration(problems)
    return PriceList(catalogue, table)


def _dollars(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) and 0 <= found <= MAX_PRICE_USD_PER_HOUR else None
