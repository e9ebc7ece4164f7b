"""Whether a node's devices serve a pod's claims, what is left of them then, and why not. One pod at a time, as the
kube-scheduler allocates: what several pods do to each other on one node is for `solver.reduction`.

Semantics are those of the scheduler's DynamicResources plugin (k8s.io/dynamic-resource-allocation/structured): all
claims of a pod are searched together, one request after the other, alternatives in their order, until everything has
its devices; a request for all needs at least one device and every one that matches; a claim has `MOST_PER_CLAIM`
devices at most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, islice

from solver.model.devices import MOST_PER_CLAIM, DeviceAlternative, DeviceClaim, DeviceRequest, Devices
from solver.model.quantities import pluralize

_UNCERTAIN = (
    "its devices there cannot be foreseen (a selector fails on one, a pool is not whole, or planning does not know"
    " them)"
)
MOST_STEPS = 20_000
"""Of a search, after which it counts as failed; the scheduler gives up after some seconds."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices for all claims of a pod."""

    chosen: tuple[tuple[DeviceAlternative, ...], ...]
    """Per claim and request."""
    taken: tuple[tuple[tuple[int, ...], ...], ...]
    """Per claim and request: devices taken of each entry of the node's; none with admin access."""

    def left(self, devices: Sequence[Devices]) -> tuple[Devices, ...]:
        """Return the node's devices afterwards."""
        used = [sum(each) for each in zip(*(request for claim in self.taken for request in claim), strict=True)]
        pairs = zip(devices, used or [0] * len(devices), strict=True)
        return tuple(replace(d, count=d.count - n, taken=d.taken + n) if n else d for d, n in pairs)


class AllocatableDevices:
    """Devices of a node with what searches look up in them: made once for all claims that are looked for there."""

    def __init__(self, devices: Sequence[Devices]) -> None:
        self.devices = devices
        self.uncertain = frozenset[str]().union(*(each.selectors for each in devices if each.uncertain))

    def allocate(self, claims: Sequence[DeviceClaim], most_steps: int | None = None) -> Allocation | None:
        """Return the first allocation found, trying devices in their order; None where there is none, or none was
        found in so many steps."""
        return _Search(self, claims, MOST_STEPS if most_steps is None else most_steps).first()

    def steps_to_allocate(self, claims: Sequence[DeviceClaim], most: int) -> int:
        """Return how many steps the search takes; where it takes more than `most`, more than that."""
        search = _Search(self, claims, min(most, MOST_STEPS))
        search.first()
        return search.steps

    def why_not(self, claims: Sequence[DeviceClaim]) -> str | None:
        """None where the devices serve the claims, otherwise the first reason why not, for people."""
        if not claims or self.allocate(claims) is not None:
            return None
        if not self.devices:
            return "no devices for its resource claims"
        for claim in claims:
            for request in claim.requests:
                reasons = [self._alone(claims, claim, request, each) for each in request.alternatives]
                if all(reasons):
                    return f"request {request.name} of its resource claims: {reasons[0]}"
        return "its resource claims find their devices one by one, but not together"

    @cached_property
    def whole(self) -> DeviceEntries:
        """Return the entries of the node's devices."""
        return DeviceEntries([(each,) for each in self.devices])

    @cached_property
    def parted(self) -> DeviceEntries:
        """Return these with those that are free apart from those that pods have."""
        return DeviceEntries([_parts(each) for each in self.devices])

    def _alone(
        self,
        claims: Sequence[DeviceClaim],
        claim: DeviceClaim,
        request: DeviceRequest,
        asked: DeviceAlternative,
    ) -> str | None:
        """Return why an alternative cannot be had though nothing else is asked for. All claims together are not
        served."""
        alone = replace(claim, requests=(DeviceRequest(request.name, (asked,)),))
        served = [alone] != [*claims] and self.allocate([alone]) is not None
        return None if served else self._why_not_alone(alone, request, asked)

    def _why_not_alone(self, alone: DeviceClaim, request: DeviceRequest, asked: DeviceAlternative) -> str:
        free, taken = self.whole.there(asked.selector)
        least = asked.count if not asked.all else free
        names = ", ".join(alone.match_attributes[n][1] for n in alone.attributes_of(request, asked))
        if asked.selector in self.uncertain:
            return _UNCERTAIN
        if not free + taken:
            return "no device matches"
        if asked.all and taken:
            return f"asks for all devices that match, taken: {taken} of {free + taken}"
        if least > MOST_PER_CLAIM:
            return f"asks for {pluralize(least, 'device')}, a claim can have {MOST_PER_CLAIM}"
        if free < least:
            return f"asks for {pluralize(least, 'device')}, free and matching: {free}"
        return f"asks for {pluralize(least, 'device')} with one value of {names}, and fewer are free"


