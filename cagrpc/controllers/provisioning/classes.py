"""Provisioning classes and their parameters: which requests are ours, and on what terms. What becomes of a request is
`progress`'s."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from cagrpc.controllers.provisioning.model import ProvisioningRequest, Service
from cagrpc.controllers.settings import ClassBehaviour
from cagrpc.durations import duration_seconds
from cagrpc.errors import in_one_line

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

_OURS = {
    CHECK_CAPACITY: Service(ClassBehaviour.CHECK, books=False),
    ATOMIC_SCALE_UP: Service(ClassBehaviour.ATOMIC),
}
_UPSTREAM = {
    UPSTREAM_CHECK_CAPACITY: Service(ClassBehaviour.CHECK),
    UPSTREAM_ATOMIC_SCALE_UP: Service(ClassBehaviour.ATOMIC),
}
_TRUTHS = {"true": True, "false": False}


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
        f"spec.parameters: found {name!r:.80}, expected one of {VALID_UNTIL}, {NO_RETRY}"
        for name in sorted(given)
        if name not in (VALID_UNTIL, NO_RETRY, PROCESSOR)
    ]
    valid: float | None = None
    if VALID_UNTIL in given:
        valid = duration_seconds(given[VALID_UNTIL].strip()) or None
        if valid is None:
            problems.append(
                f"spec.parameters.{VALID_UNTIL}: found {given[VALID_UNTIL]!r:.80}, expected seconds (3600) or a"
                " duration (1h30m), more than none"
            )
    no_retry = _TRUTHS.get(given.get(NO_RETRY, "false").lower())
    if no_retry is None:
        problems.append(f"spec.parameters.{NO_RETRY}: found {given[NO_RETRY]!r:.80}, expected true or false")
    if problems:
        return in_one_line(problems)
    return Terms(valid, bool(no_retry))
