"""What the last step for ProvisioningRequests came to, as others ask for it: bookings, nodes, pods, records. Immutable;
how it comes about is `controller`'s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cagrpc.cluster.state import ConsumerStage, PendingPod
from cagrpc.controllers.provisioning.bookings import Booked, consumer_nodes
from cagrpc.controllers.provisioning.model import Booking
from cagrpc.controllers.provisioning.observation import RequestsObservation
from cagrpc.controllers.provisioning.progress import Next
from cagrpc.controllers.provisioning.records import record
from cagrpc.controllers.settings import ClassBehaviour

_MOST_NAMESPACES = 20


@dataclass(frozen=True, slots=True)
class Seen:
    """Requests as they were observed last, what comes next for each, and the room that is kept for them."""

    observed: RequestsObservation
    nexts: Mapping[str, Next]
    bookings: tuple[Booking, ...]
    booked: Booked

    def booked_nodes(self) -> Mapping[str, str]:
        """Return the nodes on which room is kept, and for whom (namespace/name)."""
        keys = {booking.uid: booking.key for booking in self.bookings}
        on_nodes = {name: keys[uids[0]] for name, uids in self.booked.uids.items()}
        own = {name: keys[uid] for uid in keys for name in self.observed.booked.get(uid, ())}
        return {**own, **on_nodes}

    def consumer_nodes(self, nominated: Callable[[Iterable[str]], Mapping[str, PendingPod]]) -> Mapping[str, str]:
        """Return which pod that consumes a request is to be nominated to which node of its booking, both by UID.
        `nominated` gives pods as they are."""
        if not self.booked.places:
            return {}
        observed = self.observed
        consumers = {
            uid: observed.consumers[ours.request.key]
            for uid, ours in observed.ours.items()
            if uid in self.booked.places and ours.request.key in observed.consumers
        }
        uids = [each.pod.uid for pods in consumers.values() for each in pods if each.stage is ConsumerStage.PENDING]
        pending = nominated(uids) if uids else {}
        found = consumer_nodes(self.booked, consumers, {uid: pod.nominated_node for uid, pod in pending.items()})
        return {uid: node for uid, node in found.items() if uid in pending}

    def records(self) -> list[dict[str, Any]]:
        """Return every request of ours, oldest first, as JSON."""
        return [
            record(self.observed, replace(each, phase=self.nexts[uid].phase))
            for uid, each in self.observed.ours.items()
            if uid in self.nexts
        ]

    def phases(self) -> Mapping[str, int]:
        """Return how many requests are in which phase."""
        return Counter(each.phase.value for each in self.nexts.values())

    def over_share(self) -> Mapping[str, int]:
        """Return, by namespace, how many requests wait for others of it; of very many namespaces the first."""
        waiting = (self.observed.ours[uid] for uid, each in self.nexts.items() if each.over_share)
        return dict(Counter(each.request.namespace for each in waiting).most_common(_MOST_NAMESPACES))


def bookings_of(observed: RequestsObservation, nexts: Mapping[str, Next]) -> tuple[Booking, ...]:
    """Return room that is kept, the oldest request's first. One whose nodes are still coming is among them: others
    see its labels, and plan, before it is looked at again."""
    found = []
    for uid, each in nexts.items():
        ours = observed.ours[uid]
        if each.holds:
            anywhere = ours.service.behaviour is ClassBehaviour.CHECK
            found.append(Booking(uid, ours.request.key, each.holds, anywhere))
    return tuple(found)
