"""Whether a node's devices serve a pod's claims, what is left of them then, and why not. One pod at a time, as the
kube-scheduler allocates: what several pods do to each other on one node is for `solver.reduction`.

Semantics are those of the scheduler's DynamicResources plugin (k8s.io/dynamic-resource-allocation/structured): all
claims of a pod are searched together, one request after the other, alternatives in their order, until everything has
its devices; a request for all needs at least one device and every one that matches; a claim has `MOST_PER_CLAIM`
devices at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

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


def allocate(
    devices: Sequence[Devices], claims: Sequence[DeviceClaim], most_steps: int | None = None
) -> Allocation | None:
    """Return the first allocation found, trying devices in their order; None where there is none, or none was found in
    so many steps."""
    return _Search(devices, claims, MOST_STEPS if most_steps is None else most_steps).first()


def steps_to_allocate(devices: Sequence[Devices], claims: Sequence[DeviceClaim], most: int) -> int:
    """Return how many steps the search takes; where it takes more than `most`, more than that."""
    search = _Search(devices, claims, min(most, MOST_STEPS))
    search.first()
    return search.steps


def after_pods(devices: tuple[Devices, ...], claims: Iterable[tuple[DeviceClaim, ...]]) -> tuple[Devices, ...]:
    """Return what pods with these claims, one after the other, leave of the devices; one that finds none takes none."""
    for each in claims:
        found = allocate(devices, each) if each else None
        devices = devices if found is None else found.left(devices)
    return devices


def why_not_allocated(devices: Sequence[Devices], claims: Sequence[DeviceClaim]) -> str | None:
    """None where the devices serve the claims, otherwise the first reason why not, for people."""
    if not claims or allocate(devices, claims) is not None:
        return None
    if not devices:
        return "no devices for its resource claims"
    for claim in claims:
        for request in claim.requests:
            reasons = [_alone(devices, claims, claim, request, each) for each in request.alternatives]
            if all(reasons):
                return f"request {request.name} of its resource claims: {reasons[0]}"
    return "its resource claims find their devices one by one, but not together"


def _alone(
    devices: Sequence[Devices],
    claims: Sequence[DeviceClaim],
    claim: DeviceClaim,
    request: DeviceRequest,
    asked: DeviceAlternative,
) -> str | None:
    """Return why an alternative cannot be had though nothing else is asked for. All claims together are not served."""
    alone = replace(claim, requests=(DeviceRequest(request.name, (asked,)),))
    served = [alone] != [*claims] and allocate(devices, [alone]) is not None
    return None if served else _why_not_alone(devices, alone, request, asked)


def _why_not_alone(
    devices: Sequence[Devices], alone: DeviceClaim, request: DeviceRequest, asked: DeviceAlternative
) -> str:
    matching = [each for each in devices if asked.selector in each.selectors]
    free, taken = sum(each.count for each in matching), sum(each.taken for each in matching)
    least = asked.count if not asked.all else free
    names = ", ".join(alone.match_attributes[n][1] for n in alone.attributes_of(request, asked))
    if any(each.uncertain for each in matching):
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


class _Search:
    def __init__(self, devices: Sequence[Devices], claims: Sequence[DeviceClaim], most: int = MOST_STEPS) -> None:
        self._claims, self._most = claims, most
        self._asked = [
            _AskedDevices(number, request) for number, claim in enumerate(claims) for request in claim.requests
        ]
        self._uncertain = frozenset[str]().union(*(each.selectors for each in devices if each.uncertain))
        self._in_every_order = any(
            way.selector in self._uncertain for each in self._asked for way in each.request.alternatives
        )
        """Whether every choice is looked at, for one may lead to what is not known, and its order is not known."""
        parts = [_parts(each) if self._in_every_order else (each,) for each in devices]
        self._parts = [len(each) for each in parts]
        """Of each entry of the node's devices."""
        self._devices = [part for each in parts for part in each]
        self._values = [dict(each.attributes) for each in self._devices]
        self._own = [0] * len(self._devices)
        """Taken by the pod itself."""
        self._shared = [0] * len(self._devices)
        """Which the pod has admin access to."""
        self._per_claim = [0] * len(claims)
        self._bound: dict[tuple[int, int], list[str]] = {}
        """(claim, constraint) -> the values of the devices chosen."""
        self._found: list[tuple[DeviceAlternative, tuple[int, ...]]] = []
        self._first: list[tuple[DeviceAlternative, tuple[int, ...]]] = []
        self._ways = 0
        """Of serving all that is asked for, so far."""
        self.steps = 0

    def first(self) -> Allocation | None:
        everything = [each for each in self._devices if not each.uncertain]
        if any(claim.ends_search(everything) for claim in self._claims) or self._asks_for_uncertain():
            return None
        # What is not there at all is not to be looked for after all ways of meeting the requests before it.
        if not all(any(map(self._is_there, each.request.alternatives)) for each in self._asked):
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
        return tuple(sum(islice(each, parts)) for parts in self._parts)

    def _asks_for_uncertain(self) -> bool:
        """Return whether something asks for all of what is not known: the scheduler looks there first."""
        ways = (way for each in self._asked for way in each.request.alternatives)
        return any(way.all and way.selector in self._uncertain for way in ways)

    def _is_there(self, asked: DeviceAlternative) -> bool:
        """Return whether there are so many devices, if nothing else is asked for."""
        matching = [each for each in self._devices if asked.selector in each.selectors]
        taken, free = sum(each.taken for each in matching), sum(each.count for each in matching)
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
            matching = [n for n, each in enumerate(self._devices) if alternative.selector in each.selectors]
            count = alternative.count
            if alternative.all:
                if not alternative.admin_access and any(self._devices[n].taken or self._own[n] for n in matching):
                    continue
                count = sum(self._devices[n].count + self._devices[n].taken for n in matching)
            if count and self._per_claim[asked.claim] + count <= MOST_PER_CLAIM:
                self._per_claim[asked.claim] += count
                if self._devices_of(position, alternative, matching, count, [0] * len(self._devices)):
                    return True
                self._per_claim[asked.claim] -= count
            if self._ways > before:
                return False
            if alternative.selector in self._uncertain:
                raise _UncertainError
        return False

    def _devices_of(
        self, position: int, asked: DeviceAlternative, matching: Sequence[int], count: int, taken: list[int]
    ) -> bool:
        """Choose `count` more devices, from the first entry of `matching` or later ones, and go on."""
        self.steps += 1
        if self.steps > self._most:
            return False
        if not count:
            self._found.append((asked, tuple([0] * len(taken) if asked.admin_access else taken)))
            if self._request(position + 1):
                return True
            self._found.pop()
            return False
        bound = [self._bindings(position, asked, entry) for entry in matching]
        spare = [0 if b is None else self._spare(entry, asked) for entry, b in zip(matching, bound, strict=True)]
        there = sum(spare)
        for place, (entry, with_it) in enumerate(zip(matching, bound, strict=True)):
            if there < count:  # with all that are left, too: most searches that fail do so here, at once
                break
            there -= spare[place]
            for number in range(min(count, spare[place]), max(0, count - there - 1), -1):
                self._use(entry, asked, number, with_it or ())
                taken[entry] += number
                if self._devices_of(position, asked, matching[place + 1 :], count - number, taken):
                    return True
                taken[entry] -= number
                self._use(entry, asked, -number, with_it or ())
        return False

    def _spare(self, entry: int, asked: DeviceAlternative) -> int:
        """Return how many devices of an entry can still be chosen; the same one is never chosen twice for a pod."""
        each = self._devices[entry]
        free = each.count - self._own[entry]
        everything = each.count + each.taken - self._own[entry] - self._shared[entry]
        return everything if asked.admin_access else min(free, everything)

    def _constraints(self, position: int, asked: DeviceAlternative) -> tuple[int, ...]:
        claim = self._claims[self._asked[position].claim]
        return claim.attributes_of(self._asked[position].request, asked) if claim.match_attributes else ()

    def _bindings(
        self, position: int, asked: DeviceAlternative, entry: int
    ) -> Sequence[tuple[tuple[int, int], str]] | None:
        """Return the constraints that a device of the entry binds, with its value; None where it breaks one."""
        claim = self._asked[position].claim
        found = []
        for constraint in self._constraints(position, asked):
            value = self._values[entry].get(self._claims[claim].match_attributes[constraint][1])
            bound = self._bound.get((claim, constraint), [])
            if value is None or (bound and bound[-1] != value):
                return None
            found.append(((claim, constraint), value))
        return found

    def _use(
        self, entry: int, asked: DeviceAlternative, number: int, bound: Iterable[tuple[tuple[int, int], str]]
    ) -> None:
        """Choose so many devices of an entry; below 0, undo that."""
        (self._shared if asked.admin_access else self._own)[entry] += number
        for constraint, value in bound:
            values = self._bound.setdefault(constraint, [])
            if number > 0:
                values.append(value)
            else:
                values.pop()
