"""How much work pods' claims on devices make, and whose are left out where that is too much.

Each kind of claims is searched for on each kind of node that may serve it, and compared with all others there. Owners,
which are namespaces, get their shares in the order of how much they ask for: what they have in common with one before
them costs nothing, and being compared with others is the work of who comes later. So nobody's share depends on those
who ask for more. Of an owner that exceeds its share the heaviest claims are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import and_, or_

from solver.model import PodSpec, Problem
from solver.model.allocation import AllocatableDevices
from solver.model.devices import Claims
from solver.reduction.device_rows import distinct_devices
from solver.reduction.devices import nameless

_PER_PAIR = 12
"""Steps for one kind of claims on one kind of node,"""
_ENTRIES_AT_ONCE = 8
_REQUESTS_AT_ONCE = 16
_COMPARED_AT_ONCE = 256
_COUNTED_AT_ONCE = 64
"""devices, pairs of requests, claims, and nodes and pods of a sum, that are looked at in the time of one."""
_PASSES = 3
"""In the later ones others get what some have left of their shares."""
_SUMS = 4
"""Sums of which a request has part, where it overlaps others."""


def beyond_share(problem: Problem, specs: Mapping[PodSpec, str], most_steps: int) -> set[PodSpec]:
    """Return the specs whose claims are beyond their owners' shares of so many steps; with each spec comes a name by
    which equally heavy ones are told apart."""
    owners: dict[str, dict[Claims, list[PodSpec]]] = defaultdict(lambda: defaultdict(list))
    for spec in sorted((each for each in specs if each.claims), key=specs.__getitem__):
        owners[spec.namespace][nameless(spec.claims)].append(spec)
    if not owners:
        return set()
    work, left = _ClaimWork(problem, len(specs)), most_steps
    waiting = {name: sorted(map(_AskedClaims, mine), key=lambda each: each.size) for name, mine in owners.items()}
    waiting = dict(sorted(waiting.items(), key=lambda each: (sum(asked.size for asked in each[1]), each[0])))
    for _ in range(_PASSES):
        still: dict[str, list[_AskedClaims]] = {}
        for position, (name, mine) in enumerate(waiting.items()):
            share, beyond = left // (len(waiting) - position), list[_AskedClaims]()
            for each in mine:
                steps, whole = work.take(each, share)
                share, left = share - steps, left - steps
                if not whole:
                    beyond.append(each)
            if beyond:
                still[name] = beyond
        waiting = still
    return {spec for name, mine in waiting.items() for each in mine for spec in owners[name][each.claims]}


class _AskedClaims:
    """All claims of a pod, as numbers."""

    def __init__(self, claims: Claims) -> None:
        self.claims = claims
        requests = [request for claim in claims for request in claim.requests]
        self.requests = len(requests)
        self.alternatives = sum(len(each.alternatives) for each in requests)
        self.constraints = sum(len(claim.match_attributes) * len(claim.requests) for claim in claims)
        self.size = self.alternatives + self.constraints + self.requests**2 // _REQUESTS_AT_ONCE
        self.sums = 1 if self.alternatives == 1 else _SUMS * self.requests


class _ClaimWork:
    """What has been taken on so far."""

    def __init__(self, problem: Problem, specs: int) -> None:
        groups, nodes = problem.node_groups, problem.nodes
        _, distinct = distinct_devices([*(each.devices for each in groups), *(each.devices for each in nodes)])
        self._devices = [AllocatableDevices(each) for each in distinct]
        self._most = max(map(len, distinct), default=0)
        self._of_selector: dict[str, int] = defaultdict(int)
        """Selector -> the sets of devices, as bits, of which it matches any."""
        for number, devices in enumerate(distinct):
            for selector in frozenset[str]().union(*(each.selectors for each in devices)):
                self._of_selector[selector] |= 1 << number
        self._counted = 1 + (len(groups) + len(nodes) + specs) // _COUNTED_AT_ONCE
        """Steps of one sum, of all pods on all nodes."""
        self._taken: set[Claims] = set()
        self._requests = self._sums = 0

    def take(self, asked: _AskedClaims, most: int) -> tuple[int, bool]:
        """Take the claims on, if their work is within so many steps; return what has been used of them, and whether it
        was enough."""
        if asked.claims in self._taken:
            return 0, True
        where = self._may_serve(asked.claims)
        compared = (asked.sums * (self._requests + asked.requests) + asked.requests * self._sums) // _COMPARED_AT_ONCE
        entries = 1 + self._most // _ENTRIES_AT_ONCE
        steps = len(self._devices) // _COMPARED_AT_ONCE + asked.size + asked.sums * self._counted
        steps += where.bit_count() * (_PER_PAIR + asked.size * entries + compared)
        if steps > most:
            return 0, False
        for there in self._sets(where) if asked.alternatives > 1 or asked.constraints else ():
            steps += entries * there.steps_to_allocate(asked.claims, (most - steps) // entries)
            if steps > most:
                return most, False
        self._taken.add(asked.claims)
        self._requests += asked.requests
        self._sums += asked.sums
        return steps, True

    def _may_serve(self, claims: Claims) -> int:
        """Return the sets of devices, as bits, of which some match each request."""
        every = (1 << len(self._devices)) - 1
        requests = (request for claim in claims for request in claim.requests)
        ways = (reduce(or_, (self._of_selector.get(way.selector, 0) for way in each.alternatives)) for each in requests)
        return reduce(and_, ways, every)

    def _sets(self, bits: int) -> Iterator[AllocatableDevices]:
        while bits:
            yield self._devices[(bits & -bits).bit_length() - 1]
            bits &= bits - 1
