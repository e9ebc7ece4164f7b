"""How many more pods of a class the devices of a node could be enough for, counted: what this says no to need not be
checked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from solver.model import DeviceRequest, Devices, PodSpec

Reaches = Mapping[int, int]
"""Entries of a node's devices, as bits -> how many devices are asked for that may be of these and of no others."""


class DeviceRoom:
    def __init__(self, specs: Sequence[PodSpec]) -> None:
        """`specs` are those of the classes, by index."""
        self._requests = [[request for claim in each.claims for request in claim.requests] for each in specs]
        self._fewest = [sum(map(_fewest, each)) for each in self._requests]
        self._counted: dict[int, _CountedDevices] = {}
        """By identity of the devices."""

    def more(self, devices: Sequence[Devices], of: int, beside: Mapping[int, int], most: int) -> int:
        """Return how many pods of a class they are enough for beside so many of each, `most` at most."""
        if not self._requests[of]:
            return most
        if id(devices) not in self._counted:
            self._counted[id(devices)] = _CountedDevices(devices)
        counted = self._counted[id(devices)]
        left = counted.free - sum(self._fewest[index] * pods for index, pods in beside.items())
        if left < self._fewest[of]:  # most are told so, and sooner
            return 0
        mine = counted.reaches(of, self._requests[of])
        others: defaultdict[int, int] = defaultdict(int)
        for index, pods in beside.items():
            for reach, count in counted.reaches(index, self._requests[index]).items():
                others[reach] += count * pods
        for reach in {*mine, *others}:
            each = _within(mine, reach)
            if each:
                most = min(most, (counted.free_of(reach) - _within(others, reach)) // each)
        return max(0, most)


class _CountedDevices:
    """Devices of a node without pods."""

    def __init__(self, devices: Sequence[Devices]) -> None:
        self._devices = devices
        self.free = sum(each.count for each in devices)
        self._of_selector: Counter[str] = Counter()
        """Selector -> the entries that it matches, as bits."""
        for number, each in enumerate(devices):
            for selector in each.selectors:
                self._of_selector[selector] |= 1 << number
        self._reaches: dict[int, Reaches] = {}

    def reaches(self, of: int, requests: Iterable[DeviceRequest]) -> Reaches:
        """Return the fewest devices that a pod of a class takes."""
        if of not in self._reaches:
            found: Counter[int] = Counter()
            for request in requests:
                reach = 0
                for way in request.alternatives:
                    reach |= self._of_selector[way.selector]
                found[reach] += _fewest(request)
            self._reaches[of] = found
        return self._reaches[of]

    def free_of(self, reach: int) -> int:
        return sum(each.count for number, each in enumerate(self._devices) if reach >> number & 1)


def _fewest(request: DeviceRequest) -> int:
    return min(0 if way.admin_access else 1 if way.all else way.count for way in request.alternatives)


def _within(asked: Reaches, reach: int) -> int:
    return sum(count for entries, count in asked.items() if not entries & ~reach)
