"""Which devices of a node can be given to whom: from slices, what is allocated and the selectors in use to the
planner's `Devices`. What pods ask for is in `claims`; single selectors are in `selectors`.

What the scheduler's allocator could do and planning cannot foresee is given to nobody: devices that several nodes can
use, that may be allocated several times (consumable capacity), or whose shared counters do not suffice for all of them
together (partitions of one device). That is safe, as a plan that uses fewer devices than there are still holds; who
needs such a device is told so (`Unplanned`).

Upstream: dynamic-resource-allocation/structured (GatherPools, isSelectable, allocateDevice).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from cagrpc.api.devices.expressions import NotYet
from cagrpc.api.devices.objects import (
    MOST_RESULTS,
    Counters,
    Device,
    DeviceClass,
    DeviceId,
    DevicesAsked,
    ResourceClaim,
    SemanticVersion,
    Slice,
)
from cagrpc.api.devices.selectors import Matcher, Selector, all_of, extended
from cagrpc.errors import InvalidInput
from solver.model import Devices, PodSpec, Resources

_MULTIPLE = "they may be allocated several times (consumable capacity), which is not supported"
_COUNTERS = "they are partitions of one device, more than fit together, which is not supported"
_SEVERAL_NODES = "several nodes can use them, which is not supported"


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The devices of one node, or of a group's next one, whoever has them."""

    devices: tuple[Device, ...] = ()
    counters: tuple[tuple[str, str, Counters], ...] = ()
    """(driver, pool, what the pool has of its shared counters)"""
    incomplete: bool = False
    """Whether a pool of the node is being published, or is invalid: its devices are given to nobody until it is whole,
    and nobody is given all devices of any kind."""


def _is_valid(slices: Iterable[Slice], counters: Counters) -> bool:
    """Return whether the names of devices are unique on each node, and the shared counters that they take from are
    there (upstream: validateDeviceNames, validateDeviceCounterConsumption)."""
    there = {(of, name) for of, name, _ in counters}
    names = [(node, device.name) for each in slices for node, device in each.devices]
    uses = {(of, name) for each in slices for _, device in each.devices for of, name, _ in device.counters}
    return len(set(names)) == len(names) and uses <= there


def by_node(slices: Iterable[Slice]) -> dict[str, NodeDevices]:
    """Return the devices of each node; under the empty name those that several nodes can use. Of a pool only the newest
    generation counts, and only once all of its slices are there, without two devices of one name on a node."""
    pools: defaultdict[tuple[str, str], list[Slice]] = defaultdict(list)
    for each in slices:
        pools[each.driver, each.pool].append(each)
    devices: defaultdict[str, list[Device]] = defaultdict(list)
    counters: defaultdict[str, list[tuple[str, str, Counters]]] = defaultdict(list)
    incomplete: set[str] = set()
    for (driver, pool), found in sorted(pools.items()):
        generation = max(each.generation for each in found)
        newest = sorted((each for each in found if each.generation == generation), key=lambda each: each.name)
        nodes = {
            node for each in newest for node in ((each.node,) if each.node else (node for node, _ in each.devices))
        }
        shared_counters = tuple(sorted(counter for each in newest for counter in each.counters))
        if len(newest) != newest[0].slices_of_pool or not _is_valid(newest, shared_counters):
            incomplete |= nodes
            continue
        for each in newest:
            for node, device in each.devices:
                devices[node].append(device)
        for node in nodes if shared_counters else ():
            if node:
                counters[node].append((driver, pool, shared_counters))
    return {
        node: NodeDevices(tuple(devices[node]), tuple(counters[node]), node in incomplete)
        for node in {*devices, *counters, *incomplete}
    }


def taken_by(claim: ResourceClaim) -> frozenset[DeviceId]:
    """Return the devices that are allocated to a claim, shares of devices among them."""
    return frozenset((*claim.devices, *claim.shares))


def typical(nodes: Iterable[NodeDevices]) -> NodeDevices | None:
    """Return the devices of the node that most resemble: of nodes of one group or instance type. None without any."""
    alike: defaultdict[object, list[NodeDevices]] = defaultdict(list)
    for node in nodes:
        if not node.incomplete:
            alike[frozenset(Counter(map(_form, node.devices)).items())].append(node)
    groups = sorted(alike.values(), key=lambda each: (len(each), len(each[0].devices)))
    return groups[-1][0] if groups else None