def allocate(
    devices: Sequence[Devices], claims: Sequence[DeviceClaim], most_steps: int | None = None
) -> Allocation | None:
    """Return the first allocation found (`AllocatableDevices`)."""
    return AllocatableDevices(devices).allocate(claims, most_steps)


def after_pods(devices: tuple[Devices, ...], claims: Iterable[tuple[DeviceClaim, ...]]) -> tuple[Devices, ...]:
    """Return what pods with these claims, one after the other, leave of the devices; one that finds none takes none."""
    for each in claims:
        found = allocate(devices, each) if each else None
        devices = devices if found is None else found.left(devices)
    return devices


def why_not_allocated(devices: Sequence[Devices], claims: Sequence[DeviceClaim]) -> str | None:
    """None where the devices serve the claims, otherwise the first reason why not, for people."""
    return AllocatableDevices(devices).why_not(claims) if claims else None


@dataclass(frozen=True, slots=True)
class _AskedDevices:
    """A request as the search sees it."""

    claim: int
    request: DeviceRequest


class _UncertainError(Exception):
    """What is not known decides what the pod gets."""


def _parts(devices: Devices) -> tuple[Devices, ...]:
    """Return those that are free and those that pods have, between which admin access may choose."""
    if not devices.count or not devices.taken:
        return (devices,)
    return replace(devices, taken=0), replace(devices, count=0)


class DeviceEntries:
    """What a search chooses from."""

    def __init__(self, parts: Sequence[tuple[Devices, ...]]) -> None:
        self.parts = [len(each) for each in parts]
        """Of each entry of the node's devices."""
        self.devices = [part for each in parts for part in each]
        self.values = [dict(each.attributes) for each in self.devices]
        self._matching: dict[str, Sequence[int]] = {}
        self._there: dict[str, tuple[int, int]] = {}

    def matching(self, selector: str) -> Sequence[int]:
        if selector not in self._matching:
            found = [number for number, each in enumerate(self.devices) if selector in each.selectors]
            self._matching[selector] = found
        return self._matching[selector]

    def there(self, selector: str) -> tuple[int, int]:
        """Return how many devices match, those that are free and those that pods have."""
        if selector not in self._there:
            mine = [self.devices[number] for number in self.matching(selector)]
            self._there[selector] = sum(each.count for each in mine), sum(each.taken for each in mine)
        return self._there[selector]


class _OfferedDevices:
    """Entries that devices may be chosen from for one alternative of a request, and how many of each."""

    def __init__(self, offered: Sequence[tuple[int, int]], values: Sequence[tuple[str, ...]] = ()) -> None:
        """With `values`, of each entry, all that is chosen has those of the first one."""
        self.offered, self.values = offered, values
        self.left = [*accumulate((spare for _, spare in reversed(offered)), initial=0)][::-1]
        """By position: all that this one and those after it offer."""
        alike: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
        positions: list[int] = []
        for each, mine in zip(offered, values, strict=False):
            alike[mine].append(each)
            positions.append(len(alike[mine]))
        blocks = {mine: _OfferedDevices(block) for mine, block in alike.items()}
        self._beyond = [(blocks[mine], position) for mine, position in zip(values, positions, strict=True)]

    def beyond(self, position: int) -> tuple[_OfferedDevices, int]:
        """Return what may be chosen once devices of one of the entries are, and the first position there."""
        return self._beyond[position] if self._beyond else (self, position + 1)


