"""Events on pods that consume a request, and on the request, where the two do not match. Pure; `controllers.events`
writes and deduplicates them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from cagrpc.api.provisioning.objects import API_VERSION, KIND
from cagrpc.cluster.node_info import ClusterCapacity, Reservations
from cagrpc.cluster.state import ClusterState, Consumer, ConsumerStage
from cagrpc.controllers.assume_cache.bookings import Booked, Booking, book
from cagrpc.controllers.events import Note, ObjectRef, pod_object
from cagrpc.controllers.provisioning.model import ProvisioningRequest
from cagrpc.controllers.provisioning.observation import RequestsObservation, lost_nodes
from cagrpc.controllers.provisioning.progress import ManagedRequest, Pods, RequestPhase
from solver.model.quantities import pluralize

MISSING = "ProvisioningRequestMissing"
OTHER_CLASS = "ProvisioningClassDiffers"
HALF = "ConsumesByHalf"
GONE = "CapacityGone"
TOO_MANY = "MoreConsumersThanAskedFor"

MOST_EVENTS = 100
"""Pods of one request that get the same Event."""
SETTLE_SECONDS = 20.0
"""A younger pod may still be bound, or its request be created."""


def request_object(request: ProvisioningRequest) -> ObjectRef:
    """Return the reference to a request in Events."""
    return ObjectRef(API_VERSION, KIND, request.namespace, request.name, request.uid)


def notes(observed: RequestsObservation, reservations: Reservations, is_ours: Callable[[str], bool]) -> Iterator[Note]:
    """Yield the Events that are due. `reservations` are those of bookings, `is_ours` returns whether we serve a
    class."""
    for pod, missing in observed.state.consumers_missing_annotation:
        yield Note(pod_object(pod), HALF, missing)
    by_key = {request.key: request for request in observed.requests.values()}
    room = _FreeCapacity(observed.state, reservations)
    for key, consumers in observed.consumers.items():
        pending = [each for each in consumers if _waits(each, observed.at_seconds)]
        request = by_key.get(key)
        if request is None:
            yield from _missing(key, [each for each in pending if is_ours(each.class_name)])
            continue
        ours = observed.ours.get(request.uid)
        if ours is not None:
            yield from _of_another_class(request, pending)
            yield from _too_many(ours, consumers)
            yield from _gone(ours, pending, room)


def replacements_without_room(observed: RequestsObservation, uids: Iterable[str], booked: Booked) -> dict[str, int]:
    """Return how many pods wait in vain for the capacity of each of these requests (UIDs), all of whose pods had come,
    and which have lost nodes since: they replace pods of those nodes, and nothing else provides for them."""
    room, found = _FreeCapacity(observed.state, booked.reservations), {}
    for uid in uids:
        request = observed.ours[uid].request
        consumers = observed.consumers.get(request.key, ())
        pending = [each for each in consumers if _waits(each, observed.at_seconds)]
        if pending and lost_nodes(observed, uid) and (short := room.short(request, pending)):
            found[uid] = short
    return found


def _waits(each: Consumer, now: float) -> bool:
    return each.stage is ConsumerStage.PENDING and now >= each.pod.created_at_seconds + SETTLE_SECONDS


def _each(pods: Iterable[Consumer], reason: str, text: str) -> Iterator[Note]:
    for number, each in enumerate(pods):
        if number < MOST_EVENTS:
            yield Note(pod_object(each.pod), reason, text)


def _missing(key: str, pending: Sequence[Consumer]) -> Iterator[Note]:
    text = f"there is no ProvisioningRequest {key}, so no nodes are added for this pod; create it"
    return _each(pending, MISSING, text)


def _of_another_class(request: ProvisioningRequest, pending: Iterable[Consumer]) -> Iterator[Note]:
    for each in pending:
        if each.class_name != request.class_name:
            text = (
                f"ProvisioningRequest {request.key} is of class {request.class_name}, and the pod's annotation names"
                f" {each.class_name}"
            )
            yield from _each([each], OTHER_CLASS, text)


def _too_many(ours: ManagedRequest, consumers: Sequence[Consumer]) -> Iterator[Note]:
    if not isinstance(ours.pods, Pods) or len(consumers) <= ours.pods.count:
        return
    asked = ours.pods.count
    more = len(consumers) - asked
    wanted = pluralize(asked, "pod")
    text = f"it asks for {wanted}, and {len(consumers)} consume it: nothing is reserved or added for {more} of them"
    yield Note(request_object(ours.request), TOO_MANY, text)
    rest = consumers[asked:]
    about = f"ProvisioningRequest {ours.request.key} asks for {wanted}, and as many older ones consume it"
    yield from _each([each for each in rest if each.stage is ConsumerStage.PENDING], TOO_MANY, about)


def _gone(ours: ManagedRequest, pending: Sequence[Consumer], room: _FreeCapacity) -> Iterator[Note]:
    """Yield Events where the request has no reservation any more, or never had, and pending pods find no room."""
    reserved = ours.phase is RequestPhase.PROVISIONED and ours.service.books
    if not pending or reserved or ours.phase in (RequestPhase.WAITING, RequestPhase.COMING):
        return
    short = room.short(ours.request, pending)
    if not short:
        return
    why = {
        RequestPhase.PROVISIONED: "its class checks capacity and reserves none",
        RequestPhase.EXPIRED: "its booking has expired",
        RequestPhase.REVOKED: "its capacity was lost",
        RequestPhase.FAILED: "it has failed",
    }.get(ours.phase, "all it asked for has been consumed")
    text = f"no room for {short} of {pluralize(len(pending), 'pod')} waiting, and no nodes are added: {why}"
    yield Note(request_object(ours.request), GONE, text)
    about = f"no room for it, and none is made: of ProvisioningRequest {ours.request.key}, {why}"
    yield from _each(pending, GONE, about)


class _FreeCapacity:
    """Capacity beside that of bookings, computed when it is needed first."""

    def __init__(self, state: ClusterState, reservations: Reservations) -> None:
        self._state, self._reservations = state, reservations
        self._free: ClusterState | None = None

    def short(self, request: ProvisioningRequest, pending: Sequence[Consumer]) -> int:
        """Return how many of the pods find no room."""
        if self._free is None:
            usable = [each for each in self._state.nodes if each.ready and not each.held]
            nodes = ClusterCapacity((each.node for each in usable), self._reservations).nodes
            free = (replace(each, node=node) for each, node in zip(usable, nodes, strict=True))
            self._free = replace(self._state, nodes=tuple(free))
        pods = tuple(Counter(each.spec for each in pending).items())
        booking = Booking(request.uid, request.key, pods, anywhere=True)
        return book([booking], self._free).short.get(request.uid, 0)
