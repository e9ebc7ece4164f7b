"""Why a NodeClaim came to nothing, from what Karpenter says of it: an Event, or the condition Launched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cagrpc.api.core.resources import mapping
from cagrpc.backends.karpenter.claims import NAME_PREFIX, LaunchFailure
from cagrpc.errors import ErrorKind
from cagrpc.fleet.model import InstanceError

EVENTS = "/api/v1/namespaces/default/events"
"""Where client-go puts Events of objects without a namespace."""
EVENTS_QUERY = {"fieldSelector": "involvedObject.kind=NodeClaim,type=Warning"}

SHORTAGE = "InsufficientCapacityError"
"""Of Karpenter's Event before it deletes a NodeClaim that the cloud has no capacity for (its pkg/events)."""
NOT_READY = "NodeClassNotReady"
_REASONS = (SHORTAGE, NOT_READY)

_QUOTA = re.compile(
    r"quota|VcpuLimitExceeded|MaxSpotInstanceCountExceeded|InstanceLimitExceeded|limit for this account", re.IGNORECASE
)
"""Codes of AWS, Azure and GCP, which the providers report as insufficient capacity."""
_MISCONFIGURED = re.compile(
    r"not authorized|unauthorized|accessdenied|forbidden|invalid|malformed|not ?found|nodeclass", re.IGNORECASE
)
_LONGEST_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class Reason:
    """A warning about a NodeClaim."""

    event: str
    """The Event's name."""
    claim: str
    reason: str
    message: str

    @property
    def is_final(self) -> bool:
        """Whether Karpenter gives the NodeClaim up for it."""
        return self.reason in _REASONS and self.claim.startswith(NAME_PREFIX)


def reason(document: Mapping[str, Any]) -> Reason:
    """Decode an Event."""
    about = str(mapping(document, "involvedObject", "", []).get("name") or "")
    message = str(document.get("message") or "").removeprefix(f"NodeClaim {about} event: ")
    name = str(mapping(document, "metadata", "", []).get("name") or "")
    return Reason(name, about, str(document.get("reason") or ""), message[:_LONGEST_MESSAGE])


def of_event(found: Reason, retry_after_seconds: float) -> InstanceError:
    """Return the error of a NodeClaim that is gone. `retry_after_seconds` is what is left of the time in which
    Karpenter launches nothing of that offering."""
    if found.reason == NOT_READY:
        return InstanceError(NOT_READY, found.message, ErrorKind.CONFIGURATION)
    kind = ErrorKind.QUOTA if _QUOTA.search(found.message) else ErrorKind.CAPACITY
    return InstanceError(SHORTAGE, found.message, kind, retry_after_seconds)


def unexplained(not_ready: str | None, offering: str, retry_after_seconds: float) -> InstanceError:
    """Return the error of a NodeClaim that went before it was launched, without an Event. Karpenter 1.14 sends none
    where the NodeClass is not ready; where it is, the Event is late or lost, as after many at once."""
    if not_ready is not None:
        return InstanceError(NOT_READY, not_ready, ErrorKind.CONFIGURATION)
    message = f"{offering}: Karpenter deleted the NodeClaim before it was launched; no Event says why"
    return InstanceError(SHORTAGE, message, ErrorKind.CAPACITY, retry_after_seconds)


def of_condition(found: LaunchFailure) -> InstanceError:
    """Return the error of a NodeClaim that Karpenter tries to launch again and again."""
    text = f"{found.reason} {found.message}"
    if _QUOTA.search(text):
        kind = ErrorKind.QUOTA
    elif _MISCONFIGURED.search(text):
        kind = ErrorKind.CONFIGURATION
    else:
        kind = ErrorKind.OTHER
    return InstanceError(found.reason, found.message[:_LONGEST_MESSAGE], kind)
