"""Requests as JSON, for `/provisioningrequests` and `cagrpc explain provisioningrequest`."""

from __future__ import annotations

from typing import Any

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.controllers.provisioning import conditions
from cagrpc.controllers.provisioning.model import ConditionType, ProvisioningRequest
from cagrpc.controllers.provisioning.observation import ManagedRequest, RequestsObservation
from cagrpc.controllers.provisioning.progress import Pods

_EXPLAINED_BY = (
    ConditionType.FAILED,
    ConditionType.CAPACITY_REVOKED,
    ConditionType.BOOKING_EXPIRED,
    ConditionType.PROVISIONED,
    ConditionType.ACCEPTED,
)
"""Conditions by precedence, the most telling first."""


def record(observed: RequestsObservation, each: ManagedRequest) -> dict[str, Any]:
    """Return one request of ours as JSON."""
    request, details, pods = each.request, each.request.details, each.pods
    increment = observed.increments.get(request.uid)
    consumed = conditions.consumed_of(request)
    return {
        "namespace": request.namespace,
        "name": request.name,
        "uid": request.uid,
        "class": request.class_name,
        "behaviour": each.service.behaviour.value,
        "phase": each.phase.value,
        "explanation": explanation(each),
        "created": timestamp(request.created_at_seconds),
        "priority": pods.priority if isinstance(pods, Pods) else None,
        "pods": pods.count if isinstance(pods, Pods) else None,
        "pod_sets": [
            {"template": asked.template, "count": asked.count, "consumed": consumed.get(index, 0)}
            for index, asked in enumerate(request.pod_sets)
        ],
        "attempts": conditions.attempts_of(request),
        "retry_at": details.get(conditions.RETRY_AT, ""),
        "overtaken": conditions.overtaken_of(request),
        "increment": None
        if increment is None
        else {"id": increment.id, "phase": increment.phase.value, "message": increment.message},
        "cost_per_hour": details.get("costPerHour", ""),
        "lower_bound_per_hour": details.get("lowerBoundPerHour", ""),
        "gap": details.get("gap", ""),
        "node_groups": details.get("nodeGroups", ""),
        "node_selector": details.get("nodeSelector", ""),
        "nodes": sorted(observed.booked.get(request.uid, ())),
        "consumers": len(observed.consumers.get(request.key, ())),
        "conditions": {
            kind: {"status": found.status, "reason": found.reason, "message": found.message}
            for kind, found in sorted(request.conditions.items())
        },
    }


def explanation(each: ManagedRequest) -> str:
    """Return why it is in its phase, in a sentence."""
    message = _message(each.request)
    if message:
        return message
    return "waits to be decided" if isinstance(each.pods, Pods) else f"waits: {each.pods.message}"


def _message(request: ProvisioningRequest) -> str:
    for kind in _EXPLAINED_BY:
        found = request.conditions.get(kind)
        if found is not None and (found.status or kind is ConditionType.PROVISIONED) and found.message:
            return found.message
    return ""
