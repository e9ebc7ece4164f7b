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
from solver.model.devices import Claims
from solver.reduction.devices import Bools, DeviceBound, bounds_on, nameless
from solver.reduction.inter_row import Counter, NodeExclusion
from solver.reduction.rows import Ints, Layout

_UNLIMITED = 2**40
"""More than pods on one node can count."""


@dataclass(frozen=True, slots=True)
class ServedClaims:
    """Which claims are planned onto otherwise empty nodes, by their devices."""

    devices: Mapping[tuple[Devices, ...], int] = field(default_factory=dict)
    claims: Mapping[Claims, int] = field(default_factory=dict)
    """Without the names of their requests."""
    able: Bools = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))
    """Devices x claims."""


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """What claims mean for rows."""

    counters: tuple[Counter, ...] = ()
    exclusions: tuple[NodeExclusion, ...] = ()
    refused: Mapping[int, Ints] = field(default_factory=dict)
    """Place -> rows that its devices do not serve; places that serve all are left out."""
    served: ServedClaims = field(default_factory=ServedClaims)


_MOST_TRIED = 32
"""Sums that a bound is compared with, whatever they are; beyond these only such as begin alike."""
_MOST_SUMS = 256
"""Sums beyond which those that begin alike are made one, which says more than each of them."""


class _Sum:
    """Bounds of several sets of devices that agree in what each of the claims counts, and in who carries them."""

    def __init__(self, bound: DeviceBound, *, always: bool) -> None:
        self.always = always
        """Whether it holds also where no carrier is."""
        self.weights = np.zeros(len(bound.weights), dtype=np.int64)
        self.carriers = np.zeros(len(bound.weights), dtype=bool)
        self.known = np.zeros(len(bound.weights), dtype=bool)
        """Which claims any of the sets serves."""
        self.most: dict[int, int] = {}
        """Number of the devices -> the bound."""

    def agrees(self, devices: int, bound: DeviceBound, able: Bools) -> bool:
        """Return whether the bound says the same of all claims that both know."""
        first = bound.first
        if devices in self.most or self.always is not bound.always:
            return False
        if self.known[first] and self.weights[first] != bound.weights[first]:
            return False
        both = self.known & able
        same = bool((self.weights[both] == bound.weights[both]).all())
        return same and (self.always or bool((self.carriers[both] == bound.carriers[both]).all()))

    def join(self, devices: int, bound: DeviceBound, able: Bools) -> None:
        """Take the bound in: where it differs, what leaves less to pods."""
        np.maximum(self.weights, bound.weights, out=self.weights)
        if not self.always:
            self.carriers |= bound.carriers
        self.known |= able
        self.most[devices] = min(bound.most, self.most.get(devices, bound.most))


class _Sums:
    """Sums of all devices. That the bounds of many agree makes them few; where they do not, they must not be many."""

    def __init__(self) -> None:
        self.all: list[_Sum] = []
        self._alike: dict[object, _Sum] = {}
        self._latest: dict[object, _Sum] = {}

    def add(self, devices: int, bound: DeviceBound, able: Bools) -> None:
        key = bound.first, int(bound.weights[bound.first])
        latest = self._latest.get((*key, bound.always))
        tried = self.all[:_MOST_TRIED] if latest is None else [latest, *self.all[:_MOST_TRIED]]
        found = next((each for each in tried if each.agrees(devices, bound, able)), None)
        if found is None:
            found = self._new(key, bound)
        found.join(devices, bound, able)

    def _new(self, key: tuple[int, int], bound: DeviceBound) -> _Sum:
        """Return a sum that the bound is to be joined to though it agrees with none."""
        if len(self.all) < _MOST_SUMS:
            self.all.append(_Sum(bound, always=bound.always))
            self._latest[(*key, bound.always)] = self.all[-1]
            return self.all[-1]
        # It holds for its carriers whatever others have: that nobody else is bound by it is enough.
        if key not in self._alike:
            self._alike[key] = _Sum(bound, always=False)
            self.all.append(self._alike[key])
        return self._alike[key]


