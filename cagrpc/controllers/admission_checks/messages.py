"""Messages of checks: why one waits, and what its pods cost. Explanation and counter-offer are those of the request;
here they are only put together."""

from __future__ import annotations

from cagrpc.api.kueue import Retries
from cagrpc.controllers.provisioning.model import Condition, ProvisioningRequest


def asked(request: str, attempt: int, retries: Retries) -> str:
    """Return the message for a request without an answer."""
    return f"ProvisioningRequest {request} (attempt {attempt} of {retries.limit + 1}) waits for an answer"


def refused(why: str, attempt: int, retries: Retries) -> str:
    """Return the message for a failed attempt."""
    return f"attempt {attempt} of {retries.limit + 1} failed: {why}"


def explained(request: ProvisioningRequest, condition: Condition) -> str:
    """Return the message of a condition, with the cost, the proven bound and the node groups where they are known."""
    return "; ".join(filter(None, (condition.message or condition.reason, _cost(request), _nodes(request))))


def _cost(request: ProvisioningRequest) -> str:
    details = request.details
    cost, bound, gap = (details.get(key) for key in ("costPerHour", "lowerBoundPerHour", "gap"))
    if not cost:
        return ""
    proven = f", at least {bound}" if bound else ""
    return f"costs {cost} USD an hour{proven}{f' (gap {gap})' if gap else ''}"


def _nodes(request: ProvisioningRequest) -> str:
    groups = request.details.get("nodeGroups")
    return f"node groups {groups}" if groups else ""
