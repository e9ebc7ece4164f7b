"""One observation of everything: the requests that are ours, what they ask for, their increments, nodes and pods, and
what of their capacity is lost; and the result of a step that observed it, for other threads and as JSON. What follows
from an observation is `progress`'s."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.api.provisioning.objects import TemplatePod
from cagrpc.cluster.markers import booking_labels
from cagrpc.cluster.state import ClusterState, Consumer, PlannedTemplate
from cagrpc.controllers.assume_cache.bookings import AssumedRequests, Booked, Booking, overfull
from cagrpc.controllers.assume_cache.snapshot import Snapshot
from cagrpc.controllers.provisioning import conditions
from cagrpc.controllers.provisioning.model import ConditionType, ProvisioningRequest, Terms, service_of, terms
from cagrpc.controllers.provisioning.progress import (
    MOST_SLICES,
    Action,
    ManagedRequest,
    Pods,
    RequestPhase,
    Unreadable,
    phase_of,
)
from cagrpc.controllers.provisioning.store import RequestStore, Template
from cagrpc.controllers.settings import ClassBehaviour, RequestSettings
from cagrpc.errors import NotFound, in_one_line
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import FleetSnapshot, IncrementStatus
from cagrpc.runtime.clock import MonotonicClock
from solver.model import Labels, PodSpec
from solver.model.quantities import pluralize

PlannedTemplates = Mapping[TemplatePod, PlannedTemplate]
TEMPLATE_SECONDS = 30.0
"""How long after its request a PodTemplate may be created."""


_HOLDING = (RequestPhase.COMING, RequestPhase.PROVISIONED)


REVOKE_SECONDS = 30.0
"""How long capacity is missing before it counts as lost; until then its node may be back."""


@dataclass(frozen=True, slots=True)
class RequestsObservation:
    """Everything that one step observes."""

    at_seconds: float
    """Since the epoch."""
    requests: Mapping[str, ProvisioningRequest]
    """All requests of any class, by UID, except those that are being deleted."""
    ours: Mapping[str, ManagedRequest]
    """By UID, oldest first."""
    snapshot: Snapshot
    increments: Mapping[str, IncrementStatus]
    """The latest of each request, by UID."""
    booked: Mapping[str, frozenset[str]]
    """The nodes with the label of each request, by UID."""
    consumers: Mapping[str, tuple[Consumer, ...]] = field(default_factory=dict)
    """By the key of the request that they refer to."""

    @property
    def fleet(self) -> FleetSnapshot:
        return self.snapshot.fleet

    @property
    def state(self) -> ClusterState:
        return self.snapshot.cluster


class RequestReader:
    """Reads the pods of requests, and remembers them from when they were decided: PodTemplates may change or be
    deleted."""

    def __init__(self, store: RequestStore, settings: RequestSettings) -> None:
        self._store = store
        self._settings = settings
        self._read: dict[str, tuple[tuple[Template, int], ...]] = {}
        self._labelled = LabelledNodes()

    def observe(self, now: float, requests: Iterable[ProvisioningRequest], snapshot: Snapshot) -> RequestsObservation:
        """Return the observation of these requests and of the snapshot."""
        there = [request for request in requests if not request.deleting]
        return RequestsObservation(
            now,
            {request.uid: request for request in there},
            self._ours(there, snapshot.cluster.templates),
            snapshot,
            latest_increments(snapshot.fleet),
            self._labelled.by_request(snapshot.cluster),
            consumers_by_request(snapshot.cluster),
        )

    def _ours(self, requests: Iterable[ProvisioningRequest], planned: PlannedTemplates) -> dict[str, ManagedRequest]:
        """Return those of the requests that are ours, by UID, in their order. `planned` are templates, as planning
        reads their pods now."""
        found: dict[str, ManagedRequest] = {}
        for request in requests:
            service = service_of(request, self._settings.upstream_classes, self._store.service)
            if service is None:
                continue
            phase, agreed = phase_of(request, service), terms(request, service)
            read = self._templates(request, phase, agreed)
            pods = read if isinstance(read, Unreadable) else _pods(read, planned, waiting=phase is RequestPhase.WAITING)
            known = agreed if isinstance(agreed, Terms) else Terms()
            found[request.uid] = ManagedRequest(request, service, known, pods, phase)
        self._read = {uid: read for uid, read in self._read.items() if uid in found}
        held = (read for uid, read in self._read.items() if found[uid].phase in _HOLDING)
        self._store.keep(frozenset(template.pod for read in held for template, _ in read))
        return found

    def _templates(
        self, request: ProvisioningRequest, phase: RequestPhase, agreed: Terms | str
    ) -> tuple[tuple[Template, int], ...] | Unreadable:
        if request.uid in self._read and phase is not RequestPhase.WAITING:
            return self._read[request.uid]
        found = self._read_now(request, agreed)
        if not isinstance(found, Unreadable):
            self._read[request.uid] = found
        return found

    def _read_now(
        self, request: ProvisioningRequest, agreed: Terms | str
    ) -> tuple[tuple[Template, int], ...] | Unreadable:
        if request.problems:
            return Unreadable(conditions.BAD_PODS, "; ".join(request.problems))
        if isinstance(agreed, str):
            return Unreadable(conditions.NOT_CHECKED, agreed)
        found: list[tuple[Template, int]] = []
        problems: list[str] = []
        for index, asked in enumerate(request.pod_sets):
            template = self._store.template(request.namespace, asked.template)
            if isinstance(template, str):
                problems.append(f"spec.podSets[{index}]: {template}")
            else:
                found.append((template, asked.count))
        if problems:
            until = request.created_at_seconds + TEMPLATE_SECONDS
            return Unreadable(conditions.BAD_PODS, in_one_line(problems), until)
        return tuple(found)


def _pods(read: Sequence[tuple[Template, int]], planned: PlannedTemplates, *, waiting: bool) -> Pods:
    """Return the pods with what their volumes and claims come to now. Those of a request that has been decided wait for
    nothing more: their room is kept whatever becomes of their claims."""
    sets, slices, waits, alone = [], [], dict[str, None](), Counter[str]()
    for template, count in read:
        now = planned.get(template.pod)
        spec = template.spec if now is None else now.spec
        if now is None and (template.pod.volumes or template.pod.claims.claims):
            waits["its volumes and claims are still to be read"] = None
        elif now is not None:
            alone[now.of_one_pod] += count
            if why := spec.unschedulable or (now.of_one_pod if alone[now.of_one_pod] > 1 else ""):
                waits[f"PodTemplate {template.pod.namespace}/{template.pod.name}: {why}"] = None
        sets.append((replace(spec, unschedulable=""), count))
        slices.append(template.pod.slices)
        if template.pod.slices is not None and count > MOST_SLICES * template.pod.slices[1]:
            waits[f"it has more slices than {MOST_SLICES}, which are not planned together"] = None
    priority = max((template.priority for template, _ in read), default=0)
    return Pods(tuple(sets), priority, "; ".join(waits) if waiting else "", tuple(slices))


def latest_increments(snapshot: FleetSnapshot) -> dict[str, IncrementStatus]:
    """Return the latest increment of each request that has one, by UID."""
    found: dict[str, IncrementStatus] = {}
    for status in snapshot.increments:
        for uid in status.increment.requests:
            before = found.get(uid)
            if before is None or before.created_at_seconds <= status.created_at_seconds:
                found[uid] = status
    return found


def increment_of(observed: RequestsObservation, uid: str, fleet: Fleet) -> IncrementStatus | None:
    """Return the latest increment of a request. The snapshot omits those that ended some time ago; the fleet may still
    know them."""
    found = observed.increments.get(uid)
    recorded = observed.ours[uid].request.details.get(conditions.INCREMENT)
    if found is not None or not recorded or observed.ours[uid].phase is not RequestPhase.COMING:
        return found
    try:
        return fleet.increment(recorded)
    except NotFound:
        return None


def lost_nodes(observed: RequestsObservation, uid: str) -> bool:
    """Return whether fewer nodes have its label than its status reports."""
    return len(observed.booked.get(uid, ())) < conditions.reported_nodes(observed.ours[uid].request)


class LabelledNodes:
    """Which nodes have labels of which requests. Nodes whose labels have not changed since it was asked last are not
    read again. For one thread."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Labels, list[str]]] = {}

    def by_request(self, state: ClusterState) -> dict[str, frozenset[str]]:
        """Return the names of nodes with booking labels, by the UIDs in these."""
        before, self._known = self._known, {}
        found: defaultdict[str, set[str]] = defaultdict(set)
        for each in state.nodes:
            node = each.node
            known = before.get(node.name)
            if known is None or known[0] is not node.labels:
                known = node.labels, booking_labels(node)
            self._known[node.name] = known
            for uid in known[1]:
                found[uid].add(node.name)
        return {uid: frozenset(names) for uid, names in found.items()}


