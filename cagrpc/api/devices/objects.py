"""What planning reads of resource.k8s.io: devices with their slices, classes, claims and templates of every supported
version, as plain values, from Kubernetes' JSON shape. What they mean together is in `matching` (devices) and `claims`
(pods). v1beta1 differs from the others in two places: a device's fields are under `basic`, and a request's are not
under `exactly`.

Sources: k8s.io/api/resource/v1, v1beta2, v1beta1; KEP-4381, KEP-4815 (shared counters), KEP-4816 (firstAvailable),
KEP-5055 (device taints), KEP-5075 (consumable capacity).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cagrpc.api.core.constraints import node_term
from cagrpc.api.encoding.json_documents import LARGEST, Problems, epoch_seconds, mapping, members, one_of, texts, whole
from cagrpc.errors import shown
from solver.model import NodeSelectorTerm
from solver.model.quantities import parse_quantity

GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Supported versions, in order of preference."""
MOST_RESULTS = 32
"""Devices of one claim (upstream: AllocationResultsMaxSize)."""
MOST_CONSUMERS = 256
"""Pods of one claim (upstream: ResourceClaimReservedForMaxSize)."""
MOST_ALTERNATIVES = 256
"""How many alternatives the requests of all claims of a pod have that is planned with: a hundred times what a pod
needs."""
MOST_SELECTOR_BYTES = 64 * 1024
"""How long the CEL expressions of one claim are that is planned with, and those of all claims of a pod."""

Counters = tuple[tuple[str, str, int], ...]
"""(counter set, counter, thousandths): what a pool has of its shared counters."""
_KEEPING_AWAY = ("NoSchedule", "NoExecute")
_SCALARS = (("string", str), ("int", int), ("bool", bool), ("version", str))


@dataclass(frozen=True, slots=True)
class SemanticVersion:
    """An attribute's semantic version, as written."""

    text: str


AttributeValue = str | int | bool | SemanticVersion | tuple["AttributeValue", ...]


@dataclass(frozen=True, slots=True)
class DeviceTaint:
    """An effect other than these two keeps nobody away."""

    key: str
    effect: str
    """NoSchedule or NoExecute."""
    value: str = ""


@dataclass(frozen=True, slots=True)
class DeviceToleration:
    key: str = ""
    """Empty with Exists: every taint."""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    """Empty: every effect."""

    def __str__(self) -> str:
        value = "" if self.operator == "Exists" else f"={self.value}"
        return f"{self.key or 'every taint'}{value}{f':{self.effect}' if self.effect else ''}"

    def tolerates(self, taint: DeviceTaint) -> bool:
        """Return whether the taint keeps nobody away who has this (upstream: resourceclaim.ToleratesTaint)."""
        if (self.key and self.key != taint.key) or (self.effect and self.effect != taint.effect):
            return False
        return self.operator == "Exists" or self.value == taint.value


class DeviceId(NamedTuple):
    driver: str
    pool: str
    name: str


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a slice, or of a node group's next node."""

    driver: str
    name: str = ""
    pool: str = ""
    attributes: tuple[tuple[str, AttributeValue], ...] = ()
    """Attributes sorted by their qualified names, `domain/name`."""
    capacity: tuple[tuple[str, str], ...] = ()
    """Quantities as written, by qualified name, sorted."""
    allow_multiple_allocations: bool = False
    taints: tuple[DeviceTaint, ...] = ()
    counters: tuple[tuple[str, str, int], ...] = ()
    """(counter set, counter, thousandths): what it takes of the shared counters of its pool."""
    beyond: str = ""
    """Why planning gives it to nobody, for people; empty where it does."""

    @property
    def id(self) -> DeviceId:
        return DeviceId(self.driver, self.pool, self.name)


@dataclass(frozen=True, slots=True)
class Slice:
    """A ResourceSlice."""

    name: str
    driver: str
    pool: str
    generation: int
    slices_of_pool: int
    node: str = ""
    """The one node whose devices these are; empty where several nodes can use them, or each device says."""
    devices: tuple[tuple[str, Device], ...] = ()
    """Devices with the node of each; that is empty where several nodes can use it."""
    counters: Counters = ()


@dataclass(frozen=True, slots=True)
class DeviceClass:
    name: str
    selectors: tuple[str, ...] = ()
    """CEL expressions, all of which must hold."""
    extended_resource: str = ""
    """The extended resource that its devices provide (KEP-5004)."""
    created_at_seconds: int = 0