class _Search:
    def __init__(self, there: AllocatableDevices, claims: Sequence[DeviceClaim], most: int = MOST_STEPS) -> None:
        self._claims, self._most = claims, most
        self._asked = [
            _AskedDevices(number, request) for number, claim in enumerate(claims) for request in claim.requests
        ]
        self._uncertain = there.uncertain
        self._in_every_order = bool(self._uncertain) and any(
            way.selector in self._uncertain for each in self._asked for way in each.request.alternatives
        )
        """Whether every choice is looked at, for one may lead to what is not known, and its order is not known."""
        self._entries = there.parted if self._in_every_order else there.whole
        self._devices = self._entries.devices
        self._own = [0] * len(self._devices)
        """Free ones that the pod has, or has admin access to."""
        self._of_claim = [[0] * len(self._devices) for _ in claims]
        """Which each claim has, with those that it has admin access to. Another claim may have the latter, too."""
        self._per_claim = [0] * len(claims)
        self._bound: dict[tuple[int, int], str] = {}
        """(claim, constraint) -> the value of the devices chosen."""
        self._found: list[tuple[DeviceAlternative, tuple[int, ...]]] = []
        self._first: list[tuple[DeviceAlternative, tuple[int, ...]]] = []
        self._ways = 0
        """Of serving all that is asked for, so far."""
        self.steps = 0

    def first(self) -> Allocation | None:
        # What is not there at all is not to be looked for after all ways of meeting the requests before it.
        if not all(any(map(self._is_there, each.request.alternatives)) for each in self._asked):
            return None
        everything = [each for each in self._devices if not each.uncertain]
        if any(claim.ends_search(everything) for claim in self._claims) or self._asks_for_uncertain():
            return None
        try:
            self._request(0)
        except _UncertainError:
            return None
        if not self._ways or (self._in_every_order and self.steps > self._most):
            return None
        numbered = list(zip(self._asked, self._first, strict=True))
        per_claim = [[found for asked, found in numbered if asked.claim == n] for n in range(len(self._claims))]
        return Allocation(
            tuple(tuple(alternative for alternative, _ in found) for found in per_claim),
            tuple(tuple(self._of_entries(taken) for _, taken in found) for found in per_claim),
        )

    def _of_entries(self, taken: Sequence[int]) -> tuple[int, ...]:
        each = iter(taken)
        return tuple(sum(islice(each, parts)) for parts in self._entries.parts)

    def _asks_for_uncertain(self) -> bool:
        """Return whether something asks for all of what is not known: the scheduler looks there first."""
        ways = (way for each in self._asked for way in each.request.alternatives)
        return any(way.all and way.selector in self._uncertain for way in ways)

    def _is_there(self, asked: DeviceAlternative) -> bool:
        """Return whether there are so many devices, if nothing else is asked for."""
        free, taken = self._entries.there(asked.selector)
        there = free + taken if asked.admin_access else free
        return bool(there == free + taken and there) if asked.all else 0 < asked.count <= there

    def _request(self, position: int) -> bool:
        """Serve this request and those after it; return whether the search is over."""
        if position == len(self._asked):
            self._first = self._first or [*self._found]
            self._ways += 1
            return not self._in_every_order
        asked, before = self._asked[position], self._ways
        for alternative in asked.request.alternatives:
            matching = self._entries.matching(alternative.selector)
            count = alternative.count
            if alternative.all:
                if not alternative.admin_access and any(self._devices[n].taken or self._own[n] for n in matching):
                    continue
                count = sum(self._entries.there(alternative.selector))
            if count and self._per_claim[asked.claim] + count <= MOST_PER_CLAIM:
                self._per_claim[asked.claim] += count
                offered = self._offered(asked, alternative, matching)
                if self._devices_of(position, alternative, offered, (0, count), [0] * len(self._devices)):
                    return True
                self._per_claim[asked.claim] -= count
            if self._ways > before:
                return False
            if alternative.selector in self._uncertain:
                raise _UncertainError
        return False

    def _offered(
        self, asked: _AskedDevices, alternative: DeviceAlternative, matching: Sequence[int]
    ) -> _OfferedDevices:
        """Return what can still be chosen; the same device is never chosen twice for a claim."""
        mine = self._of(asked)
        constraints = self._constraints(asked, alternative)
        found = [(entry, spare) for entry in matching if (spare := self._spare(entry, alternative, mine)) > 0]
        if not constraints:
            return _OfferedDevices(found)
        fitting = [(each, values) for each in found if (values := self._values_of(each[0], constraints))]
        return _OfferedDevices([each for each, _ in fitting], [values for _, values in fitting])

    def _devices_of(
        self,
        position: int,
        asked: DeviceAlternative,
        offered: _OfferedDevices,
        more: tuple[int, int],
        taken: list[int],
    ) -> bool:
        """Choose `more` devices, from a position of those that are offered on so many, and go on."""
        self.steps += 1
        if self.steps > self._most:
            return False
        first, count = more
        if not count:
            self._found.append((asked, tuple([0] * len(taken) if asked.admin_access else taken)))
            if self._request(position + 1):
                return True
            self._found.pop()
            return False
        mine = self._of(self._asked[position])
        for place in range(first, len(offered.offered)):
            if offered.left[place] < count:  # with all that are left, too: most searches that fail do so here, at once
                break
            entry, spare = offered.offered[place]
            others, then = offered.beyond(place)
            bound = self._bind(position, asked, offered.values[place]) if offered.values else ()
            for number in range(min(count, spare), max(0, count - offered.left[place + 1] - 1), -1):
                own = self._more_own(entry, number, mine) if asked.admin_access else number
                self._own[entry] += own
                mine[entry] += number
                taken[entry] += number
                if self._devices_of(position, asked, others, (then, count - number), taken):
                    return True
                taken[entry] -= number
                mine[entry] -= number
                self._own[entry] -= own
            for each in bound:
                del self._bound[each]
        return False

    def _of(self, asked: _AskedDevices) -> list[int]:
        """Return what the claim has. Of what is not known no order of claims is."""
        return self._of_claim[0 if self._in_every_order else asked.claim]

    def _more_own(self, entry: int, number: int, mine: Sequence[int]) -> int:
        """Return how many more devices are kept from other claims with admin access to so many: it is to those first
        that pods have already."""
        return max(0, number - (self._devices[entry].taken + self._own[entry] - mine[entry]))

    def _spare(self, entry: int, asked: DeviceAlternative, mine: Sequence[int]) -> int:
        """Return how many devices of an entry can still be chosen."""
        each = self._devices[entry]
        return each.count + each.taken - mine[entry] if asked.admin_access else each.count - self._own[entry]

    def _constraints(
        self, asked: _AskedDevices, alternative: DeviceAlternative
    ) -> Sequence[tuple[tuple[int, int], str]]:
        """Return the constraints that devices of the alternative must keep, and of which attribute."""
        claim = self._claims[asked.claim]
        numbers = claim.attributes_of(asked.request, alternative) if claim.match_attributes else ()
        return [((asked.claim, number), claim.match_attributes[number][1]) for number in numbers]

    def _values_of(self, entry: int, constraints: Sequence[tuple[tuple[int, int], str]]) -> tuple[str, ...]:
        """Return the values that devices of an entry have for each constraint; none where they break one."""
        mine, found = self._entries.values[entry], list[str]()
        for constraint, attribute in constraints:
            value = mine.get(attribute)
            if value is None or self._bound.get(constraint, value) != value:
                return ()
            found.append(value)
        return tuple(found)

    def _bind(self, position: int, asked: DeviceAlternative, values: Sequence[str]) -> Sequence[tuple[int, int]]:
        """Have all further devices keep these values; return the constraints that had none before."""
        bound = zip(self._constraints(self._asked[position], asked), values, strict=True)
        new = {constraint: value for (constraint, _), value in bound if constraint not in self._bound}
        self._bound |= new
        return tuple(new)