def consumers_by_request(state: ClusterState) -> dict[str, tuple[Consumer, ...]]:
    """Return the consumers of each request, by its key."""
    found: defaultdict[str, list[Consumer]] = defaultdict(list)
    for each in state.consumers:
        found[f"{each.pod.namespace}/{each.request}"].append(each)
    return {key: tuple(consumers) for key, consumers in found.items()}


class LostRoom:
    """Since when each request is short of capacity. For one thread."""

    def __init__(self, clock: MonotonicClock) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def why(
        self,
        observed: RequestsObservation,
        actions: Mapping[str, Action],
        bookings: Sequence[Booking],
        booked: Booked,
        replacements: Mapping[str, int],
    ) -> dict[str, str]:
        """Return the message for each request (UID) whose capacity is lost. `replacements` are how many pods of
        requests that had all of theirs wait in vain, by UID."""
        short = {
            uid: count
            for uid, count in booked.short.items()
            if observed.ours[uid].phase is RequestPhase.PROVISIONED and actions[uid].holds
        }
        if short:
            taken = overfull(bookings, observed.state)
            short = {
                uid: count
                for uid, count in short.items()
                if uid in taken or not observed.booked.get(uid) or lost_nodes(observed, uid)
            }
        now = self._clock()
        self._since = {uid: self._since.get(uid, now) for uid in (*short, *replacements)}
        lost = {}
        for uid, since in self._since.items():
            if now < since + REVOKE_SECONDS:
                continue
            if uid in short:
                missing = sum(count for _, count in actions[uid].holds)
                lost[uid] = f"no room is left for {short[uid]} of its {pluralize(missing, 'pod')} still to come"
            else:
                more = pluralize(replacements[uid], "pod")
                lost[uid] = f"nodes were lost after all of its pods had come; no room is left for {more} in their place"
        return lost


