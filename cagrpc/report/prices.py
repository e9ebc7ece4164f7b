"""What nodes cost: a table of the user's, and the catalogue where that says nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from cagrpc.api.encoding.json_documents import Problems
from cagrpc.api.files.documents import read_text, rows
from cagrpc.errors import InvalidConfiguration
from cagrpc.fleet.catalogue import DEFAULT_CAPACITY_TYPE, Catalogue

_PLACE = ("zone", "capacity_type")
_Place = tuple[str, str, str]
"""Instance type, zone and capacity type; an empty text stands for any zone or capacity type."""


class PriceList:
    """US dollars per hour by instance type, zone and capacity type."""

    def __init__(self, catalogue: Catalogue, table: dict[_Place, float] | None = None) -> None:
        self._table = table or {}
        self._offered: dict[_Place, float] = {}
        self._everywhere: defaultdict[tuple[str, str], set[float]] = defaultdict(set)
        for each in catalogue.offerings:
            name = each.instance_type.name
            self._offered[name, each.zone, each.capacity_type] = each.price_usd_per_hour
            self._everywhere[name, each.capacity_type].add(each.price_usd_per_hour)

    def of(self, instance_type: str, zone: str, capacity_type: str) -> float | None:
        """Return the price of a node; None where it is not known. The table's most exact row comes first, then the
        catalogue's offering, then that of other zones if it costs the same in all of them."""
        capacity_type = capacity_type or DEFAULT_CAPACITY_TYPE
        for place in _widening(instance_type, zone, capacity_type):
            if place in self._table:
                return self._table[place]
        if (instance_type, zone, capacity_type) in self._offered:
            return self._offered[instance_type, zone, capacity_type]
        everywhere = self._everywhere.get((instance_type, capacity_type), set())
        return next(iter(everywhere)) if len(everywhere) == 1 else None

    def overrides(self, instance_type: str, zone: str, capacity_type: str) -> float | None:
        """Return what the table says, if anything."""
        found = (self._table.get(each) for each in _widening(instance_type, zone, capacity_type))
        return next((each for each in found if each is not None), None)


def _widening(instance_type: str, zone: str, capacity_type: str) -> Iterable[_Place]:
    yield instance_type, zone, capacity_type
    yield instance_type, zone, ""
    yield instance_type, "", capacity_type
    yield instance_type, "", ""


def price_list(catalogue: Catalogue, path: Path | None) -> PriceList:
    """Return the prices of a table (the columns instance_type, usd_per_hour and, if it likes, zone and capacity_type)
    over the catalogue's. Raises InvalidConfiguration with every problem of the table."""
    if path is None:
        return PriceList(catalogue)
    problems: Problems = []
    text = read_text(path, problems)
    table: dict[_Place, float] = {}
    for place, row in rows(path, text, ("instance_type", "usd_per_hour"), _PLACE, problems) if text is not None else ():
        price = _dollars(row["usd_per_hour"])
        if price is None:
            found = row["usd_per_hour"][:40]
            problems.append(f"{place}: usd_per_hour: found {found!r}, expected US dollars per hour, 0 or more")
            continue
        key = (row["instance_type"], row.get("zone", ""), row.get("capacity_type", ""))
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
    return found if math.isfinite(found) and found >= 0 else None
