"""ProvisioningRequests as plain values: what is asked for, and by whom. The objects' JSON is
`cagrpc.api.provisioning.objects`'s, what becomes of them `progress`'s.

Source: the proposal "Provisioning Request CRD" and CA's API autoscaling.x-k8s.io/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cagrpc.controllers.settings import ClassBehaviour
from solver.model import PodSet


def namespace_of(key: str) -> str:
    """Return the namespace of a `namespace/name` key."""
    return key.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Service:
    """How requests of one class are served."""

    behaviour: ClassBehaviour
    books: bool = True
    """Whether capacity that was found is reserved. Not for the proposal's check-capacity class."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Defaults; a request's own take precedence."""


class ConditionType(StrEnum):
    """The types of conditions that we write."""

    ACCEPTED = "Accepted"
    PROVISIONED = "Provisioned"
    FAILED = "Failed"
    BOOKING_EXPIRED = "BookingExpired"
    CAPACITY_REVOKED = "CapacityRevoked"
    CAPACITY_AVAILABLE = "CapacityAvailable"


OURS = frozenset(map(str, ConditionType))
"""Their names."""


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
    """One of a request's pod sets, as in its spec."""

    template: str
    """Name of a PodTemplate in the request's namespace."""
    count: int


@dataclass(frozen=True, slots=True)
class ProvisioningRequest:
    """An object, as observed last."""

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
    """Those of any other type, verbatim."""
    details: Mapping[str, str] = field(default_factory=dict)
    """status.provisioningClassDetails."""
    deleting: bool = False
    problems: tuple[str, ...] = ()
    """Invalid fields of the object, each with its path; for `Failed`."""

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    def holds(self, condition: ConditionType) -> bool:
        """Return whether the condition is present and true."""
        found = self.conditions.get(condition)
        return found is not None and found.status


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request to be decided, with its pods as planning has them."""

    uid: str
    key: str
    """namespace/name."""
    pod_sets: tuple[PodSet, ...]
    """One for each pod set of the request, in its order. Gang and priority are the request's, not set here."""
    priority: int = 0
    created_at_seconds: float = 0.0
    attempts: int = 0
    """Failed attempts, after any of which it is planned alone."""
    overtaken: int = 0
    """How often it was bypassed by later requests of no higher priority."""
    turn: int = 0
    """At one priority the lowest comes first; in a tie the oldest."""
    may_keep: bool = True
    """Whether capacity may be reserved for it where it was bypassed too often."""
