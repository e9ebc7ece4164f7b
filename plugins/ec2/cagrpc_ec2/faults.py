"""EC2's error codes and what they mean to the fleet: a refusal in one of its kinds, an unknown answer, or a call that
had its effect before. Codes are those of "Error codes for the Amazon EC2 API" and of `StateReason`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cagrpc import errors
from cagrpc.errors import ErrorKind
from cagrpc.fleet.model import InstanceError

_CAPACITY = frozenset(
    {
        "InsufficientAddressCapacity",
        "InsufficientCapacity",
        "InsufficientCapacityOnHost",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientHostCapacity",
        "InsufficientInstanceCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientVolumeCapacity",
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
        "UnfulfillableCapacity",
    }
)
_QUOTA = frozenset({"MaxSpotInstanceCountExceeded", "MaxSpotFleetRequestCountExceeded", "PendingVerification"})
_THROTTLED = frozenset(
    {"BandwidthLimitExceeded", "EC2ThrottledException", "RequestLimitExceeded", "Throttling", "ThrottlingException"}
)
_UNKNOWN = frozenset(
    {"InternalError", "InternalFailure", "RequestTimeout", "RequestTimeoutException", "ServiceUnavailable",
     "Unavailable", "ExpiredToken", "ExpiredTokenException", "RequestExpired"}
)  # fmt: skip
"""The call may have had its effect, or the credentials are being renewed: to be repeated."""
_DONE_BEFORE = frozenset({"IdempotentInstanceTerminated", "IdempotentParameterMismatch"})
"""Of a client token that was used. A mismatch means that the section was configured anew since: what was launched then
is listed, and is what was ordered."""
_RIGHTS = frozenset(
    {"AuthFailure", "Blocked", "InvalidClientTokenId", "OptInRequired", "PendingVerification", "SignatureDoesNotMatch",
     "UnauthorizedOperation"}
)  # fmt: skip
"""Whatever is ordered, the account or its user may not."""
_LAUNCH_FAILURES = {
    "Server.InsufficientInstanceCapacity": ErrorKind.CAPACITY,
    "Server.InternalError": ErrorKind.OTHER,
    "Client.InternalError": ErrorKind.CONFIGURATION,  # most often a KMS key that the caller may not use
    "Client.InvalidSnapshot.NotFound": ErrorKind.CONFIGURATION,
    "Client.VolumeLimitExceeded": ErrorKind.QUOTA,
}
"""Reasons of an instance that was accepted and ended before it ran."""

_RETRY_AFTER_SECONDS = {
    ErrorKind.CAPACITY: 180.0,  # as long as Karpenter's AWS provider takes an offering for unavailable
    ErrorKind.QUOTA: 300.0,
    ErrorKind.CONFIGURATION: 600.0,
    ErrorKind.OTHER: None,
}
"""EC2 does not say how long; asking for what is short again at once only spends call rate."""

_LONGEST_MESSAGE = 500
_ENCODED = re.compile(r"\s*Encoded authorization failure message:.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ApiError(Exception):
    """EC2's definite answer that it has not done what a call asked for."""

    code: str
    message: str

    def __str__(self) -> str:
        return f"EC2: {self.code}: {self.message}"

    @property
    def done_before(self) -> bool:
        """Whether an earlier call with this client token had its effect."""
        return self.code in _DONE_BEFORE

    @property
    def concerns_every_order(self) -> bool:
        """Whether nothing can be launched until somebody grants a right."""
        return self.code in _RIGHTS


def api_error(code: str, message: str, status: int) -> ApiError | None:
    """Return an error of EC2 in its meaning; None where it says nothing about the effect of the call, which is to be
    repeated. Shortages have a status of 500 and more as well."""
    if code in _THROTTLED or code in _UNKNOWN:
        return None
    if status >= 500 and code not in _CAPACITY and not code.startswith("Insufficient"):
        return None
    return ApiError(code, readable(message))


def is_throttled(code: str) -> bool:
    """Return whether the call rate was too high."""
    return code in _THROTTLED


def readable(message: str) -> str:
    """Return a message without what is encoded in it for the account's administrators, and not too long."""
    return _ENCODED.sub("", message).strip()[:_LONGEST_MESSAGE]


def _kind(code: str) -> ErrorKind:
    if code in _CAPACITY or code.startswith("Insufficient"):
        return ErrorKind.CAPACITY
    if code in _QUOTA or code.endswith("LimitExceeded"):
        return ErrorKind.QUOTA
    return ErrorKind.CONFIGURATION


def refusal(error: ApiError, group_id: str) -> errors.OrderRefused:
    """Return why instances of a node group were not launched."""
    kind = _kind(error.code)
    message = f"node group {group_id}: {error}"
    return errors.REFUSALS[kind](message, (group_id,), retry_after_seconds=_RETRY_AFTER_SECONDS[kind])


def launch_failure(code: str, message: str) -> InstanceError | None:
    """Return why an accepted instance ended before it ran, from its state's reason; None for any other end."""
    kind = _LAUNCH_FAILURES.get(code)
    if kind is None:
        return None
    return InstanceError(code, readable(message), kind, _RETRY_AFTER_SECONDS[kind])
