"""Claims on the devices of one node as sums: what its pods may ask for together, whichever of them comes first and
whichever devices the scheduler gives it. Nothing here knows of rows or places; `device_rows` applies it to them.

A *demand* is a number of devices out of a set of them. Where every demand that touches a set lies inside it, the sum of
all is bounded by its size (Hall's theorem), and that is all there is. Where others reach into the set from outside, a
demand finds its devices only if these leave them: a bound that holds where such a pod is, and nowhere else. Demands
whose devices must share the value of an attribute see *blocks* of devices: all blocks together have so many slots for
them, and every other pod that reaches into the blocks may spoil as many as it has devices there, fewer where its own
are in one block.

Of several alternatives a pod has the first that the node's devices serve as they are. What no sum describes is kept off
such nodes. Semantics: docs/reference/constraints.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from solver.model import DeviceAlternative, DeviceClaim, DeviceRequest, Devices
from solver.model.allocation import AllocatableDevices
from solver.model.devices import Claims

_MOST_OVERLAPPING = 4
"""Demands of one pod that overlap each other without being equal; pods with more are kept off."""

Entries = frozenset[int]
"""Positions in the devices of a node."""
_Demand = tuple[Entries, int]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DeviceBound:
    """On a node with any of `carriers`, the weights of its pods add up to `most` at most. Pods are known by the number
    of their claims."""

    weights: Ints
    """Per number; 0 also where the node does not serve them."""
    most: int
    carriers: Bools
    first: int
    """Of the carriers."""
    always: bool
    """Also on a node without carriers."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What a pod asks for that has nothing to do with what else it asks for. Without `blocks` one demand, or several
    that overlap; otherwise demands that do not overlap, met from one block."""

    demands: tuple[_Demand, ...]
    blocks: tuple[Entries, ...] = ()

    @property
    def reach(self) -> Entries:
        return frozenset(entry for entries, _ in self.demands for entry in entries)


def is_planned(there: AllocatableDevices, claims: Claims) -> bool:
    """Return whether a pod with the claims may be planned onto an otherwise empty node with these devices."""
    return _parts(there, claims) is not None


@dataclass(frozen=True, slots=True)
class _Ask:
    """What a pod asks for out of some devices: a part that is met from one block, or demands that it is told apart by
    what they reach together."""

    of: _Part | Entries
    number: int
    there: int


def bounds_on(devices: tuple[Devices, ...], claims: Sequence[Claims]) -> tuple[frozenset[int], list[DeviceBound]]:
    """Return which of the claims a node with these devices serves, and the bounds on pods that have them there."""
    there, selectors = AllocatableDevices(devices), frozenset[str]().union(*(each.selectors for each in devices))
    parts: dict[int, tuple[_Part, ...]] = {}
    for number, each in enumerate(claims):
        requests = (request for claim in each for request in claim.requests)
        match = all(any(way.selector in selectors for way in request.alternatives) for request in requests)
        mine = _parts(there, each) if match else None
        if mine is not None:
            parts[number] = mine
    size = [each.count for each in devices]
    asks = [(number, ask) for number, mine in parts.items() for ask in _asks(mine, size)]
    takes = _Takes(parts, size, len(claims))
    found: dict[tuple[bytes, int, bool], DeviceBound] = {}
    of_asks = list(dict.fromkeys(ask.of for _, ask in asks))
    taken = {of: (weights, always) for of, weights, always in takes.of_all(of_asks)}
    for number, ask in asks:
        weights, always = taken[ask.of]
        spare = 0 if always else int(weights[number]) - ask.number
        key = weights.tobytes(), ask.there + spare, always
        if key not in found:
            found[key] = DeviceBound(weights, key[1], np.zeros(len(claims), dtype=bool), number, always)
        found[key].carriers[number] = True

    def is_always(bound: DeviceBound) -> bool:
        return bound.always or bool((bound.carriers | (bound.weights == 0)).all())

    return frozenset(parts), [replace(each, always=is_always(each)) for each in found.values()]


def _asks(mine: Sequence[_Part], size: Sequence[int]) -> Iterator[_Ask]:
    for part, copies in Counter(mine).items():
        if part.blocks:
            slots = sum(min(_sum(size, entries & block) // n for entries, n in part.demands) for block in part.blocks)
            yield _Ask(part, copies, slots)
            continue
        for number in range(1, len(part.demands) + 1):
            for some in combinations(part.demands, number):
                reach = _Part(some).reach
                yield _Ask(reach, sum(n for _, n in some), _sum(size, reach))


def _sum(size: Sequence[int], entries: Entries) -> int:
    return sum(size[entry] for entry in entries)


_AT_ONCE = 256


class _Takes:
    """The most that pods can take of some devices, for all claims at once."""

    def __init__(self, parts: Mapping[int, Sequence[_Part]], size: Sequence[int], claims: int) -> None:
        self._claims, self._size = claims, np.array(size, dtype=np.float64)
        served = {number: mine for number, mine in parts.items() if mine}
        self._parts = [part for mine in served.values() for part in mine]
        demands = [demand for part in self._parts for demand in part.demands]
        self._numbers = np.array(list(served), dtype=np.int64)
        self._of_numbers = _starts([len(mine) for mine in served.values()])
        self._of_parts = _starts([len(part.demands) for part in self._parts])
        self._entries = self._table([entries for entries, _ in demands])
        self._counts = np.array([count for _, count in demands], dtype=np.float64)
        self._blocks = self._table([block for part in self._parts for block in part.blocks])
        self._with_blocks = np.array([bool(part.blocks) for part in self._parts], dtype=bool)
        self._of_blocks = _starts([len(part.blocks) for part in self._parts if part.blocks])

    def of_all(self, asked: Sequence[_Part | Entries]) -> Iterator[tuple[_Part | Entries, Ints, bool]]:
        """Yield for each the weights of all claims, and whether none reaches into it from outside."""
        reaches = [each for each in asked if not isinstance(each, _Part)]
        for start in range(0, len(reaches), _AT_ONCE):
            some = reaches[start : start + _AT_ONCE]
            table = self._table(some)
            inside = self._entries @ table.T
            always = ((inside == 0) | (inside == self._entries.sum(axis=1)[:, None])).all(axis=0)
            weights = self._of_claims(self._taken(table))
            yield from ((each, weights[n], bool(always[n])) for n, each in enumerate(some))
        for each in asked:
            if isinstance(each, _Part):
                yield each, self._of_claims(self._spoiled(each)[:, None])[0], False

    def _table(self, sets: Sequence[Entries]) -> Floats:
        """Return sets x entries."""
        found = np.zeros((len(sets), len(self._size)))
        rows = np.repeat(np.arange(len(sets)), [len(each) for each in sets])
        found[rows, np.array([entry for each in sets for entry in each], dtype=np.int64)] = 1
        return found

    def _taken(self, sets: Floats) -> Floats:
        """Return parts x sets: the most devices of each that a part of a pod can take."""
        most = np.minimum(self._counts[:, None], self._entries @ (sets * self._size).T)
        return np.add.reduceat(most, self._of_parts)

    def _spoiled(self, mine: _Part) -> Floats:
        """Return per part the most slots that it can take from another, or spoil for it."""
        taken = self._taken(self._table([mine.reach, *(entries for entries, _ in mine.demands)]))
        # Of a part whose own blocks are each in one of these: no more than its devices there are enough for.
        counts = np.array([count for _, count in mine.demands])
        slots = np.ceil(taken[:, 1:] / counts).max(axis=1)
        touched = ((self._blocks @ self._table(mine.blocks).T) > 0).sum(axis=1)
        within = np.zeros(len(self._parts), dtype=bool)
        within[self._with_blocks] = np.maximum.reduceat(touched, self._of_blocks) <= 1
        return np.where(within, slots, taken[:, 0])

    def _of_claims(self, taken: Floats) -> Ints:
        """Return sets x claims."""
        found = np.zeros((taken.shape[1], self._claims), dtype=np.int64)
        found[:, self._numbers] = np.add.reduceat(taken, self._of_numbers).T
        return found


def _starts(lengths: Sequence[int]) -> Ints:
    """Return where each of several sequences begins, one after the other."""
    return np.cumsum([0, *lengths[:-1]], dtype=np.int64)


# What a pod asks of a node


def nameless(claims: Claims) -> Claims:
    """Return the same claims with numbers for names: what requests are called tells no pods apart."""
    return tuple(map(_nameless, claims))


def _nameless(claim: DeviceClaim) -> DeviceClaim:
    numbers: dict[str, str] = {}
    requests = []
    for number, request in enumerate(claim.requests):
        numbers[request.name] = f"{number}"
        numbers |= {f"{request.name}/{way.name}": f"{number}/{n}" for n, way in enumerate(request.alternatives)}
        ways = (replace(way, name=f"{n}") for n, way in enumerate(request.alternatives))
        requests.append(DeviceRequest(f"{number}", tuple(ways)))
    constraints = ((frozenset(numbers.get(name, "") for name in names), a) for names, a in claim.match_attributes)
    return DeviceClaim(tuple(requests), tuple(constraints))


@dataclass(slots=True)
class _Request:
    claim: int
    request: DeviceRequest
    chosen: DeviceAlternative
    constraints: tuple[int, ...]
    entries: Entries
    count: int


def _parts(there: AllocatableDevices, claims: Claims) -> tuple[_Part, ...] | None:
    """Return what a pod with the claims asks of an otherwise empty node; None where it is not served there, or what it
    asks for is more than sums describe."""
    found = there.allocate(claims)
    if found is None:
        return None
    devices = there.devices
    requests = [
        _request(there, claims[number], number, request, alternative)
        for number, alternatives in enumerate(found.chosen)
        for request, alternative in zip(claims[number].requests, alternatives, strict=True)
    ]
    if _depends_on_earlier(devices, claims, requests) or not _shares(devices, requests):
        return None
    if there.uncertain and _may_meet_the_unknown(there.uncertain, requests):
        return None
    requests = [each for each in requests if not each.chosen.admin_access]
    bound = _blocks(there, claims, requests)
    if bound is None:
        return None
    parts = [*bound[0], *_overlapping(bound[1])]
    for one, other in combinations(parts, 2):
        if not one.reach.isdisjoint(other.reach) and not (one.blocks and one == other):
            return None
    fine = all(len(part.demands) <= _MOST_OVERLAPPING for part in parts if not part.blocks)
    return tuple(parts) if fine else None


def _request(
    available: AllocatableDevices, claim: DeviceClaim, number: int, request: DeviceRequest, chosen: DeviceAlternative
) -> _Request:
    constraints = claim.attributes_of(request, chosen)
    needed = {claim.match_attributes[n][1] for n in constraints}
    devices, values = available.devices, available.whole.values
    entries = frozenset(
        entry
        for entry in available.whole.matching(chosen.selector)
        if (devices[entry].count or (chosen.admin_access and devices[entry].taken)) and needed <= values[entry].keys()
    )
    there = sum(devices[n].count + (devices[n].taken if chosen.admin_access else 0) for n in entries)
    return _Request(number, request, chosen, constraints, entries, there if chosen.all else chosen.count)


def _depends_on_earlier(devices: Sequence[Devices], claims: Claims, requests: Sequence[_Request]) -> bool:
    """Return whether the alternative that a request gets depends on the devices of a request before it."""
    for position, each in enumerate(requests):
        if len(each.request.alternatives) == 1:
            continue
        wanted = {alternative.selector for alternative in each.request.alternatives}
        mine = frozenset(n for n, entry in enumerate(devices) if not wanted.isdisjoint(entry.selectors))
        names = {n for a in each.request.alternatives for n in claims[each.claim].attributes_of(each.request, a)}
        for earlier in requests[:position]:
            same_claim = earlier.claim == each.claim
            if not mine.isdisjoint(earlier.entries) or (same_claim and not names.isdisjoint(earlier.constraints)):
                return True
    return False


def _shares(devices: Sequence[Devices], requests: Sequence[_Request]) -> bool:
    """Return whether requests with admin access find their devices whatever other requests of the pod have. Nobody
    else is in their way."""
    for each in requests:
        if each.chosen.admin_access:
            there = sum(devices[n].count + devices[n].taken for n in each.entries)
            own = sum(other.count for other in requests if not other.entries.isdisjoint(each.entries))
            if there < own or each.constraints:
                return False
    return True


def _may_meet_the_unknown(unknown: AbstractSet[str], requests: Sequence[_Request]) -> bool:
    """Return whether another request of the pod may leave one none of the devices that are known: from those that are
    not the scheduler does not come back."""
    return any(
        not one.entries.isdisjoint(other.entries)
        or (one.claim == other.claim and not set(one.constraints).isdisjoint(other.constraints))
        for one in requests
        if any(way.selector in unknown for way in one.request.alternatives)
        for other in requests
        if other is not one
    )


def _blocks(
    there: AllocatableDevices, claims: Claims, requests: Sequence[_Request]
) -> tuple[list[_Part], list[_Demand]] | None:
    """Return the parts that must be met from one block each, and the demands of all other requests; None where what
    must be in one block is more than one label of devices tells."""
    values = there.whole.values
    groups: dict[tuple[int, frozenset[int]], list[str]] = defaultdict(list)
    for number, claim in enumerate(claims):
        for constraint, (_, attribute) in enumerate(claim.match_attributes):
            members = [n for n, r in enumerate(requests) if r.claim == number and constraint in r.constraints]
            if len({values[entry][attribute] for n in members for entry in requests[n].entries}) > 1:
                groups[number, frozenset(members)].append(attribute)
    grouped = [member for _, members in groups for member in members]
    if len(grouped) > len(set(grouped)):
        return None
    parts = []
    for (_, together), attributes in groups.items():
        demands = _merged([(requests[n].entries, requests[n].count) for n in sorted(together)])
        if any(not one.isdisjoint(other) for (one, _), (other, _) in combinations(demands, 2)):
            return None
        by_label: dict[tuple[str, ...], set[int]] = defaultdict(set)
        for entry in (entry for entries, _ in demands for entry in entries):
            by_label[tuple(values[entry][attribute] for attribute in attributes)].add(entry)
        parts.append(_Part(demands, tuple(frozenset(block) for _, block in sorted(by_label.items()))))
    return parts, [(r.entries, r.count) for n, r in enumerate(requests) if n not in set(grouped)]


def _merged(demands: Sequence[_Demand]) -> tuple[_Demand, ...]:
    """Return the demands with those of equal sets added up."""
    total: Counter[Entries] = Counter()
    for entries, count in demands:
        total[entries] += count
    return tuple(sorted(total.items(), key=lambda each: sorted(each[0])))


def _overlapping(demands: Sequence[_Demand]) -> Iterator[_Part]:
    """Yield the demands in parts that do not reach into each other."""
    groups: list[list[_Demand]] = []
    for entries, count in _merged(demands):
        touching = [group for group in groups if any(not entries.isdisjoint(other) for other, _ in group)]
        merged = [(entries, count), *(demand for group in touching for demand in group)]
        groups = [group for group in groups if group not in touching] + [merged]
    yield from (_Part(_merged(group)) for group in groups)