@dataclass(frozen=True, slots=True)
class DevicesAsked:
    """One way to meet a request: `exactly`, or a member of `firstAvailable`."""

    class_name: str
    selectors: tuple[str, ...] = ()
    """CEL expressions, all of which must hold."""
    count: int = 1
    all: bool = False
    admin_access: bool = False
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: tuple[tuple[str, str], ...] = ()
    """Quantities that the device must have, by name as written."""
    name: str = ""
    """The name of a member of `firstAvailable`, by which constraints may name it."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    name: str
    alternatives: tuple[DevicesAsked, ...]


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    requests: tuple[ClaimRequest, ...] = ()
    match_attributes: tuple[tuple[tuple[str, ...], str], ...] = ()
    """(names of requests, none for all; attribute)"""
    unsupported: str = ""
    """What it asks that planning does not know, for people; empty where it knows all."""

    @property
    def ways(self) -> int:
        """The alternatives of its requests."""
        return sum(len(each.alternatives) for each in self.requests)

    @property
    def selector_bytes(self) -> int:
        """Return about how many bytes its CEL expressions have."""
        return sum(len(text) for each in self.requests for asked in each.alternatives for text in asked.selectors)


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A ResourceClaim."""

    namespace: str
    name: str
    spec: ClaimSpec
    uid: str = ""
    owner_uid: str = ""
    """Its controlling pod."""
    allocated: bool = False
    node_terms: tuple[NodeSelectorTerm, ...] | None = None
    """Where its allocation can be used; None for everywhere."""
    devices: tuple[DeviceId, ...] = ()
    """Allocated to it alone: without admin access and shares."""
    shares: tuple[DeviceId, ...] = ()
    """Devices with multiple allocations of which it has a share."""
    reserved_for: frozenset[str] = frozenset()
    """UIDs of the pods that use it."""
    deleted: bool = False
    """Whether it is being deleted."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


_KNOWN_OF_REQUEST = frozenset(
    {"name", "deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity"}
)


def resource_slice(document: Mapping[str, Any], problems: Problems) -> Slice:
    """Read a ResourceSlice."""
    spec = mapping(document, "spec", "", problems)
    pool = mapping(spec, "pool", "spec", problems)
    driver, name = str(spec.get("driver") or ""), str(pool.get("name") or "")
    node = str(spec.get("nodeName") or "")
    devices = []
    for entry, at in members(spec, "devices", "spec", problems):
        own = device(_fields(entry), at, problems, driver, name)
        devices.append((node or str(_fields(entry).get("nodeName") or ""), own))
    return Slice(
        name=str(mapping(document, "metadata", "", problems).get("name") or ""),
        driver=driver,
        pool=name,
        generation=whole(pool, "generation", "spec.pool", problems, 0, LARGEST),
        slices_of_pool=whole(pool, "resourceSliceCount", "spec.pool", problems, 0, LARGEST),
        node=node,
        devices=tuple(devices),
        counters=tuple(sorted(_shared_counters(spec, problems))),
    )


def _fields(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    basic = entry.get("basic")
    return {**basic, **entry} if isinstance(basic, Mapping) else entry


def device(entry: Mapping[str, Any], at: str, problems: Problems, driver: str, pool: str = "") -> Device:
    """Read a device. Names of attributes and capacities without a domain are in the driver's."""
    unknown = "nodeAllocatableResourceMappings" if entry.get("nodeAllocatableResourceMappings") else ""
    return Device(
        driver=driver,
        name=str(entry.get("name") or ""),
        pool=pool,
        attributes=tuple(sorted(_attributes(entry, at, problems, driver), key=lambda each: each[0])),
        capacity=tuple(sorted(_capacity(entry, at, problems, driver))),
        allow_multiple_allocations=entry.get("allowMultipleAllocations") is True,
        taints=tuple(
            DeviceTaint(str(taint.get("key") or ""), str(taint.get("effect")), str(taint.get("value") or ""))
            for taint, _ in members(entry, "taints", at, problems)
            if taint.get("effect") in _KEEPING_AWAY
        ),
        counters=tuple(sorted(_consumed(entry, at, problems))),
        beyond=f"they have {unknown}, which is not supported" if unknown else "",
    )


def _attributes(
    entry: Mapping[str, Any], at: str, problems: Problems, driver: str
) -> Iterable[tuple[str, AttributeValue]]:
    for name, typed in mapping(entry, "attributes", at, problems).items():
        value = _attribute(typed)
        if value is None:
            problems.append(
                f"{at}.attributes.{name}: {shown(typed)} has none of string, int, bool, version with its type"
            )
        else:
            yield qualified(str(name), driver), value


