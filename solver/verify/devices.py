"""The checker's part for claims on devices: whether every pod of a node finds its devices, in whatever order the
scheduler places them and whichever of the matching devices it gives them.

Exact and plain: of each set of pods all ways are kept in which they may leave the node's devices, and the next pod must
be served in all of them. It knows nothing of the sums that plans are made with.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from solver.model import DeviceAlternative, DeviceRequest, Devices, PodSpec
from solver.model.devices import MOST_PER_CLAIM, Claims
from solver.model.errors import UncheckedPlanError

_MOST_WAYS = 30_000
"""Looked at for one plan (some second); one that needs more is not passed."""
_MOST_WAYS_AGAIN = 1_000_000
"""Of those that are known."""

Free = tuple[int, ...]
"""Free devices per entry."""


class TooManyWaysError(Exception):
    """The devices of a node can be given in more ways than are looked at."""


class _GivenUpError(Exception):
    """What is not known of the devices decides what a pod gets."""


class _Looks:
    """How many ways may still be looked at."""

    def __init__(self, most: int) -> None:
        self.left, self._left_again = most, _MOST_WAYS_AGAIN

    def take(self) -> None:
        """Raises `TooManyWaysError`."""
        self.left -= 1
        if self.left < 0:
            raise TooManyWaysError

    def take_again(self, ways: int) -> None:
        """Look at ways that may be known. Raises `TooManyWaysError`."""
        self._left_again -= ways
        if self._left_again < 0:
            raise TooManyWaysError


def without_devices(
    devices: Sequence[Devices], pods: Mapping[Claims, int], daemons: Sequence[Claims], looks: _Looks | None = None
) -> Claims | None:
    """Return claims of which a pod may find no devices, with so many pods of each on one node beside daemons that come
    first; None where all find theirs. Raises `TooManyWaysError`."""
    node = _CheckedDevices(devices, (*pods, *daemons), looks or _Looks(_MOST_WAYS))
    start = {node.start}
    for daemon in daemons:
        # One that finds none waits, and takes none.
        start = {way for free in start for way in node.ways(free, daemon) or {free}}
    if len(start) == 1 and node.all_surely_served(pods, next(iter(start))):
        return None
    for each in pods:
        others = Counter(dict(pods))
        others[each] -= 1
        free = start
        for other, count in others.items():
            for _ in range(count):
                node.looks.take_again(len(free))
                left: set[Free] = set()
                for way in free:
                    after = node.ways(way, other)
                    if not after:
                        return other
                    left |= after
                free = left
        if not all(node.ways(way, each) for way in free):
            return each
    return None


def finds_devices(devices: Sequence[Devices], daemon: PodSpec, before: Sequence[PodSpec]) -> bool:
    """Return whether a daemon can be served after others; one that finds no devices waits, and takes nothing."""
    earlier = [each.claims for each in before if each.claims]
    try:
        return without_devices(devices, {daemon.claims: 1}, earlier) is None
    except TooManyWaysError:
        return True


@dataclass(frozen=True, slots=True)
class _Entry:
    """Devices that none of the claims can tell apart."""

    selectors: frozenset[str]
    attributes: tuple[tuple[str, str], ...]
    free: int
    devices: int
    """With those that are taken."""

    def value(self, attribute: str) -> str | None:
        return dict(self.attributes).get(attribute)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What a pod has been given so far."""

    free: Free
    shared: Free
    """Per entry: devices that it has admin access to."""
    kept: Free
    """Of these, the ones that are free otherwise: a claim without admin access gets none of them."""
    own: Free
    """Per entry: devices of the claim that comes last, with those that it has admin access to."""
    claim: int = 0
    """Which comes last."""
    bound: tuple[tuple[int, int, str], ...] = ()
    """(claim, constraint, value)."""
    devices: tuple[int, ...] = ()
    """Per claim: how many."""


