"""The result of the last step for ProvisioningRequests, for other threads, and as JSON for `/provisioningrequests` and
`cagrpc explain provisioningrequest`. Immutable; how it is computed is `controller`'s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.controllers.assume_cache.bookings import AssumedRequests, Booked, Booking
from cagrpc.controllers.provisioning import conditions
from cagrpc.controllers.provisioning.model import ConditionType, ProvisioningRequest
from cagrpc.controllers.provisioning.observation import RequestsObservation
from cagrpc.controllers.provisioning.progress import Action, ManagedRequest, Pods, RequestPhase
from cagrpc.controllers.settings import ClassBehaviour

_EXPLAINED_BY = (
    ConditionType.FAILED,
    ConditionType.CAPACITY_REVOKED,
    ConditionType.BOOKING_EXPIRED,
    ConditionType.PROVISIONED,
    ConditionType.ACCEPTED,
)
"""Conditions by precedence, the most telling first."""


_MOST_NAMESPACES = 20


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
        "bypassed": conditions.bypassed_of(request),
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


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """Requests as observed last, the next step of each, and the capacity reserved for them."""

    observed: RequestsObservation
    actions: Mapping[str, Action]
    bookings: tuple[Booking, ...]
    booked: Booked

    def assumed(self) -> AssumedRequests:
        """Return what the requests hold, for the assume cache."""
        observed, places = self.observed, self.booked.places
        return AssumedRequests(
            self.bookings,
            self._booked_nodes(),
            places,
            {
                uid: observed.consumers[ours.request.key]
                for uid, ours in observed.ours.items()
                if uid in places and ours.request.key in observed.consumers
            },
            Counter(observed.requests[uid].namespace for uid, each in self.actions.items() if each.wants),
        )

    def _booked_nodes(self) -> Mapping[str, str]:
        """Return the nodes with reservations, and for which request (namespace/name)."""
        keys = {booking.uid: booking.key for booking in self.bookings}
        on_nodes = {name: keys[uids[0]] for name, uids in self.booked.uids.items()}
        own = {name: keys[uid] for uid in keys for name in self.observed.booked.get(uid, ())}
        return {**own, **on_nodes}

    def records(self) -> list[dict[str, Any]]:
        """Return every request of ours, oldest first, as JSON."""
        return [
            record(self.observed, replace(each, phase=self.actions[uid].phase))
            for uid, each in self.observed.ours.items()
            if uid in self.actions
        ]

    def phases(self) -> Mapping[str, int]:
        """Return how many requests are in which phase."""
        return Counter(each.phase.value for each in self.actions.values())

    def over_share(self) -> Mapping[str, int]:
        """Return how many requests wait for others of their namespace, by namespace; the first 20 only."""
        waiting = (self.observed.ours[uid] for uid, each in self.actions.items() if each.over_share)
        return dict(Counter(each.request.namespace for each in waiting).most_common(_MOST_NAMESPACES))


def bookings_of(observed: RequestsObservation, actions: Mapping[str, Action]) -> tuple[Booking, ...]:
    """Return the bookings, the oldest request's first. They include requests whose nodes are in flight: others may see
    their labels, and plan, before the next observation."""
    found = []
    for uid, each in actions.items():
        ours = observed.ours[uid]
        if each.holds:
            anywhere = ours.service.behaviour is ClassBehaviour.CHECK
            coming = each.phase is RequestPhase.COMING
            pods = ours.pods.apart(each.holds) if isinstance(ours.pods, Pods) else each.holds
            found.append(Booking(uid, ours.request.key, pods, anywhere, coming))
    return tuple(found)
