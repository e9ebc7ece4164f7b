"""Which devices of a node can be given to whom: from slices, what is allocated and the selectors in use to the
planner's `Devices`. What pods ask for is in `claims`; CEL in `cel`.

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
from threading import RLock
from typing import TYPE_CHECKING

from cagrpc.api.devices.objects import (
    MOST_RESULTS,
    Device,
    DeviceId,
    DevicesAsked,
    SemanticVersion,
)
from cagrpc.api.devices.pools import NodeDevices
from cagrpc.errors import InvalidInput
from solver.model import Devices, PodSpec, Resources
from solver.model.quantities import parse_quantity

if TYPE_CHECKING:
    from cagrpc.api.devices.cel import Expression

MOST_STEPS = 200_000
"""Of the evaluations of one round, over all selectors: some two seconds. The rest is evaluated in the next rounds."""
_MOST_EXPRESSIONS = 10_000

_MULTIPLE = "they may be allocated several times (consumable capacity), which planning does not know"
_COUNTERS = "they are partitions that share what one device has, more than fits together, which planning does not know"
_SEVERAL_NODES = "several nodes can use them, which planning does not know"


@dataclass(frozen=True, slots=True)
class Selector:
    """Which devices one request takes: its class's conditions and its own, taints and capacities included."""

    asked: DevicesAsked
    """Count and mode do not count."""
    of_class: tuple[str, ...] = ()
    """CEL expressions of its class."""
    resource: str = ""
    """The extended resource that these devices provide where no device plugin does; empty of a claim's."""

    @property
    def key(self) -> str:
        """The planner's key, which people read too: equal keys select equal devices."""
        asked = self.asked
        if self.resource:
            return extended(self.resource)
        parts = [asked.class_name or "any class"]
        if asked.selectors:
            parts.append(
                "with " + " && ".join(f"({each})" if len(asked.selectors) > 1 else each for each in asked.selectors)
            )
        if asked.capacity:
            parts.append(f"of {', '.join(f'{name}={amount}' for name, amount in asked.capacity)}")
        if asked.tolerations:
            parts.append(f"tolerating {', '.join(map(str, asked.tolerations))}")
        return " ".join(parts)


def all_of(key: str) -> str:
    """Return the key of a request for all devices of a selector: of a node of which planning may give all of them, had
    by pods or not."""
    return f"all of {key}"


def extended(resource: str) -> str:
    """Return the key of an extended resource that a class backs."""
    return f"the extended resource {resource}"


_NO_DEVICES = NodeDevices()


@dataclass
class Unplanned:
    """Why devices that a selector matches are given to nobody, by its key, for people."""

    reasons: dict[str, str] = field(default_factory=dict)
    planned: set[str] = field(default_factory=set)
    """Keys with devices that planning gives."""

    def note(self, key: str, reasons: Iterable[str], *, given: bool) -> None:
        """Note why devices of a selector are given to nobody, and whether others are given."""
        for reason in reasons:
            self.reasons.setdefault(key, reason)
        if given:
            self.planned.add(key)

    def why(self, key: str) -> str:
        """Return why nobody gets such devices; empty where some are given, or there are none at all."""
        own = key.removeprefix(all_of(""))
        return "" if own in self.planned else self.reasons.get(own, "")


class Matcher:
    """Evaluates selectors on devices, with a memory. Thread-safe."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._expressions: dict[str, Expression | InvalidInput] = {}
        self._left = MOST_STEPS

    def begin(self) -> None:
        """Begin a round: each has a budget, so that no tenant's expressions keep others waiting."""
        with self._lock:
            self._left = MOST_STEPS
            if len(self._expressions) > _MOST_EXPRESSIONS:
                self._expressions.clear()

    @property
    def exhausted(self) -> bool:
        """Whether something was left for the next round."""
        return self._left <= 0

    def cheapest_first(self, selectors: Iterable[Selector]) -> list[Selector]:
        """Return the selectors in the order of what their expressions have cost so far."""
        return sorted(selectors, key=lambda each: (sum(map(self._cost, self._texts(each))), each.key))

    def problem(self, selector: Selector) -> str:
        """Return why the selector cannot be evaluated on any device; empty where it can."""
        with self._lock:
            found = map(self._expression, self._texts(selector))
            return next((str(each) for each in found if isinstance(each, InvalidInput)), "")

    def matches(self, selector: Selector, device: Device) -> bool:
        """Return whether the device is of the selector's, taints apart. Raises InvalidInput where an expression has no
        answer."""
        with self._lock:
            return self._hold(selector, device) and _has_capacity(selector.asked, device)

    def _hold(self, selector: Selector, device: Device) -> bool:
        for text in self._texts(selector):
            expression = self._expression(text)
            if isinstance(expression, InvalidInput):
                raise expression
            before = expression.steps
            if self._left <= 0 and not expression.knows(device):
                raise InvalidInput("its selectors take long to evaluate; the rest of them is evaluated next time")
            try:
                matches = expression.matches(device)
            finally:
                self._left -= expression.steps - before
            if not matches:
                return False
        return True

    def _texts(self, selector: Selector) -> tuple[str, ...]:
        return (*selector.of_class, *selector.asked.selectors)

    def _cost(self, text: str) -> int:
        found = self._expressions.get(text)
        return 0 if found is None or isinstance(found, InvalidInput) else found.steps

    def _expression(self, text: str) -> Expression | InvalidInput:
        found = self._expressions.get(text)
        if found is None:
            from cagrpc.api.devices.cel import Expression  # noqa: PLC0415 - a second, of which most clusters need none

            try:
                found = Expression(text)
            except InvalidInput as error:
                found = error
            self._expressions[text] = found
        return found


