"""The result of the last step for ProvisioningRequests, for other threads. Immutable; how it is computed is
`controller`'s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cagrpc.controllers.assume_cache.bookings import AssumedRequests, Booked, Booking
from cagrpc.controllers.provisioning.observation import RequestsObservation
from cagrpc.controllers.provisioning.progress import Action, Pods, RequestPhase
from cagrpc.controllers.provisioning.records import record
from cagrpc.controllers.settings import ClassBehaviour

_MOST_NAMESPACES = 20


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