class _CheckedDevices:
    """The devices of one node, for these claims."""

    def __init__(self, devices: Sequence[Devices], claims: Iterable[Claims], looks: _Looks) -> None:
        requests = [request for pod in claims for claim in pod for request in claim.requests]
        selectors = frozenset(a.selector for request in requests for a in request.alternatives)
        attributes = {attribute for pod in claims for claim in pod for _, attribute in claim.match_attributes}
        alike: dict[tuple[frozenset[str], tuple[tuple[str, str], ...]], list[Devices]] = defaultdict(list)
        self._uncertain = {selector for each in devices if each.uncertain for selector in each.selectors}
        devices = [each for each in devices if not each.uncertain]
        for each in devices:
            told = tuple(sorted(pair for pair in each.attributes if pair[0] in attributes))
            alike[each.selectors & selectors, told].append(each)
        self._entries = [
            _Entry(*key, sum(d.count for d in same), sum(d.count + d.taken for d in same))
            for key, same in sorted(alike.items(), key=lambda each: (each[0][1], sorted(each[0][0])))
        ]
        self._matching = {each: [n for n, e in enumerate(self._entries) if each in e.selectors] for each in selectors}
        """Entries by the selectors that match them."""
        self._blocks = self._interchangeable(attributes)
        self._ways: dict[tuple[Free, Claims], frozenset[Free]] = {}
        self.looks = looks

    @property
    def start(self) -> Free:
        return tuple(entry.free for entry in self._entries)

    def ways(self, free: Free, pod: Claims) -> frozenset[Free]:
        """Return what a pod may leave; nothing where it is not served."""
        key = (free, pod)
        if key not in self._ways:
            nothing = (0,) * len(free)
            first = _Chosen(free, nothing, nothing, nothing, devices=(0,) * len(pod))
            requests = [(number, request) for number, claim in enumerate(pod) for request in claim.requests]
            try:
                found = set() if self._ends_search(pod) else self._from(pod, requests, first)
            except _GivenUpError:
                found = set()
            self._ways[key] = frozenset(self._canonical(each) for each in found)
        return self._ways[key]

    def all_surely_served(self, pods: Mapping[Claims, int], free: Free) -> bool:
        """Return whether each pod finds its devices even if each other one takes all that it may from every entry."""
        asked = {pod: self._asked(pod) for pod in pods}
        total = [sum(asked[pod][n] * count for pod, count in pods.items()) for n in range(len(free))]
        for pod, mine in asked.items():
            left = tuple(max(0, f - t + m) for f, t, m in zip(free, total, mine, strict=True))
            if not self.ways(left, pod):
                return False
        return True

    def _asked(self, pod: Claims) -> Free:
        """Return per entry the most that a pod takes of it."""
        found = [0] * len(self._entries)
        for request in (request for claim in pod for request in claim.requests):
            most: dict[int, int] = {}
            for way in request.alternatives:
                for entry in () if way.admin_access else self._matching[way.selector]:
                    asked = self._entries[entry].devices if way.all else way.count
                    if asked > most.get(entry, 0):
                        most[entry] = asked
            for entry, asked in most.items():
                found[entry] += asked
        return tuple(found)

    def _from(self, pod: Claims, requests: Sequence[tuple[int, DeviceRequest]], chosen: _Chosen) -> set[Free]:
        """Return what may be left once all requests are served: each by its first alternative with which the others
        can be, too."""
        if not requests:
            return {chosen.free}
        number, request = requests[0]
        for asked in request.alternatives:
            found: set[Free] = set()
            for after in self._choices(pod, number, request, asked, chosen):
                found |= self._from(pod, requests[1:], after)
            if found:
                return found
            if asked.selector in self._uncertain:
                raise _GivenUpError
        return set()

    def _ends_search(self, pod: Claims) -> bool:
        """Return whether a request for all may end the scheduler's search, whoever has which devices."""
        for claim in pod:
            asked = [(request, way) for request in claim.requests for way in request.alternatives]
            if any(way.all and way.selector in self._uncertain for _, way in asked):
                return True
            for position, (_, attribute) in enumerate(claim.match_attributes):
                values: set[str | None] = set()
                for request, way in asked:
                    if position in claim.attributes_of(request, way):
                        of = [e.value(attribute) for e in self._entries if e.devices and way.selector in e.selectors]
                        values.update(of if way.all else filter(None, of))
                whole = [way for request, way in asked if way.all and position in claim.attributes_of(request, way)]
                some = any(e.devices and way.selector in e.selectors for way in whole for e in self._entries)
                if some and (None in values or len(values) > 1):
                    return True
        return False

    def _choices(
        self, pod: Claims, number: int, request: DeviceRequest, asked: DeviceAlternative, chosen: _Chosen
    ) -> Iterator[_Chosen]:
        """Yield every way of giving a request its devices."""
        matching = self._matching[asked.selector]
        count = sum(self._entries[n].devices for n in matching) if asked.all else asked.count
        has = chosen.devices[number] + count
        if not count or has > MOST_PER_CLAIM:
            return
        if asked.selector in self._uncertain and not asked.admin_access:
            # What the pod shares with others may be just what is free.
            left = sum(max(0, chosen.free[n] - chosen.shared[n]) for n in matching)
            if any(chosen.shared) and left < count:
                raise _GivenUpError
        constraints = pod[number].attributes_of(request, asked)
        devices = (*chosen.devices[:number], has, *chosen.devices[number + 1 :])
        if chosen.claim != number:
            chosen = replace(chosen, own=(0,) * len(chosen.own), claim=number)
        for entries, bound in self._blocks_of(pod, number, constraints, matching, chosen):
            for given in self._given(entries, count, asked.admin_access, chosen):
                self.looks.take()
                after = replace(chosen, own=_more(chosen.own, given), bound=bound, devices=devices)
                if asked.admin_access:
                    yield replace(after, shared=_more(chosen.shared, given), kept=self._kept(given, chosen))
                else:
                    yield replace(after, free=_more(chosen.free, given, -1))

    def _blocks_of(
        self, pod: Claims, number: int, constraints: Sequence[int], matching: Sequence[int], chosen: _Chosen
    ) -> Iterator[tuple[Sequence[int], tuple[tuple[int, int, str], ...]]]:
        """Yield the entries from which the pod may have devices together, and what these bind it to."""
        if not constraints:
            yield matching, chosen.bound
            return
        attributes = [pod[number].match_attributes[constraint][1] for constraint in constraints]
        before = {(claim, constraint): value for claim, constraint, value in chosen.bound}
        alike: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
        for entry in matching:
            alike[tuple(self._entries[entry].value(each) for each in attributes)].append(entry)
        for values, entries in alike.items():
            after = dict(before)
            for constraint, value in zip(constraints, values, strict=True):
                if value is None or after.setdefault((number, constraint), value) != value:
                    break
            else:
                yield entries, tuple(sorted((*which, value) for which, value in after.items()))

    def _given(self, matching: Sequence[int], count: int, admin: bool, chosen: _Chosen) -> Iterator[Mapping[int, int]]:
        """Yield every choice of so many devices: entry -> how many. A claim never has one twice."""
        offered: list[tuple[int, int]] = []
        for entry in matching:
            others = self._entries[entry].devices - chosen.own[entry]
            most = others if admin else chosen.free[entry] - chosen.kept[entry]
            if most > 0:
                offered.append((entry, most))
        yield from _shared_out(offered, count, sum(most for _, most in offered))

    def _kept(self, given: Mapping[int, int], chosen: _Chosen) -> Free:
        """Return which free devices are kept with admin access to these, too: it is to those first that pods have."""
        kept = list(chosen.kept)
        for entry, count in given.items():
            others = self._entries[entry].devices - chosen.own[entry] - (chosen.free[entry] - kept[entry])
            kept[entry] += max(0, count - others)
        return tuple(kept)

    def _interchangeable(self, attributes: Iterable[str]) -> list[list[list[int]]]:
        """Return sets of blocks of entries that can be exchanged for each other: those that differ in every attribute
        from all others and are made alike."""
        labels = sorted({entry.attributes for entry in self._entries})
        for attribute in attributes:
            values = [dict(label).get(attribute) for label in labels if label]
            if len(set(values)) < len(values) or None in values:
                return []
        made: dict[object, list[list[int]]] = defaultdict(list)
        for label in labels:
            block = [n for n, entry in enumerate(self._entries) if entry.attributes == label]
            shape = tuple((tuple(sorted(self._entries[n].selectors)), self._entries[n].devices) for n in block)
            made[bool(label), shape].append(block)
        return [blocks for blocks in made.values() if len(blocks) > 1]

    def _canonical(self, free: Free) -> Free:
        """Return the same for all that differ only in which of several like blocks is which."""
        if not self._blocks:
            return free
        found = list(free)
        for blocks in self._blocks:
            sizes = sorted((tuple(free[n] for n in block) for block in blocks), reverse=True)
            for block, left in zip(blocks, sizes, strict=True):
                for entry, number in zip(block, left, strict=True):
                    found[entry] = number
        return tuple(found)


