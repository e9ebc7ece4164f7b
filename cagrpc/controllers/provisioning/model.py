"""ProvisioningRequests as plain values: what is asked for, by whom, and what is kept for it. What their objects look
like is `cagrpc.api.provisioning.objects`'s, what becomes of them the `loop`'s.

Source: the proposal "Provisioning Request CRD" and CA's API autoscaling.x-k8s.io/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cagrpc.controllers.settings import ClassBehaviour
from solver.model import PodSet, PodSpec


def namespace_of(key: str) -> str:
    """Of `namespace/name`."""
    return key.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Service:
    """How requests of one class are served."""

    behaviour: ClassBehaviour
    books: bool = True
    """Whether room that was found is kept. Not for the proposal's check-capacity class."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Preset; a request's own win."""


class ConditionType(StrEnum):
    ACCEPTED = "Accepted"
    PROVISIONED = "Provisioned"
    FAILED = "Failed"
    BOOKING_EXPIRED = "BookingExpired"
    CAPACITY_REVOKED = "CapacityRevoked"
    CAPACITY_AVAILABLE = "CapacityAvailable"


OURS = frozenset(map(str, ConditionType))
"""Types of conditions that we write."""


@dataclass(frozen=True, slots=True)
class Condition:
    """metav1.Condition."""

    type: str
    status: bool
    reason: str
    message: str
    since_seconds: float
    """Of the last change of `status`, since the epoch."""


@dataclass(frozen=True, slots=True)
class RequestedPods:
    """One of a request's pod sets, as it is written."""

    template: str
    """Name of a PodTemplate in the request's namespace."""
    count: int


@dataclass(frozen=True, slots=True)
class ProvisioningRequest:
    """An object, as it was seen last."""

    uid: str
    namespace: str
    name: str
    class_name: str
    pod_sets: tuple[RequestedPods, ...]
    parameters: Mapping[str, str] = field(default_factory=dict)
    created_at_seconds: float = 0.0
    """Since the epoch."""
    resource_version: str = ""
    generation: int = 1
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    """By type, ours and any other."""
    others: tuple[Mapping[str, Any], ...] = ()
    """Those of any other type, just as they are written."""
    details: Mapping[str, str] = field(default_factory=dict)
    """status.provisioningClassDetails."""
    deleting: bool = False
    problems: tuple[str, ...] = ()
    """Invalid fields of the object, each with its path; for `Failed`."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def holds(self, condition: ConditionType) -> bool:
        """Whether the condition is there and true."""
        found = self.conditions.get(condition)
        return found is not None and found.status


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request to be decided, with its pods as planning has them."""

    uid: str
    key: str
    """namespace/name."""
    pod_sets: tuple[PodSet, ...]
    """One per pod set of the request, in its order; gang and priority are not set by pod set but by the request."""
    priority: int = 0
    created_at_seconds: float = 0.0
    attempts: int = 0
    """Failed tries to have it, after which it is planned alone."""
    overtaken: int = 0
    """How often requests after it, of no higher priority, were served while it was not."""
    turn: int = 0
    """Of those of its priority the lowest comes first; where that is the same, the oldest."""
    may_keep: bool = True
    """Whether what it needs may be kept for it where it was overtaken too often."""


@dataclass(frozen=True, slots=True)
class Booking:
    """Room that is kept for a request."""

    uid: str
    key: str
    pods: tuple[tuple[PodSpec, int], ...]
    """Of each pod set its spec, and how many of its pods are not there yet."""
    anywhere: bool = False
    """Kept wherever there is room, rather than on the nodes with its label: where nothing was ordered for it."""
