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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from solver.model import DeviceAlternative, DeviceClaim, DeviceRequest, Devices
from solver.model.allocation import allocate
from solver.model.devices import Claims

_MOST_OVERLAPPING = 4
"""Demands of one pod that overlap each other without being equal; pods with more are kept off."""

Entries = frozenset[int]
"""Positions in the devices of a node."""
_Demand = tuple[Entries, int]


@dataclass(frozen=True, slots=True)
class DeviceBound:
    """On a node with any of `carriers`, the weights of its pods add up to `most` at most; None for all nodes. Pods are
    known by the number of their claims."""

    weights: Mapping[int, int]
    most: int
    carriers: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class _Part:
    """What a pod asks for that has nothing to do with what else it asks for. Without `blocks` one demand, or several
    that overlap; otherwise demands that do not overlap, met from one block."""

    demands: tuple[_Demand, ...]
    blocks: tuple[Entries, ...] = ()

    @property
    def reach(self) -> Entries:
        return frozenset(entry for entries, _ in self.demands for entry in entries)


def is_planned(devices: tuple[Devices, ...], claims: Claims) -> bool:
    """Return whether a pod with the claims may be planned onto an otherwise empty node with these devices."""
    return _parts(devices, claims) is not None


@dataclass(frozen=True, slots=True)
class _Ask:
    """What a pod asks for out of some devices."""

    reach: Entries
    number: int
    there: int
    weigh: Callable[[_Part], int]
    """The most that any part of a pod may take of what is there."""
    blocks: bool


def bounds_on(devices: tuple[Devices, ...], claims: Sequence[Claims]) -> tuple[frozenset[int], list[DeviceBound]]:
    """Return which of the claims a node with these devices serves, and the bounds on pods that have them there."""
    parts: dict[int, tuple[_Part, ...]] = {}
    for number, each in enumerate(claims):
        mine = _parts(devices, each)
        if mine is not None:
            parts[number] = mine
    found: dict[tuple[tuple[tuple[int, int], ...], int, bool], set[int]] = defaultdict(set)
    size = [each.count for each in devices]
    for number, mine in parts.items():
        for ask in _asks(mine, size):
            weights = {n: weight for n, theirs in parts.items() if (weight := sum(map(ask.weigh, theirs)))}
            always = not ask.blocks and all(
                entries <= ask.reach or entries.isdisjoint(ask.reach)
                for n in weights
                for part in parts[n]
                for entries, _ in part.demands
            )
            spare = 0 if always else weights[number] - ask.number
            found[tuple(weights.items()), ask.there + spare, always].add(number)
    bounds = []
    for (weighed, most, always), carriers in found.items():
        everybody = always or len(carriers) == len(weighed)
        bounds.append(DeviceBound(dict(weighed), most, None if everybody else frozenset(carriers)))
    return frozenset(parts), bounds


def _asks(mine: Sequence[_Part], size: Sequence[int]) -> Iterator[_Ask]:
    for part, copies in Counter(mine).items():
        if part.blocks:
            slots = sum(min(_sum(size, entries & block) // n for entries, n in part.demands) for block in part.blocks)
            yield _Ask(part.reach, copies, slots, partial(_spoils, mine=part, size=size), blocks=True)
            continue
        for number in range(1, len(part.demands) + 1):
            for some in combinations(part.demands, number):
                reach = _Part(some).reach
                takes = partial(_takes, reach=reach, size=size)
                yield _Ask(reach, sum(n for _, n in some), _sum(size, reach), takes, blocks=False)


def _sum(size: Sequence[int], entries: Entries) -> int:
    return sum(size[entry] for entry in entries)


def _takes(other: _Part, reach: Entries, size: Sequence[int]) -> int:
    """Return the most devices among `reach` that a part of a pod can take."""
    return sum(min(count, _sum(size, entries & reach)) for entries, count in other.demands)


def _spoils(other: _Part, mine: _Part, size: Sequence[int]) -> int:
    """Return the most slots that a part of a pod can take from another, or spoil for it."""
    if other.reach.isdisjoint(mine.reach):
        return 0
    within = [sum(not block.isdisjoint(theirs) for block in mine.blocks) for theirs in other.blocks]
    if not within or max(within) > 1:
        return _takes(other, mine.reach, size)
    return max(-(-_takes(other, entries, size) // count) for entries, count in mine.demands)


# What a pod asks of a node


@dataclass(slots=True)
class _Request:
    claim: int
    request: DeviceRequest
    chosen: DeviceAlternative
    constraints: tuple[int, ...]
    entries: Entries
    count: int


def _parts(devices: tuple[Devices, ...], claims: Claims) -> tuple[_Part, ...] | None:
    """Return what a pod with the claims asks of an otherwise empty node; None where it is not served there, or what it
    asks for is more than sums describe."""
    found = allocate(devices, claims)
    if found is None:
        return None
    requests = [
        _request(devices, claims[number], number, request, alternative)
        for number, alternatives in enumerate(found.chosen)
        for request, alternative in zip(claims[number].requests, alternatives, strict=True)
    ]
    if _depends_on_earlier(devices, claims, requests) or not _shares(devices, requests):
        return None
    requests = [each for each in requests if not each.chosen.admin_access]
    bound = _blocks(devices, claims, requests)
    if bound is None:
        return None
    parts = [*bound[0], *_overlapping(bound[1])]
    for one, other in combinations(parts, 2):
        if not one.reach.isdisjoint(other.reach) and not (one.blocks and one == other):
            return None
    fine = all(len(part.demands) <= _MOST_OVERLAPPING for part in parts if not part.blocks)
    return tuple(parts) if fine else None


def _request(
    devices: Sequence[Devices], claim: DeviceClaim, number: int, request: DeviceRequest, chosen: DeviceAlternative
) -> _Request:
    constraints = claim.attributes_of(request, chosen)
    needed = {claim.match_attributes[n][1] for n in constraints}
    entries = frozenset(
        entry
        for entry, each in enumerate(devices)
        if chosen.selector in each.selectors
        and (each.count or (chosen.admin_access and each.taken))
        and needed <= dict(each.attributes).keys()
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


def _blocks(
    devices: Sequence[Devices], claims: Claims, requests: Sequence[_Request]
) -> tuple[list[_Part], list[_Demand]] | None:
    """Return the parts that must be met from one block each, and the demands of all other requests; None where what
    must be in one block is more than one label of devices tells."""
    values = [dict(each.attributes) for each in devices]
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
