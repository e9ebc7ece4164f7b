"""Bounds on claims (`devices`) applied to rows and places: as counters, exclusions, and rows that a place does not
serve. Nothing is computed where nothing has claims.

Places with other devices have other bounds. Those that agree in how much each pod counts are one counter, so that
ordinary problems, where a claim for two devices counts two on every node, gain one or two dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from solver.model import Devices
from solver.reduction.devices import DeviceBound, bounds_on
from solver.reduction.inter_row import Counter, NodeExclusion
from solver.reduction.rows import Ints, Layout

_UNLIMITED = 2**40
"""More than pods on one node can count."""


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """What claims mean for rows."""

    counters: tuple[Counter, ...] = ()
    exclusions: tuple[NodeExclusion, ...] = ()
    refused: Mapping[int, Ints] = field(default_factory=dict)
    """Place -> rows that its devices do not serve; places that serve all are left out."""


@dataclass(slots=True)
class _Sum:
    """Bounds of several sets of devices that agree in what each of the claims counts, and in who carries them."""

    conditional: bool
    meaning: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Number of the claims -> (weight, whether it carries the bound), of all that any of the sets serves."""
    most: dict[int, int] = field(default_factory=dict)
    """Number of the devices -> the bound."""

    def join(self, devices: int, bound: DeviceBound, able: frozenset[int]) -> bool:
        """Take the bound in, where it agrees; return whether it did."""
        mine = {n: (bound.weights.get(n, 0), n in (bound.carriers or ())) for n in able}
        if devices in self.most or self.conditional is (bound.carriers is None):
            return False
        if any(self.meaning.get(n, meaning) != meaning for n, meaning in mine.items()):
            return False
        self.meaning |= mine
        self.most[devices] = bound.most
        return True


def device_rows(layout: Layout) -> DeviceRows:
    """Return what the claims of the layout's classes mean for its rows and places."""
    claims = list(dict.fromkeys(spec.claims for spec in layout.specs if spec.claims))
    if not claims:
        return DeviceRows()
    number = {each: index for index, each in enumerate(claims)}
    of_spec = [number[spec.claims] if spec.claims else None for spec in layout.specs]
    claiming: dict[int, dict[int, int]] = {}
    """Row -> number of the claims -> pods that have them; rows without any are left out."""
    for row, of in enumerate(layout.rows):
        for part in of.parts:
            which = of_spec[part.spec]
            if which is not None:
                held = claiming.setdefault(row, {})
                held[which] = held.get(which, 0) + part.pods
    places_of, distinct = _distinct([place.devices for place in layout.places])
    able: list[frozenset[int]] = []
    sums: list[_Sum] = []
    for index, devices in enumerate(distinct):
        served, bounds = bounds_on(devices, claims)
        able.append(served)
        for bound in bounds:
            if not any(each.join(index, bound, served) for each in sums):
                sums.append(_Sum(conditional=bound.carriers is not None))
                sums[-1].join(index, bound, served)
    return DeviceRows(
        tuple(_counters(sums, claiming, able, places_of)),
        tuple(_exclusions(sums, claiming, places_of)),
        _refused(sums, claiming, able, places_of),
    )


def _distinct(devices: Sequence[tuple[Devices, ...]]) -> tuple[list[list[int]], list[tuple[Devices, ...]]]:
    """Return the places of each distinct set of devices, and the sets."""
    numbers: dict[tuple[Devices, ...], int] = {}
    by_object: dict[int, int] = {}
    places: list[list[int]] = []
    for place, each in enumerate(devices):
        known = by_object.get(id(each))
        if known is None:
            known = by_object[id(each)] = numbers.setdefault(each, len(numbers))
            if known == len(places):
                places.append([])
        places[known].append(place)
    return places, list(numbers)


def _weighed(each: _Sum, held: Mapping[int, int]) -> int:
    return sum(each.meaning[n][0] * pods for n, pods in held.items() if n in each.meaning)


def _carries(each: _Sum, held: Mapping[int, int]) -> bool:
    return any(each.meaning[n][1] for n in held if n in each.meaning)


def _counters(
    sums: Sequence[_Sum],
    claiming: Mapping[int, Mapping[int, int]],
    able: Sequence[frozenset[int]],
    places_of: Sequence[Sequence[int]],
) -> Iterator[Counter]:
    for number, each in enumerate(each for each in sums if not each.conditional):
        takes = {row: weight for row, held in claiming.items() if (weight := _weighed(each, held))}
        left: dict[int, int] = {}
        for devices, places in enumerate(places_of):
            counted = any(each.meaning.get(n, (0, False))[0] for n in able[devices])
            most = each.most.get(devices, _UNLIMITED if counted else 0)
            left.update((place, most) for place in places if most)
        if takes:
            yield Counter(f"devices {number}", takes, 0, left)


def _exclusions(
    sums: Sequence[_Sum], claiming: Mapping[int, Mapping[int, int]], places_of: Sequence[Sequence[int]]
) -> Iterator[NodeExclusion]:
    for each in sums:
        if each.conditional:
            carriers = frozenset(row for row, held in claiming.items() if _carries(each, held))
            counted = tuple((row, weight) for row, held in claiming.items() if (weight := _weighed(each, held)))
            left = {place: most for devices, most in each.most.items() for place in places_of[devices]}
            yield NodeExclusion(carriers, counted, _UNLIMITED, left)


def _refused(
    sums: Sequence[_Sum],
    claiming: Mapping[int, Mapping[int, int]],
    able: Sequence[frozenset[int]],
    places_of: Sequence[Sequence[int]],
) -> dict[int, Ints]:
    """Return the rows of which a place cannot serve a single unit."""
    found: dict[int, Ints] = {}
    for devices, places in enumerate(places_of):
        bounds = [each for each in sums if each.conditional and devices in each.most]
        rows = [
            row
            for row, held in claiming.items()
            if not held.keys() <= able[devices]
            or any(_carries(each, held) and _weighed(each, held) > each.most[devices] for each in bounds)
        ]
        if rows:
            found.update(dict.fromkeys(places, np.array(rows, dtype=np.int64)))
    return found