def _attribute(typed: Any) -> AttributeValue | None:
    if not isinstance(typed, Mapping):
        return None
    for key, kind in _SCALARS:
        for found, whole_list in ((typed.get(key), False), (typed.get(f"{key}s"), True)):
            if found is None:
                continue
            values = found if whole_list and isinstance(found, list) else [found]
            if any(type(each) is not kind for each in values):
                return None
            read = tuple(SemanticVersion(each) if key == "version" else each for each in values)
            return read if whole_list else read[0]
    return None


def _capacity(entry: Mapping[str, Any], at: str, problems: Problems, driver: str) -> Iterable[tuple[str, str]]:
    for name, value in mapping(entry, "capacity", at, problems).items():
        amount = value.get("value") if isinstance(value, Mapping) else value
        try:
            parse_quantity(amount if isinstance(amount, (str, int, float)) else str(amount))
        except ValueError as error:
            problems.append(f"{at}.capacity.{name}: {error}")
            continue
        yield qualified(str(name), driver), str(amount)


def qualified(name: str, driver: str) -> str:
    """Return the name with its domain."""
    return name if "/" in name else f"{driver}/{name}"


def _consumed(entry: Mapping[str, Any], at: str, problems: Problems) -> Iterable[tuple[str, str, int]]:
    for use, here in members(entry, "consumesCounters", at, problems):
        yield from _counters(str(use.get("counterSet") or ""), use, here, problems, round_up=True)


def _shared_counters(spec: Mapping[str, Any], problems: Problems) -> Iterable[tuple[str, str, int]]:
    for counter_set, here in members(spec, "sharedCounters", "spec", problems):
        yield from _counters(str(counter_set.get("name") or ""), counter_set, here, problems, round_up=False)


