"""Claims on devices as the exact reference sees them: every device by itself, every order of the pods, every choice
that the scheduler may make. Slow and plain on purpose; it shares nothing with the solver but the values."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, product

from ortools.sat.python import cp_model

from solver import DeviceRequest, Devices, Problem
from solver.model import DeviceAlternative
from solver.model.devices import Claims

Device = tuple[int, frozenset[str], tuple[tuple[str, str], ...], bool]
"""(number, selectors, attributes, whether somebody has it)."""
Given = tuple[tuple[int, DeviceRequest, DeviceAlternative, tuple[int, ...]], ...]
"""(claim, request, alternative, devices)."""


def each_device(devices: Sequence[Devices]) -> tuple[Device, ...]:
    kinds = [
        (d, taken)
        for d in devices
        if not d.uncertain
        for taken, count in ((False, d.count), (True, d.taken))
        for _ in range(count)
    ]
    return tuple((n, d.selectors, d.attributes, taken) for n, (d, taken) in enumerate(kinds))


class GivenUpError(Exception):
    """The scheduler may find what is not known here, or an error."""


class Node:
    """All that can happen to pods with claims on one node."""

    def __init__(self, devices: Sequence[Devices]) -> None:
        self.devices = each_device(devices)
        self._uncertain = {selector for each in devices if each.uncertain for selector in each.selectors}
        self.free = frozenset(number for number, _, _, taken in self.devices if not taken)
        self._attributes = {number: dict(attributes) for number, _, attributes, _ in self.devices}

    def holds(self, pods: Sequence[Claims]) -> bool:
        """Whether every pod finds its devices, whatever happens."""
        kinds = list(dict.fromkeys(pods))

        @cache
        def never_stuck(free: frozenset[int], waiting: tuple[int, ...]) -> bool:
            for kind in {kind for kind, count in enumerate(waiting) if count}:
                left = tuple(count - (other == kind) for other, count in enumerate(waiting))
                outcomes = {free - mine for mine, _ in self.served(free, kinds[kind])}
                if not outcomes or not all(never_stuck(after, left) for after in outcomes):
                    return False
            return True

        return never_stuck(self.free, tuple(pods.count(kind) for kind in kinds))

    def served(self, free: frozenset[int], pod: Claims) -> list[tuple[frozenset[int], frozenset[int]]]:
        """The sets of devices that the scheduler may give a pod: (taken, those it has admin access to)."""
        requests = [(number, request) for number, claim in enumerate(pod) for request in claim.requests]
        try:
            return list(dict.fromkeys(self._served(free, pod, requests, ()))) if self._searches(pod) else []
        except GivenUpError:
            return []

    def _searches(self, pod: Claims) -> bool:
        """Whether no request for all makes the scheduler give up, whoever has what."""
        for claim in pod:
            asked = [(request, way) for request in claim.requests for way in request.alternatives]
            if any(way.all and way.selector in self._uncertain for _, way in asked):
                return False
            for names, attribute in claim.match_attributes:
                bound = [w for r, w in asked if not names or {r.name, f"{r.name}/{w.name}"} & names]
                own = [a.get(attribute) for a in self._matched([way for way in bound if way.all])]
                rest = [a[attribute] for a in self._matched(bound) if attribute in a]
                if own and (None in own or len({*own, *rest}) > 1):
                    return False
        return True

    def _matched(self, ways: Sequence[DeviceAlternative]) -> list[dict[str, str]]:
        return [self._attributes[n] for way in ways for n, selectors, _, _ in self.devices if way.selector in selectors]

    def first(self, free: frozenset[int], pod: Claims) -> frozenset[int] | None:
        """The devices that a pod takes where devices are tried in their order; None where it is not served."""
        requests = [(number, request) for number, claim in enumerate(pod) for request in claim.requests]
        try:
            return (
                next((mine for mine, _ in self._served(free, pod, requests, ())), None) if self._searches(pod) else None
            )
        except GivenUpError:
            return None

    def _served(
        self, free: frozenset[int], pod: Claims, requests: Sequence[tuple[int, DeviceRequest]], given: Given
    ) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
        if not requests:
            mine = frozenset(n for _, _, asked, some in given if not asked.admin_access for n in some)
            yield mine, frozenset(n for _, _, asked, some in given if asked.admin_access for n in some)
            return
        number, request = requests[0]
        for asked in request.alternatives:
            found = False
            # Another claim's devices keep none from admin access.
            kept = (each for each in given if not asked.admin_access or each[0] == number)
            for some in self._choices(free, asked, {n for *_, chosen in kept for n in chosen}):
                more = (*given, (number, request, asked, some))
                if self._keeps(pod, number, more):
                    for each in self._served(free, pod, requests[1:], more):
                        found = True
                        yield each
            if found:
                return
            if asked.selector in self._uncertain:
                raise GivenUpError

    def _choices(self, free: frozenset[int], asked: DeviceAlternative, own: set[int]) -> Iterator[tuple[int, ...]]:
        matching = [number for number, selectors, _, _ in self.devices if asked.selector in selectors]
        usable = [n for n in matching if n not in own and (asked.admin_access or n in free)]
        if not asked.all:
            yield from combinations(usable, asked.count)
        elif matching and usable == matching:
            yield tuple(matching)

    def _keeps(self, pod: Claims, number: int, given: Given) -> bool:
        mine = [each for each in given if each[0] == number]
        if sum(len(some) for *_, some in mine) > 32:
            return False
        for names, attribute in pod[number].match_attributes:
            bound = [
                n
                for _, request, asked, some in mine
                if not names or {request.name, f"{request.name}/{asked.name}"} & names
                for n in some
            ]
            values = [self._attributes[n].get(attribute) for n in bound]
            if None in values or len(set(values)) > 1:
                return False
        return True


def add_claims(
    model: cp_model.CpModel,
    problem: Problem,
    slots: Sequence[Sequence[Devices]],
    held: Sequence[Sequence[list[cp_model.IntVar]]],
) -> None:
    """Allow on each slot only those pods with claims that always find their devices. `held`: per slot and pod set the
    variables of its pods there."""
    asking = [p for p, pods in enumerate(problem.pod_sets) if pods.spec.claims]
    known: dict[tuple[object, tuple[int, ...]], bool] = {}
    for devices, mine in zip(slots, held, strict=True):
        node = Node(devices)
        counts = []
        for p in asking:
            count = model.new_int_var(0, problem.pod_sets[p].count, "")
            model.add(count == sum(mine[p]))
            counts.append(count)
        allowed = []
        for numbers in product(*(range(problem.pod_sets[p].count + 1) for p in asking)):
            key = (tuple(devices), numbers)
            if key not in known:
                pods = [problem.pod_sets[p].spec.claims for p, n in zip(asking, numbers, strict=True) for _ in range(n)]
                known[key] = node.holds(pods)
            if known[key]:
                allowed.append(numbers)
        if asking:
            model.add_allowed_assignments(counts, allowed)


def scheduled(rng: random.Random, devices: Sequence[Devices], pods: Sequence[Claims]) -> int:
    """Return how many of the pods a scheduler serves that takes them in a random order, and tries a node's devices in
    another random order for each. The first search that succeeds is its choice, as the scheduler's is."""
    node, served = Node(devices), 0
    free = node.free
    for pod in rng.sample(list(pods), len(pods)):
        rng.shuffle(order := list(node.devices))
        node.devices = tuple(order)
        found = node.first(free, pod)
        if found is not None:
            free, served = free - found, served + 1
    return served