def _has_capacity(asked: DevicesAsked, device: Device) -> bool:
    """Return whether a device that is allocated once has the capacities that a request names (upstream:
    CmpRequestOverCapacity)."""
    has = dict(device.capacity)
    for name, amount in asked.capacity:
        there = has.get(name if "/" in name else f"{device.driver}/{name}")
        if there is None or parse_quantity(there) < parse_quantity(amount):
            return False
    return True


def given(
    node: NodeDevices,
    selectors: Sequence[Selector],
    attributes: AbstractSet[str],
    matcher: Matcher,
    unplanned: Unplanned,
    *,
    in_use: AbstractSet[str],
    taken: AbstractSet[DeviceId] = frozenset(),
    of_several_nodes: bool = False,
) -> tuple[Devices, ...]:
    """Return what a node's devices are to the selectors, but for those that are taken: to the keys `in_use`, of
    requests for some or for all of them. `attributes` are those that constraints name. Of a selector that
    fails on one of the devices no device of the node is given, as the scheduler gives up there, too."""
    matched: dict[str, list[Device]] = {}
    for selector in selectors:
        try:
            matched[selector.key] = [each for each in node.devices if matcher.matches(selector, each)]
        except InvalidInput as error:
            unplanned.reasons.setdefault(selector.key, f"{error}")
    kept_back = _kept_back(node, {each.id for found in matched.values() for each in found}, taken, of_several_nodes)
    keys: defaultdict[DeviceId, set[str]] = defaultdict(set)
    for selector in selectors:
        found = matched.get(selector.key, [])
        refused = {each.id: _untolerated(selector.asked, each) or kept_back.get(each.id, "") for each in found}
        usable = [each for each in found if not refused[each.id]]
        unplanned.note(selector.key, (why for why in refused.values() if why), given=bool(usable))
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
    return tuple(Devices(free[each], *each, taken=had[each]) for each in alike)


def _untolerated(asked: DevicesAsked, device: Device) -> str:
    for taint in device.taints:
        if not any(each.tolerates(taint) for each in asked.tolerations):
            return f"they have the taint {taint.key}, which the claim does not tolerate"
    return ""


def _kept_back(
    node: NodeDevices, matched: AbstractSet[DeviceId], taken: AbstractSet[DeviceId], of_several_nodes: bool
) -> dict[DeviceId, str]:
    """Return why planning gives a device to nobody, of those of which it does not."""
    found = {}
    for each in node.devices:
        why = each.beyond or (_MULTIPLE if each.allow_multiple_allocations else "")
        if of_several_nodes or why:
            found[each.id] = _SEVERAL_NODES if of_several_nodes else why
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


class NodeMatching:
    """What the devices of nodes are to all selectors in use: one consistent state."""

    def __init__(
        self,
        matcher: Matcher,
        selectors: Iterable[Selector] = (),
        attributes: AbstractSet[str] = frozenset(),
        *,
        keys: AbstractSet[str] = frozenset(),
        nodes: Mapping[str, NodeDevices] | None = None,
        taken: AbstractSet[DeviceId] = frozenset(),
        memory: Memory | None = None,
        awaited: AbstractSet[str] = frozenset(),
    ) -> None:
        """`keys` are those of all alternatives, `nodes` the published devices, by node name; `taken` those that some
        claim has; `memory` is of the same selectors. Of `awaited` nodes the drivers have not published yet what they
        soon will."""
        self._awaited = awaited
        self._matcher = matcher
        self._selectors = matcher.cheapest_first({each.key: each for each in selectors}.values())
        self._attributes = frozenset(attributes)
        self._keys = frozenset(keys) | {each.key for each in self._selectors if each.resource}
        self._resources = tuple(sorted(each.resource for each in self._selectors if each.resource))
        self._nodes = nodes or {}
        self._taken = taken
        self._memory = memory or Memory()
        self.unplanned = self._memory.unplanned

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
        if before != (node, taken, offered):
            found = self._given(node, allocatable, free, taken)
            if not self._matcher.exhausted:
                self._memory.of_nodes[name] = (node, taken, offered), found
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
            found = given(node, own, self._attributes, self._matcher, self.unplanned, in_use=self._keys, taken=taken)
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
        """Note why nobody gets the devices that several nodes can use."""
        loose = self._nodes.get("")
        if loose is not None and self._selectors:
            given(
                loose,
                self._selectors,
                frozenset(),
                self._matcher,
                self.unplanned,
                in_use=self._keys,
                of_several_nodes=True,
            )
