"""What a check says to people: why it waits, what its pods cost, what would serve them. The explanation and the
counter-offer are the request's own; here they are put together."""

from __future__ import annotations

from cagrpc.api.kueue import Retries
from cagrpc.controllers.provisioning.model import Condition, ProvisioningRequest


def asked(request: str, attempt: int, retries: Retries) -> str:
    """Of a request that has not been answered."""
    return f"ProvisioningRequest {request} (attempt {attempt} of {retries.limit + 1}) waits for an answer"


def refused(why: str, attempt: int, retries: Retries) -> str:
    return f"attempt {attempt} of {retries.limit + 1} failed: {why}"


def explained(request: ProvisioningRequest, condition: Condition) -> str:
    """What a condition says, with the cost, the proven bound and the nodes where the request tells them."""
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
