"""ProvisioningRequests and their classes as plain values: what is asked for, by whom, and on what terms; and which
requests are ours. The objects' JSON is `cagrpc.api.provisioning.objects`'s, what becomes of them `progress`'s.

Source: the proposal "Provisioning Request CRD" and CA's API autoscaling.x-k8s.io/v1."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cagrpc.api.provisioning.objects import Condition
from cagrpc.controllers.settings import ClassBehaviour
from cagrpc.durations import duration_seconds
from cagrpc.errors import in_one_line, shown
from solver.model import PodSet

CHECK_CAPACITY = "check-capacity.kubernetes.io"
ATOMIC_SCALE_UP = "atomic-scale-up.kubernetes.io"
UPSTREAM_CHECK_CAPACITY = "check-capacity.autoscaling.x-k8s.io"
UPSTREAM_ATOMIC_SCALE_UP = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
VALID_UNTIL = "ValidUntilSeconds"
"""Parameter: how long after its creation a request is valid; seconds, or a duration as Go writes it."""
NO_RETRY = "noRetry"
"""Parameter: `true` fails a request at the first attempt that finds no capacity (upstream: for check capacity only)."""
PROCESSOR = "processorInstance"
"""Parameter: the name of the cluster-autoscaler that handles a request of upstream's check-capacity class."""
_TRUTHS = {"true": True, "false": False}


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
    """One for each pod set of the request, in its order, or for each slice of one. Gang and priority are the request's,
    not set here."""
    priority: int = 0
    created_at_seconds: float = 0.0
    attempts: int = 0
    """Failed attempts, after any of which it is planned alone."""
    bypassed: int = 0
    """How often it was bypassed by later requests of no higher priority."""
    turn: int = 0
    """At one priority the lowest comes first; in a tie the oldest."""
    may_keep: bool = True
    """Whether capacity may be reserved for it where it was bypassed too often."""
    early: bool = False
    """Whether it is tried before its next attempt is due: where it is not served then, nobody is told why."""


_OURS = {
    CHECK_CAPACITY: Service(ClassBehaviour.CHECK, books=False),
    ATOMIC_SCALE_UP: Service(ClassBehaviour.ATOMIC),
}
_UPSTREAM = {
    UPSTREAM_CHECK_CAPACITY: Service(ClassBehaviour.CHECK),
    UPSTREAM_ATOMIC_SCALE_UP: Service(ClassBehaviour.ATOMIC),
}


@dataclass(frozen=True, slots=True)
class Terms:
    """A request's parameters."""

    valid_seconds: float | None = None
    """Since its creation; None where there is no such parameter."""
    no_retry: bool = False


def service_of(
    request: ProvisioningRequest, left_to_us: Collection[ClassBehaviour], presets: Callable[[str], Service | None]
) -> Service | None:
    """Return how the request is served; None for a class that is not ours. `left_to_us` are the behaviours whose
    upstream classes the cluster-autoscaler leaves to us, `presets` returns the service of a ProvisioningClass by
    name."""
    name = request.class_name
    if name in _OURS:
        return _OURS[name]
    if name in _UPSTREAM:
        service = _UPSTREAM[name]
        elsewhere = service.behaviour is ClassBehaviour.CHECK and bool(request.parameters.get(PROCESSOR))
        return service if service.behaviour in left_to_us and not elsewhere else None
    return presets(name)


def is_ours(class_name: str, left_to_us: Collection[ClassBehaviour], presets: Callable[[str], Service | None]) -> bool:
    """Return whether requests of the class are ours in general."""
    named = ProvisioningRequest(uid="", namespace="", name="", class_name=class_name, pod_sets=())
    return service_of(named, left_to_us, presets) is not None


def terms(request: ProvisioningRequest, service: Service) -> Terms | str:
    """Return the parameters, or what is invalid in them, in a sentence. A request's own take precedence over its
    class's."""
    given = {**service.parameters, **request.parameters}
    problems = [
        f"spec.parameters: found {shown(name)}, expected one of {VALID_UNTIL}, {NO_RETRY}"
        for name in sorted(given)
        if name not in (VALID_UNTIL, NO_RETRY, PROCESSOR)
    ]
    valid: float | None = None
    if VALID_UNTIL in given:
        valid = duration_seconds(given[VALID_UNTIL].strip()) or None
        if valid is None:
            problems.append(
                f"spec.parameters.{VALID_UNTIL}: found {shown(given[VALID_UNTIL])}, expected seconds (3600) or a"
                " duration (1h30m), more than none"
            )
    no_retry = _TRUTHS.get(given.get(NO_RETRY, "false").lower())
    if no_retry is None:
        problems.append(f"spec.parameters.{NO_RETRY}: found {shown(given[NO_RETRY])}, expected true or false")
    if problems:
        return in_one_line(problems)
    return Terms(valid, bool(no_retry))
