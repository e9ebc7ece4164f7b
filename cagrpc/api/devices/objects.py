"""What planning reads of resource.k8s.io: devices with their slices, classes, claims and templates, as plain values.
Kubernetes' JSON is read in `reading`; what they mean together is in `matching` (devices) and `claims` (pods)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from solver.model import NodeSelectorTerm

GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Supported versions, in order of preference."""
MOST_RESULTS = 32
"""Devices of one claim (upstream: AllocationResultsMaxSize)."""
MOST_CONSUMERS = 256
"""Pods of one claim (upstream: ResourceClaimReservedForMaxSize)."""
MOST_ALTERNATIVES = 256
"""Of the requests of all claims of one pod that is planned with: a hundred times what a pod needs."""
MOST_SELECTOR_BYTES = 64 * 1024
"""Of the CEL expressions of one claim that is planned with, and of all claims of a pod."""


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
    """By qualified name, `domain/name`, sorted."""
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


Counters = tuple[tuple[str, str, int], ...]
"""(counter set, counter, thousandths): what a pool has of its shared counters."""


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
    """With the node of each; empty where several nodes can use it."""
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
    """Of a member of `firstAvailable`, by which constraints may name it."""


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
        """Of its CEL expressions, about."""
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