def _form(device: Device) -> object:
    """Return what devices of one make have in common, whatever their serial numbers are."""
    names = tuple(name for name, _ in device.attributes)
    return device.driver, names, device.capacity, device.taints, device.counters, device.allow_multiple_allocations


def extended_selectors(specs: Iterable[PodSpec], backed: Mapping[str, DeviceClass]) -> list[Selector]:
    """Return the selectors of the extended resources that these pods request and classes back."""
    names = {name for spec in specs for name, _ in spec.requests if name in backed}
    return [Selector(DevicesAsked(backed[name].name), backed[name].selectors, name) for name in sorted(names)]


_NO_DEVICES = NodeDevices()


@dataclass
class Unplanned:
    """Why devices that a selector matches are given to nobody, by its key, for people."""

    reasons: dict[str, str] = field(default_factory=dict)
    planned: set[str] = field(default_factory=set)
    """Keys with devices that planning gives."""
    for_now: dict[str, str] = field(default_factory=dict)
    """Why devices of a selector are not known in this round."""

    def note(self, key: str, reasons: Iterable[str], *, given: bool) -> None:
        """Note why devices of a selector are given to nobody, and whether others are given."""
        for reason in reasons:
            self.reasons.setdefault(key, reason)
        if given:
            self.planned.add(key)

    def note_failure(self, key: str, error: InvalidInput) -> None:
        """Note that a selector could not be evaluated."""
        (self.for_now if isinstance(error, NotYet) else self.reasons).setdefault(key, f"{error}")

    def why(self, key: str) -> str:
        """Return why nobody gets such devices; empty where some are given, or there are none at all."""
        own = key.removeprefix(all_of(""))
        return "" if own in self.planned else self.for_now.get(own) or self.reasons.get(own, "")


@dataclass(frozen=True, slots=True)
class Loose:
    """What devices that several nodes can use are to selectors, by their keys."""

    matched: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()
    """Selectors of which none is given on any node: the scheduler may come to these devices first."""
    incomplete: bool = False


_NO_LOOSE = Loose()


def given(
    node: NodeDevices,
    selectors: Sequence[Selector],
    attributes: AbstractSet[str],
    matcher: Matcher,
    unplanned: Unplanned,
    *,
    in_use: AbstractSet[str],
    taken: AbstractSet[DeviceId] = frozenset(),
    loose: Loose = _NO_LOOSE,
) -> tuple[Devices, ...]:
    """Return what a node's devices are to the selectors, but for those that are taken: to the keys `in_use`, of
    requests for some or for all of them. `attributes` are those that constraints name, `loose` what the devices are
    that several nodes can use. Of a selector that fails on one of the devices no device of the node is given, as the
    scheduler gives up there, too."""
    matched: dict[str, list[Device]] = {}
    uncertain = {each.key for each in selectors if each.key in loose.matched | loose.failing}
    for selector in selectors:
        if selector.key in loose.failing:
            continue
        try:
            matched[selector.key] = [each for each in node.devices if matcher.matches(selector, each)]
        except InvalidInput as error:
            unplanned.note_failure(selector.key, error)
            uncertain.add(selector.key)
    kept_back = _kept_back(node, {each.id for found in matched.values() for each in found}, taken)
    keys: defaultdict[DeviceId, set[str]] = defaultdict(set)
    for selector in selectors:
        found = matched.get(selector.key, [])
        refused = {each.id: _untolerated(selector.asked, each) or kept_back.get(each.id, "") for each in found}
        usable = [each for each in found if not refused[each.id]]
        unplanned.note(selector.key, (why for why in refused.values() if why), given=bool(usable))
        if any(each.id in kept_back for each in found):
            uncertain.add(selector.key)
        for device in usable:
            keys[device.id].add(selector.key)
            if len(usable) == len(found) <= MOST_RESULTS:
                keys[device.id].add(all_of(selector.key))
    free: Counter[tuple[frozenset[str], tuple[tuple[str, str], ...]]] = Counter()
    had: Counter[tuple[frozenset[str], tuple[tuple[str, str], ...]]] = Counter()
    for device in node.devices:
        of = keys[device.id] & in_use
        if of:
            (had if device.id in taken else free)[frozenset(of), _named(device, attributes)] += 1
    alike = sorted({**free, **had}, key=lambda each: (sorted(each[0]), each[1]))
    wholes = uncertain | {each.key for each in selectors if node.incomplete or loose.incomplete}
    unknown = frozenset(uncertain | set(map(all_of, wholes))) & in_use
    return (
        *(Devices(free[each], *each, taken=had[each]) for each in alike),
        *((Devices(0, unknown, uncertain=True),) if unknown else ()),
    )