class GoneNodes:
    """Nodes that were booked beside those that were coming, and went before these were there. For one thread."""

    def __init__(self) -> None:
        self._booked: dict[str, frozenset[str]] = {}

    def of(self, observed: RequestsObservation) -> dict[str, frozenset[str]]:
        """Return the names by request (UID). A node that only lost its label, or that the view has not seen with it, is
        not gone."""
        now = {
            uid: observed.booked.get(uid, frozenset())
            for uid, each in observed.ours.items()
            if each.phase is RequestPhase.COMING
        }
        self._booked = {uid: self._booked.get(uid, frozenset()) | names for uid, names in now.items()}
        missing = {uid: self._booked[uid] - names for uid, names in now.items() if self._booked[uid] != names}
        there = {each.node.name for each in observed.state.nodes} if missing else frozenset[str]()
        return {uid: gone for uid, names in missing.items() if (gone := names - there)}


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
            self._waiting(),
        )

    def _waiting(self) -> Mapping[str, Sequence[tuple[PodSpec, ...]]]:
        found: defaultdict[str, list[tuple[PodSpec, ...]]] = defaultdict(list)
        for uid, each in self.actions.items():
            ours = self.observed.ours[uid]
            if each.phase is RequestPhase.WAITING and isinstance(ours.pods, Pods):
                found[ours.request.namespace].append(tuple(spec for spec, _ in ours.pods.sets))
        return found

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
            pods = tuple(pods for pods in each.holds if pods[1])
            found.append(Booking(uid, ours.request.key, pods, anywhere, coming))
    return tuple(found)