def device_rows(layout: Layout) -> DeviceRows:
    """Return what the claims of the layout's classes mean for its rows and places."""
    asked = [nameless(spec.claims) for spec in layout.specs]
    claims = list(dict.fromkeys(filter(None, asked)))
    if not claims:
        return DeviceRows()
    number = {each: index for index, each in enumerate(claims)}
    of_spec = [number.get(each) for each in asked]
    claiming = _Claiming(layout, of_spec)
    places_of, distinct = distinct_devices([place.devices for place in layout.places])
    able = np.zeros((len(distinct), len(claims)), dtype=bool)
    sums = _Sums()
    for index, devices in enumerate(distinct):
        served, bounds = bounds_on(devices, claims)
        able[index, list(served)] = True
        for bound in bounds:
            sums.add(index, bound, able[index])
    return DeviceRows(
        tuple(_counters(sums.all, claiming, able, places_of)),
        tuple(_exclusions(sums.all, claiming, places_of)),
        _refused(sums.all, claiming, able, places_of),
        ServedClaims({each: index for index, each in enumerate(distinct)}, number, able),
    )


class _Claiming:
    """Rows whose pods have claims, and how many of each kind a unit has."""

    def __init__(self, layout: Layout, of_spec: Sequence[int | None]) -> None:
        entries = [
            (row, which, part.pods)
            for row, of in enumerate(layout.rows)
            for part in of.parts
            if (which := of_spec[part.spec]) is not None
        ]
        rows, self._kinds, self._pods = np.array(entries, dtype=np.int64).reshape(-1, 3).T
        self.rows, self._begin = np.unique(rows, return_index=True)

    def units(self, weights: Ints) -> Ints:
        """Return what a unit of each row counts."""
        return np.add.reduceat(weights[self._kinds] * self._pods, self._begin)

    def any(self, kinds: Bools) -> Bools:
        """Return the rows that have any of these kinds."""
        return self.units(kinds.astype(np.int64)) > 0


def distinct_devices(devices: Sequence[tuple[Devices, ...]]) -> tuple[list[list[int]], list[tuple[Devices, ...]]]:
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


def _counters(
    sums: Sequence[_Sum], claiming: _Claiming, able: Bools, places_of: Sequence[Sequence[int]]
) -> Iterator[Counter]:
    for number, each in enumerate(each for each in sums if each.always):
        units = claiming.units(each.weights)
        counted = frozenset(np.flatnonzero((able & (each.weights > 0)).any(axis=1)).tolist())
        left: dict[int, int] = {}
        for devices, places in enumerate(places_of):
            most = each.most.get(devices, _UNLIMITED if devices in counted else 0)
            if most:
                left.update(dict.fromkeys(places, most))
        some = np.flatnonzero(units)
        if len(some):
            takes = dict(zip(claiming.rows[some].tolist(), units[some].tolist(), strict=True))
            yield Counter(f"devices {number}", takes, 0, left)


def _exclusions(
    sums: Sequence[_Sum], claiming: _Claiming, places_of: Sequence[Sequence[int]]
) -> Iterator[NodeExclusion]:
    for each in sums:
        if not each.always:
            carriers = frozenset(claiming.rows[claiming.any(each.carriers)].tolist())
            units = claiming.units(each.weights)
            some = np.flatnonzero(units)
            counted = tuple(zip(claiming.rows[some].tolist(), units[some].tolist(), strict=True))
            left = {place: most for devices, most in each.most.items() for place in places_of[devices]}
            yield NodeExclusion(carriers, counted, _UNLIMITED, left)


def _refused(
    sums: Sequence[_Sum], claiming: _Claiming, able: Bools, places_of: Sequence[Sequence[int]]
) -> dict[int, Ints]:
    """Return the rows of which a place cannot serve a single unit."""
    found = [claiming.any(~here) for here in able]
    for each in sums:
        if not each.always:
            units = np.where(claiming.any(each.carriers), claiming.units(each.weights), 0)
            for devices, most in each.most.items():
                found[devices] |= units > most
    refused: dict[int, Ints] = {}
    for here, places in zip(found, places_of, strict=True):
        if here.any():
            refused.update(dict.fromkeys(places, claiming.rows[here]))
    return refused