def _untolerated(asked: DevicesAsked, device: Device) -> str:
    for taint in device.taints:
        if not any(each.tolerates(taint) for each in asked.tolerations):
            value = f"={taint.value}" if taint.value else ""
            return f"they have the taint {taint.key}{value}:{taint.effect}, which the claim does not tolerate"
    return ""


def _kept_back(node: NodeDevices, matched: AbstractSet[DeviceId], taken: AbstractSet[DeviceId]) -> dict[DeviceId, str]:
    """Return why planning gives a device to nobody, of those of which it does not."""
    found = {}
    for each in node.devices:
        why = each.beyond or (_MULTIPLE if each.allow_multiple_allocations else "")
        if why:
            found[each.id] = why
    needed = [each for each in node.devices if each.id in matched and each.id not in taken and each.id not in found]
    found.update(dict.fromkeys(_short(node, needed, taken), _COUNTERS))
    return found


def _short(node: NodeDevices, needed: Sequence[Device], taken: AbstractSet[DeviceId]) -> set[DeviceId]:
    """Return those of the devices that take from a counter set which has too little for all of them. One that could
    not be allocated even alone takes nothing from the others."""
    left: Counter[tuple[str, str, str, str]] = Counter()
    for driver, pool, counters in node.counters:
        for counter_set, name, amount in counters:
            left[driver, pool, counter_set, name] = amount
    for each in node.devices:
        if each.id in taken:
            left.subtract(_uses(each))
    wanted: Counter[tuple[str, str, str, str]] = Counter()
    out = set()
    for each in needed:
        uses = _uses(each)
        if any(amount > left[counter] for counter, amount in uses.items()):
            out.add(each.id)
        else:
            wanted.update(uses)
    over = {counter[:3] for counter, amount in wanted.items() if amount > left[counter]}
    return out | {each.id for each in needed if any(counter[:3] in over for counter in _uses(each))}


def _uses(device: Device) -> dict[tuple[str, str, str, str], int]:
    return {(device.driver, device.pool, counter_set, name): amount for counter_set, name, amount in device.counters}


def _named(device: Device, attributes: AbstractSet[str]) -> tuple[tuple[str, str], ...]:
    """Return the values of the attributes that constraints name; of a list none, which satisfies no constraint."""
    found = []
    for name, value in device.attributes:
        if name in attributes and not isinstance(value, tuple):
            text = value.text if isinstance(value, SemanticVersion) else str(value)
            found.append((name, f"{type(value).__name__.lower()} {text}"))
    return tuple(found)