def _counters(
    of: str, holder: Mapping[str, Any], at: str, problems: Problems, *, round_up: bool
) -> Iterable[tuple[str, str, int]]:
    for name, counter in mapping(holder, "counters", at, problems).items():
        amount = counter.get("value") if isinstance(counter, Mapping) else None
        try:
            value = parse_quantity(amount if isinstance(amount, (str, int, float)) else str(amount)) * 1000
        except ValueError as error:
            problems.append(f"{at}.counters.{name}: {error}")
            continue
        yield of, str(name), -int(-value // 1) if round_up else int(value // 1)


def device_class(document: Mapping[str, Any], problems: Problems) -> DeviceClass:
    """Read a DeviceClass."""
    metadata, spec = mapping(document, "metadata", "", problems), mapping(document, "spec", "", problems)
    return DeviceClass(
        str(metadata.get("name") or ""),
        _selectors(spec, "spec", problems),
        str(spec.get("extendedResourceName") or ""),
        epoch_seconds(metadata.get("creationTimestamp")),
    )


def resource_claim(document: Mapping[str, Any], problems: Problems) -> ResourceClaim:
    """Read a ResourceClaim."""
    metadata, status = mapping(document, "metadata", "", problems), mapping(document, "status", "", problems)
    allocation = status.get("allocation")
    allocated = isinstance(allocation, Mapping)
    holder = mapping(status, "allocation", "status", problems)
    devices, shares = [], []
    for result, _ in members(
        mapping(holder, "devices", "status.allocation", problems), "results", "status.allocation.devices", problems
    ):
        found = DeviceId(*(str(result.get(part) or "") for part in ("driver", "pool", "device")))
        if result.get("shareID"):
            shares.append(found)
        elif not result.get("adminAccess"):
            devices.append(found)
    selector = holder.get("nodeSelector")
    owners = [each for each, _ in members(metadata, "ownerReferences", "metadata", problems)]
    return ResourceClaim(
        namespace=str(metadata.get("namespace") or "default"),
        name=str(metadata.get("name") or ""),
        spec=claim_spec(mapping(document, "spec", "", problems), "spec", problems),
        uid=str(metadata.get("uid") or ""),
        owner_uid=next((str(each.get("uid") or "") for each in owners if each.get("controller")), ""),
        allocated=allocated,
        node_terms=None if selector is None else _terms(holder, problems),
        devices=tuple(devices),
        shares=tuple(shares),
        reserved_for=frozenset(str(each.get("uid")) for each, _ in members(status, "reservedFor", "status", problems)),
        deleted=bool(metadata.get("deletionTimestamp")),
    )


def _terms(allocation: Mapping[str, Any], problems: Problems) -> tuple[NodeSelectorTerm, ...]:
    path = "status.allocation"
    selector = mapping(allocation, "nodeSelector", path, problems)
    found = members(selector, "nodeSelectorTerms", f"{path}.nodeSelector", problems)
    return tuple(node_term(term, at, problems) for term, at in found)


def resource_claim_template(document: Mapping[str, Any], problems: Problems) -> ClaimSpec:
    """Read a ResourceClaimTemplate: the spec of the claims made of it."""
    spec = mapping(document, "spec", "", problems)
    return claim_spec(mapping(spec, "spec", "spec", problems), "spec.spec", problems)


def claim_spec(spec: Mapping[str, Any], path: str, problems: Problems) -> ClaimSpec:
    """Read a v1.ResourceClaimSpec."""
    devices = mapping(spec, "devices", path, problems)
    unsupported: list[str] = []
    requests = tuple(
        ClaimRequest(str(entry.get("name") or ""), _alternatives(entry, at, problems, unsupported))
        for entry, at in members(devices, "requests", f"{path}.devices", problems)
    )
    constraints = []
    for constraint, at in members(devices, "constraints", f"{path}.devices", problems):
        attribute = constraint.get("matchAttribute")
        beside = sorted(set(constraint) - {"requests", "matchAttribute"})
        if beside or not attribute:
            unsupported.append(f"a constraint by {', '.join(beside) or 'nothing'} instead of matchAttribute")
            continue
        constraints.append((texts(constraint, "requests", at, problems), str(attribute)))
    found = ClaimSpec(requests, tuple(constraints), "; ".join(dict.fromkeys(unsupported)))
    if found.selector_bytes > MOST_SELECTOR_BYTES or found.ways > MOST_ALTERNATIVES:  # it is not kept
        most = f"{MOST_SELECTOR_BYTES // 1024} KiB of CEL expressions, or than {MOST_ALTERNATIVES} alternatives"
        return ClaimSpec(unsupported=f"asks by more than {most}")
    return found


def _alternatives(
    entry: Mapping[str, Any], at: str, problems: Problems, unsupported: list[str]
) -> tuple[DevicesAsked, ...]:
    if entry.get("firstAvailable"):
        return tuple(
            replace(_asked(each, here, problems, unsupported), name=str(each.get("name") or ""))
            for each, here in members(entry, "firstAvailable", at, problems)
        )
    if entry.get("exactly"):
        return (_asked(mapping(entry, "exactly", at, problems), f"{at}.exactly", problems, unsupported),)
    if entry.get("deviceClassName"):  # v1beta1
        return (_asked(entry, at, problems, unsupported),)
    unsupported.append(f"a request of {', '.join(sorted(set(entry) - {'name'})) or 'nothing'}")
    return ()


def _asked(entry: Mapping[str, Any], at: str, problems: Problems, unsupported: list[str]) -> DevicesAsked:
    if unknown := sorted(set(entry) - _KNOWN_OF_REQUEST - {"firstAvailable"}):
        unsupported.append(f"a request with {', '.join(unknown)}")
    mode = entry.get("allocationMode") or "ExactCount"
    if mode not in ("ExactCount", "All"):
        unsupported.append(f"the allocation mode {mode!s:.40}")
    capacity = mapping(mapping(entry, "capacity", at, problems), "requests", f"{at}.capacity", problems)
    return DevicesAsked(
        class_name=str(entry.get("deviceClassName") or ""),
        selectors=_selectors(entry, at, problems),
        count=whole(entry, "count", at, problems, 0, LARGEST, 1) or 1,
        all=mode == "All",
        admin_access=entry.get("adminAccess") is True,
        tolerations=tuple(
            _toleration(each, here, problems) for each, here in members(entry, "tolerations", at, problems)
        ),
        capacity=tuple(sorted((str(name), str(amount)) for name, amount in capacity.items())),
    )


def _toleration(entry: Mapping[str, Any], at: str, problems: Problems) -> DeviceToleration:
    return DeviceToleration(
        str(entry.get("key") or ""),
        one_of(entry, "operator", at, problems, ("Equal", "Exists")),
        str(entry.get("value") or ""),
        str(entry.get("effect") or ""),
    )


def _selectors(holder: Mapping[str, Any], path: str, problems: Problems) -> tuple[str, ...]:
    found = []
    for selector, at in members(holder, "selectors", path, problems):
        expression = mapping(selector, "cel", at, problems).get("expression")
        if isinstance(expression, str) and expression:
            found.append(expression)
        else:
            problems.append(f"{at}: expected a selector with cel.expression, found {shown(selector)}")
    return tuple(found)
