"""What a Machine's status says of its instance: creating, running, deleting, and why a creation has failed.

Cluster API has no terminal failure from v1beta2 on: a provider tries for ever, and most report only that they are not
ready yet. What is known to be a shortage, a quota or a mistake by its reason or message is an error at once; all else
waits for the increment's deadline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cagrpc.api.core.resources import mapping, members
from cagrpc.errors import ErrorKind
from cagrpc.fleet.model import InstanceError, InstanceState

_KNOWN: tuple[tuple[ErrorKind, tuple[str, ...]], ...] = (
    (
        ErrorKind.CAPACITY,
        (
            "InsufficientInstanceCapacity",  # EC2
            "InsufficientHostCapacity",
            "InsufficientReservedInstanceCapacity",
            "No valid host was found",  # OpenStack Nova
            "NoValidHost",
            "resource_unavailable",  # Hetzner Cloud
            "ZonalAllocationFailed",  # Azure
            "OverconstrainedAllocationRequest",
            "OverconstrainedZonalAllocationRequest",
            "AllocationFailed",
            "SkuNotAvailable",
            "ZONE_RESOURCE_POOL_EXHAUSTED",  # Compute Engine
            "InsufficientResources",  # Cluster API's MachineStatusError
        ),
    ),
    (
        ErrorKind.QUOTA,
        (
            "VcpuLimitExceeded",  # EC2
            "InstanceLimitExceeded",
            "MaxSpotInstanceCountExceeded",
            "Quota exceeded for",  # OpenStack Nova
            "resource_limit_exceeded",  # Hetzner Cloud
            "QuotaExceeded",  # Azure
            "QUOTA_EXCEEDED",  # Compute Engine
        ),
    ),
    (
        ErrorKind.CONFIGURATION,
        (
            "InvalidConfiguration",  # Cluster API's MachineStatusError
            "UnsupportedChange",
            "InvalidAMIID",  # EC2
            "UnauthorizedOperation",
        ),
    ),
)
"""Words of clouds and of Cluster API in reasons and messages, and what they mean."""
_LONGEST_MESSAGE = 500
_CONDITIONS = ("InfrastructureReady", "BootstrapConfigReady", "BootstrapReady")
"""Those that a Machine needs to become a Node; the last is the second's name in v1beta1."""


def state_of(machine: Mapping[str, Any]) -> InstanceState:
    """Return the state of an instance by its Machine."""
    if mapping(machine, "metadata", "", []).get("deletionTimestamp"):
        return InstanceState.DELETING
    return InstanceState.RUNNING if provider_id(machine) else InstanceState.CREATING


def provider_id(machine: Mapping[str, Any]) -> str:
    """Return the Machine's spec.providerID, which the core sets once the infrastructure is there; else empty."""
    return str(mapping(machine, "spec", "", []).get("providerID") or "")


def error_of(machine: Mapping[str, Any]) -> InstanceError | None:
    """Return why a Machine that has no infrastructure yet will not get any; None where that is not known."""
    status = mapping(machine, "status", "", [])
    reason, message = _terminal(status)
    if reason or message:
        return InstanceError(
            reason or "failed", _shortened(message or reason), _kind(reason, message) or ErrorKind.OTHER
        )
    for reason, message in _complaints(status):
        kind = _kind(reason, message)
        if kind is not None:
            return InstanceError(reason or kind.value, _shortened(message or reason), kind)
    return None


def complaint_of(machine: Mapping[str, Any]) -> str:
    """Return what the Machine is waiting for, for people; empty where it does not say."""
    found = (": ".join(filter(None, each)) for each in _complaints(mapping(machine, "status", "", [])))
    return _shortened("; ".join(found))


def _terminal(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return failureReason and failureMessage, where v1beta1 has them and where v1beta2 keeps them. The core of v1beta2
    copies them from providers of the old contract."""
    for place in (status, mapping(mapping(status, "deprecated", "", []), "v1beta1", "", [])):
        reason, message = str(place.get("failureReason") or ""), str(place.get("failureMessage") or "")
        if reason or message:
            return reason, message
    return "", ""


def _complaints(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield reason and message of the conditions that are false."""
    for condition, _ in members(status, "conditions", "", []):
        if condition.get("type") in _CONDITIONS and condition.get("status") == "False":
            yield str(condition.get("reason") or ""), str(condition.get("message") or "")


def _kind(reason: str, message: str) -> ErrorKind | None:
    for kind, words in _KNOWN:
        if any(word in reason or word in message for word in words):
            return kind
    return None


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 1]}…"