@dataclass
class Memory:
    """What nodes have for one set of selectors, as it was found last."""

    unplanned: Unplanned = field(default_factory=Unplanned)
    of_nodes: dict[str, tuple[object, tuple[Devices, ...]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WantedDevices:
    """What the claims of pods name."""

    selectors: Iterable[Selector] = ()
    attributes: AbstractSet[str] = frozenset()
    """Those that constraints between devices compare."""
    keys: AbstractSet[str] = frozenset()
    """The keys of the selectors of all alternatives."""


@dataclass(frozen=True, slots=True)
class PublishedDevices:
    """What drivers have published."""

    of_nodes: Mapping[str, NodeDevices] = field(default_factory=dict)
    """The devices of each node, by its name."""
    taken: AbstractSet[DeviceId] = frozenset()
    """Devices that some claim has."""
    awaited: AbstractSet[str] = frozenset()
    """Nodes whose drivers have not published yet what they soon will."""


class NodeMatching:
    """What the devices of nodes are to all selectors in use: one consistent state."""

    def __init__(
        self,
        matcher: Matcher,
        wanted: WantedDevices | None = None,
        published: PublishedDevices | None = None,
        memory: Memory | None = None,
    ) -> None:
        """`memory` is of the same selectors."""
        wanted, published = wanted or WantedDevices(), published or PublishedDevices()
        self._awaited = published.awaited
        self._matcher = matcher
        self._selectors = matcher.cheapest_first({each.key: each for each in wanted.selectors}.values())
        self._attributes = frozenset(wanted.attributes)
        self._keys = frozenset(wanted.keys) | {each.key for each in self._selectors if each.resource}
        self._resources = tuple(sorted(each.resource for each in self._selectors if each.resource))
        self._nodes, self._taken = published.of_nodes, published.taken
        self._loose = _NO_LOOSE
        self._memory = memory or Memory()
        self.unplanned = self._memory.unplanned
        self.is_partial = False
        """Whether something is not known that the next round may find out of devices that several nodes can use."""

    @property
    def any(self) -> bool:
        """Whether any pod asks for devices."""
        return bool(self._selectors)

    def published(self, node: str) -> NodeDevices | None:
        """Return the devices of a node that stands, whoever has them; None where it has none."""
        return self._nodes.get(node)

    def is_awaited(self, node: str) -> bool:
        """Return whether the drivers of a node are still to publish its devices."""
        return node in self._awaited

    def of_node(self, name: str, allocatable: Resources, free: Resources) -> tuple[Devices, ...]:
        """Return what nobody has of a node that stands."""
        node = self._nodes.get(name, _NO_DEVICES)
        if not self._selectors or (not node.devices and not self._resources):
            return ()
        taken = frozenset(each.id for each in node.devices if each.id in self._taken)
        offered = [(allocatable.get(each, 0), free.get(each, 0)) for each in self._resources]
        before, found = self._memory.of_nodes.get(name, (None, ()))
        if before != (node, taken, offered, self._loose):
            left_out = self._matcher.left_out
            found = self._given(node, allocatable, free, taken)
            if self._matcher.left_out == left_out:
                self._memory.of_nodes[name] = (node, taken, offered, self._loose), found
        return found

    def of_group(self, template: NodeDevices, allocatable: Resources) -> tuple[Devices, ...]:
        """Return what a new node of a group has."""
        return self._given(template, allocatable, allocatable, frozenset())

    def _given(
        self, node: NodeDevices, allocatable: Resources, free: Resources, taken: AbstractSet[DeviceId]
    ) -> tuple[Devices, ...]:
        if not self._selectors:
            return ()
        plugged = [each for each in self._resources if allocatable.get(each)]
        own = [each for each in self._selectors if each.resource not in plugged]
        found: tuple[Devices, ...] = ()
        if node.devices:
            found = given(
                node,
                own,
                self._attributes,
                self._matcher,
                self.unplanned,
                in_use=self._keys,
                taken=taken,
                loose=self._loose,
            )
        offered = tuple(Devices(free[name], frozenset({extended(name)})) for name in plugged if free.get(name, 0) > 0)
        self.unplanned.planned.update(key for each in offered for key in each.selectors)
        return (*found, *offered)

    def left_out(self, spec: PodSpec) -> PodSpec:
        """Return the spec, unschedulable with the reason if it needs devices that are there and that planning gives to
        nobody. To be asked once all nodes and groups have been."""
        for claim in spec.claims:
            for request in claim.requests:
                reasons = {way.selector: self.unplanned.why(way.selector) for way in request.alternatives}
                if reasons and all(reasons.values()) and not spec.unschedulable:
                    why = "; ".join(f"devices of {key}: {reason}" for key, reason in reasons.items())
                    return replace(spec, unschedulable=why)
        return spec

    def shared_by_nodes(self) -> None:
        """Learn what the devices are that several nodes can use, and note why nobody gets them."""
        there = self._nodes.get("")
        if there is None or not self._selectors:
            return
        matched, failing, left_out = set(), set(), self._matcher.left_out
        for selector in self._selectors:
            try:
                if any(self._matcher.matches(selector, each) for each in there.devices):
                    matched.add(selector.key)
                    self.unplanned.note(selector.key, (_SEVERAL_NODES,), given=False)
            except InvalidInput as error:
                failing.add(selector.key)
                self.unplanned.note_failure(selector.key, error)
        self.is_partial = self._matcher.left_out != left_out
        self._loose = Loose(frozenset(matched), frozenset(failing), there.incomplete)