def _more(devices: Free, given: Mapping[int, int], sign: int = 1) -> Free:
    found = list(devices)
    for entry, number in given.items():
        found[entry] += sign * number
    return tuple(found)


def _shared_out(offered: Sequence[tuple[int, int]], count: int, left: int) -> Iterator[Mapping[int, int]]:
    """Yield every choice of so many devices of those `left`: entry -> how many."""
    if not count:
        yield {}
    if not count or left < count:
        return
    (first, most), others = offered[0], offered[1:]
    for number in range(min(count, most), max(0, count - left + most) - 1, -1):
        for rest in _shared_out(others, count - number, left - most):
            yield {first: number, **rest} if number else rest


class CheckedClaims:
    """Claims of classes on the nodes of a plan; what is found for one node is known for all like it. One namespace of
    several has half of what is looked at. A node counts for that of whose claims there are most kinds."""

    def __init__(self, specs: Sequence[PodSpec]) -> None:
        numbers: dict[Claims, int] = {}
        self._specs = specs
        self._of_class = {
            index: numbers.setdefault(spec.claims, len(numbers)) for index, spec in enumerate(specs) if spec.claims
        }
        self._claims = list(numbers)
        kinds = {(spec.namespace, spec.claims) for spec in specs if spec.claims}
        self._kinds = Counter(namespace for namespace, _ in kinds)
        self._known: dict[object, str | None] = {}
        self._left = _MOST_WAYS
        self._most = _MOST_WAYS // min(2, max(1, len(self._kinds)))
        self._looks: dict[str, _Looks] = {}

    def look_at_most(self, ways: int) -> None:
        """Look at so many more ways at most, in the same shares."""
        self._left = min(self._left, ways)
        self._most = min(self._most, ways // min(2, max(1, len(self._kinds))))
        for looks in self._looks.values():
            looks.left = min(looks.left, self._most)

    def fault(self, devices: tuple[Devices, ...], pods: Mapping[int, int], daemons: Sequence[PodSpec]) -> str | None:
        """Return why the pods of one node may not all find their devices; None where they do. Raises
        `UncheckedPlanError`."""
        if not self._of_class:
            return None
        asking = [(self._of_class[index], count) for index, count in pods.items() if index in self._of_class]
        if not asking:
            return None
        key = (id(devices), tuple(sorted(asking)), tuple(daemons))
        if key not in self._known:
            of_namespace = {self._specs[index].namespace for index in pods if index in self._of_class}
            most = max(of_namespace, key=lambda each: (self._kinds[each], each))
            try:
                self._known[key] = self._fault(devices, asking, daemons, most)
            except TooManyWaysError:
                mine = (index for index in pods if index in self._of_class)
                raise UncheckedPlanError(index for index in mine if self._specs[index].namespace == most) from None
        return self._known[key]

    def _fault(
        self, devices: tuple[Devices, ...], asking: Iterable[tuple[int, int]], daemons: Sequence[PodSpec], of: str
    ) -> str | None:
        pods: Counter[Claims] = Counter()
        for number, count in asking:
            pods[self._claims[number]] += count
        looks = self._looks.setdefault(of, _Looks(self._most))
        before = looks.left = max(0, min(looks.left, self._left))
        try:
            lacking = without_devices(devices, pods, [spec.claims for spec in daemons if spec.claims], looks)
        finally:
            self._left -= before - max(0, looks.left)
        if lacking is None:
            return None
        number = self._claims.index(lacking)
        index = next(index for index, mine in self._of_class.items() if mine == number)
        return f"a pod with the claims of class {index} may find no devices"
