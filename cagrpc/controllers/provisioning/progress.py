"""The state machine of a request: from what is observed of it, its increment, its nodes and its pods to what is to be
written, reserved, released or decided. Pure; `controller` carries it out.

    waiting -> coming -> provisioned -> consumed | booking expired | capacity revoked
       ^--------'                                    (any of them, and failed, deleted after a time)
       '--> failed

All state is in the object and in the journal: a new process comes to the same results. An increment is journalled
before the request's status has it, so one that is not there yet is recorded now, in whatever phase it is; the detail
`increment` names the one that was recorded last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, repeat
from math import ceil

from cagrpc.api.core.topology import in_one_domain
from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.controllers.provisioning import conditions
from cagrpc.controllers.provisioning.conditions import Change
from cagrpc.controllers.provisioning.model import Candidate, ConditionType, ProvisioningRequest, Service, Terms
from cagrpc.controllers.settings import ClassBehaviour, RequestSettings
from cagrpc.fleet.model import FleetSnapshot, IncrementStatus
from cagrpc.fleet.model import Phase as IncrementPhase
from cagrpc.runtime.progress import LONGEST_FACTOR
from solver.model import PodSet, PodSpec
from solver.model.quantities import pluralize

MOST_SLICES = 100
"""Of one pod set: each is planned as a pod set of its own."""


class RequestPhase(StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    """To be decided, now or when its next attempt is due."""
    COMING = "coming"
    """Its increment is in flight."""
    PROVISIONED = "provisioned"
    """There is capacity, reserved for its pods where its class books."""
    CONSUMED = "consumed"
    """All its pods have been counted as consumers."""
    EXPIRED = "booking-expired"
    REVOKED = "capacity-revoked"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Pods:
    """What a request asks for, with its PodTemplates resolved."""

    sets: tuple[tuple[PodSpec, int], ...]
    """The spec and the count of each pod set."""
    priority: int = 0
    waits: str = ""
    """Why no node can take them for now: what their claims and volumes still lack."""
    slices: tuple[tuple[str, int] | None, ...] = ()
    """Of each pod set that is divided into slices: the topology key of which each is to be in one domain, and how many
    pods it has."""

    def planned(self, request: str) -> Iterator[tuple[int, PodSpec, int]]:
        """Yield what is planned: of each pod set, or each slice of one, the pod set's index, the spec, and the count.
        `request` is a name that no other one has."""
        for index, ((spec, count), each) in enumerate(zip(self.sets, chain(self.slices, repeat(None)), strict=False)):
            if each is None or count > MOST_SLICES * each[1]:  # so many wait, and are not told apart
                yield index, spec, count
                continue
            key, size = each
            for number in range(ceil(count / size)):
                tied, labels = in_one_domain(
                    spec, dict(spec.labels), f"{request} pod set {index} slice {number}", [key]
                )
                yield index, replace(tied, labels=tuple(sorted(labels.items()))), min(size, count - number * size)

    @property
    def count(self) -> int:
        """The number of pods in all pod sets."""
        return sum(count for _, count in self.sets)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a request cannot be served as it is."""

    reason: str
    message: str
    until_seconds: float = 0.0
    """Until when it may become readable, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The decision that there is room on existing nodes."""

    message: str = ""
    """The result of the check."""
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Refused:
    """The decision not to serve it now, or ever (`final`)."""

    why: str
    final: bool = False
    reason: str = conditions.NOT_FOUND
    bypassed: bool = False
    """Whether it was bypassed: younger requests of no higher priority were served."""
    early: bool = False
    """Whether it was tried before its next attempt was due: that is no attempt, and there is no `why`."""
    until_seconds: float | None = None
    """Where nothing could be tried, since offerings are left out after a shortage: until when, since the epoch."""


Decision = Granted | Refused


@dataclass(frozen=True, slots=True)
class ManagedRequest:
    """A request of ours, with everything that is known of it at one time."""

    request: ProvisioningRequest
    service: Service
    terms: Terms
    pods: Pods | Unreadable
    phase: RequestPhase
    increment: IncrementStatus | None = None
    """The latest that was ordered for it."""
    labelled: int = 0
    """The number of nodes with its label."""
    consumed: Mapping[int, int] = field(default_factory=dict)
    """The number of counted consumers, by pod set."""
    came_at_seconds: float = 0.0
    """When its latest consumer was created; since the epoch."""
    lost: str = ""
    """What of its capacity is lost for good, in a sentence."""
    gone: frozenset[str] = frozenset()
    """Nodes of it that went while its increment was coming."""
    decision: Decision | None = None
    """The decision that is not written yet."""
    over_share: str = ""
    """Why it waits for others of its namespace; empty where it does not."""
    rests: bool = False
    """Whether deciding what its namespace asks for in vain has used the namespace's share of time."""
    woken: bool = False
    """Whether room was made that its pods could use, since it was decided last."""

    @property
    def candidate(self) -> Candidate:
        """The request as a candidate. One that failed for lack of room is like a new one; one whose increment was
        rolled back is planned alone."""
        request = self.request
        assert isinstance(self.pods, Pods)
        return Candidate(
            request.uid,
            request.key,
            tuple(
                PodSet(f"{request.namespace}/{request.pod_sets[index].template}", spec, count)
                for index, spec, count in self.pods.planned(request.key)
                if count
            ),
            self.pods.priority,
            request.created_at_seconds,
            0 if conditions.BYPASSED in request.details else conditions.attempts_of(request),
            conditions.bypassed_of(request),
        )


@dataclass(frozen=True, slots=True)
class ReconcileContext:
    """What is the same for all requests of one observation."""

    snapshot: FleetSnapshot
    settings: RequestSettings
    now: float
    """Since the epoch."""


@dataclass(frozen=True, slots=True)
class Action:
    """The next step of a request."""

    phase: RequestPhase
    change: Change | None = None
    """The status change to write."""
    wants: bool = False
    """Whether to decide it now."""
    joins: bool = False
    """Whether to decide it together with others that are due, before its next attempt, lest they bypass it for ever."""
    holds: tuple[tuple[PodSpec, int], ...] = ()
    """The pods to reserve capacity for."""
    drops_labels: bool = False
    """Whether its labels are to be removed from nodes."""
    delete: bool = False
    """Whether it was finished long enough ago to be deleted."""
    over_share: bool = False
    """Whether it is due and waits for others of its namespace."""


def phase_of(request: ProvisioningRequest, service: Service) -> RequestPhase:
    """Return the phase by its conditions; only `advance` finds CONSUMED."""
    if request.holds(ConditionType.FAILED):
        return RequestPhase.FAILED
    if request.holds(ConditionType.CAPACITY_REVOKED):
        return RequestPhase.REVOKED
    if request.holds(ConditionType.BOOKING_EXPIRED):
        return RequestPhase.EXPIRED
    if request.holds(ConditionType.PROVISIONED):
        return RequestPhase.PROVISIONED
    if service.behaviour is ClassBehaviour.ATOMIC and request.holds(ConditionType.ACCEPTED):
        return RequestPhase.COMING
    return RequestPhase.WAITING


def advance(state: ManagedRequest, at: ReconcileContext) -> Action:
    """Return the next step of a request."""
    phase = state.phase
    if phase is RequestPhase.WAITING:
        return _waiting(state, at)
    if phase is RequestPhase.COMING:
        return _coming(state, at)
    if at.now >= _decided_at(state.request) + at.settings.keep_seconds:
        return Action(phase, delete=True, drops_labels=True)
    if phase is RequestPhase.PROVISIONED:
        return _provisioned(state, at)
    return Action(phase, drops_labels=phase is RequestPhase.FAILED)


def valid_until(state: ManagedRequest, at: ReconcileContext) -> float:
    """Return until when a request is tried, in seconds since the epoch. By default that is as long as a finished one is
    retained."""
    seconds = state.terms.valid_seconds
    return state.request.created_at_seconds + (at.settings.keep_seconds if seconds is None else seconds)


def _decided_at(request: ProvisioningRequest) -> float:
    found = (request.conditions.get(kind) for kind in (ConditionType.FAILED, ConditionType.PROVISIONED))
    return max((each.since_seconds for each in found if each is not None and each.status), default=float("inf"))


# ---- waiting


def _waiting(state: ManagedRequest, at: ReconcileContext) -> Action:
    increment, pods = state.increment, state.pods
    if increment is not None and increment.id != state.request.details.get(conditions.INCREMENT):
        return _by_increment(state, increment, at)
    if isinstance(pods, Unreadable):
        if at.now < pods.until_seconds:
            return Action(RequestPhase.WAITING)
        return Action(RequestPhase.WAITING, conditions.failed(pods.reason, pods.message), drops_labels=True)
    if isinstance(state.decision, Granted):
        return _granted(state, state.decision, pods)
    return _not_served(state, state.decision, at)


def _not_served(state: ManagedRequest, refused: Refused | None, at: ReconcileContext) -> Action:
    due = at.now >= conditions.retry_at(state.request)
    if refused is not None:
        return Action(RequestPhase.WAITING, _refused(state, refused, at, due=due), drops_labels=True)
    if at.now >= valid_until(state, at) and not _is_one_off(state.service):
        return Action(RequestPhase.WAITING, _expired(state, at), drops_labels=True)
    if state.over_share:
        change = conditions.not_tried(state.request, conditions.OVER_SHARE, state.over_share)
        return Action(RequestPhase.WAITING, change, drops_labels=True, over_share=True)
    if isinstance(state.pods, Pods) and state.pods.waits:
        return _without_claims(state, state.pods.waits)
    lacks_room = conditions.BYPASSED in state.request.details
    wants = not state.rests and (due or (state.woken and lacks_room))
    joins = not (wants or state.rests) and lacks_room and state.service.behaviour is ClassBehaviour.ATOMIC
    return Action(RequestPhase.WAITING, wants=wants, joins=joins, drops_labels=not wants)


def _without_claims(state: ManagedRequest, why: str) -> Action:
    """Return the next step where nothing can be tried before others have done something: it is no attempt."""
    change = conditions.not_tried(state.request, conditions.CLAIMS_NOT_READY, why)
    if state.terms.no_retry or _is_one_off(state.service):
        change = conditions.failed(conditions.CLAIMS_NOT_READY, why, unavailable=_is_one_off(state.service))
    return Action(RequestPhase.WAITING, change, drops_labels=True)


def _is_one_off(service: Service) -> bool:
    return service.behaviour is ClassBehaviour.CHECK and not service.books


def _granted(state: ManagedRequest, decision: Granted, pods: Pods) -> Action:
    if state.service.behaviour is ClassBehaviour.ATOMIC:
        change = conditions.has_room(state.request, decision.nodes)
    else:
        change = conditions.available(decision.message)
    return Action(RequestPhase.WAITING, change, holds=pods.sets if state.service.books else ())


def _refused(state: ManagedRequest, decision: Refused, at: ReconcileContext, *, due: bool) -> Change | None:
    check = state.service.behaviour is ClassBehaviour.CHECK
    times = conditions.bypassed_of(state.request) + decision.bypassed
    if decision.early:
        return conditions.bypassed(times) if decision.bypassed else None
    if decision.final or state.terms.no_retry or _is_one_off(state.service):
        return conditions.failed(decision.reason, decision.why, unavailable=check)
    if decision.until_seconds is not None:
        until = decision.until_seconds
        return conditions.short(state.request, decision.why, until, valid_until(state, at), bypassed=times)
    if not due and not conditions.waits_for_a_shortage(state.request):
        return conditions.bypassed(times) if decision.bypassed else None
    until = valid_until(state, at)
    return conditions.not_now(state.request, state.service.behaviour, decision.why, at.now, until, bypassed=times)


def _expired(state: ManagedRequest, at: ReconcileContext) -> Change:
    why = conditions.last_reason(state.request) or "it was not decided in time"
    until = timestamp(valid_until(state, at))
    return conditions.failed(conditions.EXPIRED, f"not provisioned by {until}, the end of its validity: {why}")


# ---- coming


def _coming(state: ManagedRequest, at: ReconcileContext) -> Action:
    if state.increment is not None:
        return _by_increment(state, state.increment, at)
    recorded = state.request.details.get(conditions.INCREMENT, "")
    why = f"its increment {recorded or '(no name)'} is no longer known"
    return Action(RequestPhase.COMING, _rolled_back(state, why, recorded, at), drops_labels=True)


def _by_increment(state: ManagedRequest, increment: IncrementStatus, at: ReconcileContext) -> Action:
    """Return the next step by what became of its increment; the status of one that waits does not have it yet."""
    standing, change = _standing(state, increment), None
    match increment.phase:
        case IncrementPhase.ROLLING_BACK:
            return Action(state.phase)
        case IncrementPhase.ROLLED_BACK:
            return Action(state.phase, _rolled_back(state, increment.message, increment.id, at), drops_labels=True)
        case IncrementPhase.DONE if state.gone:
            nodes = pluralize(len(state.gone), "node")
            why = f"{nodes} that stood beside its own went meanwhile: {', '.join(sorted(state.gone))}"
            return Action(state.phase, _rolled_back(state, why, increment.id, at), drops_labels=True)
        case IncrementPhase.DONE:
            change = conditions.provisioned(state.request, increment, at.snapshot, standing)
        case _ if state.phase is RequestPhase.WAITING:
            change = conditions.accepted(state.request, increment, at.snapshot, standing)
    return Action(RequestPhase.COMING, change, holds=_held(state))


def _rolled_back(state: ManagedRequest, why: str, increment: str, at: ReconcileContext) -> Change:
    if state.terms.no_retry:
        return conditions.failed(conditions.NOT_FOUND, why, increment=increment)
    until = valid_until(state, at)
    return conditions.not_now(state.request, state.service.behaviour, why, at.now, until, increment=increment)


def _standing(state: ManagedRequest, increment: IncrementStatus) -> int:
    """Return how many of its nodes existed before its increment. A new node gets its label when it is released."""
    new = conditions.nodes_of(state.request.uid, increment)
    if state.request.details.get(conditions.INCREMENT) == increment.id:
        return max(0, conditions.reported_nodes(state.request) - new)
    begun = increment.phase in (IncrementPhase.PLANNED, IncrementPhase.CREATING)
    return state.labelled if begun else max(0, state.labelled - new)


# ---- provisioned


def _provisioned(state: ManagedRequest, at: ReconcileContext) -> Action:
    if not state.service.books:
        return Action(RequestPhase.PROVISIONED)
    request, pods, seconds = state.request, state.pods, at.settings.booking_seconds
    came = {index: count for index, count in state.consumed.items() if count}
    counted = conditions.consumption(came) if came != conditions.consumed_of(request) else None
    missing = _missing(state)
    if state.lost:
        return Action(RequestPhase.PROVISIONED, conditions.both(counted, conditions.capacity_revoked(state.lost)))
    if isinstance(pods, Pods) and not missing:
        return Action(RequestPhase.CONSUMED, counted)
    provisioned_at = request.conditions[ConditionType.PROVISIONED].since_seconds
    longest = provisioned_at + LONGEST_FACTOR * seconds
    if at.now >= min(longest, max(provisioned_at, state.came_at_seconds) + seconds):
        many = f"{sum(came.values())} of {pods.count}" if isinstance(pods, Pods) else "not all"
        text = f"{many} of its pods have come, and none for {seconds:.0f} s; its reservation has expired"
        if at.now >= longest:
            text = f"{many} of its pods have come within {LONGEST_FACTOR * seconds:.0f} s; its reservation has expired"
        return Action(RequestPhase.PROVISIONED, conditions.both(counted, conditions.booking_expired(text)))
    return Action(RequestPhase.PROVISIONED, counted, holds=missing)


def _held(state: ManagedRequest) -> tuple[tuple[PodSpec, int], ...]:
    return _missing(state) if state.service.books else ()


def _missing(state: ManagedRequest) -> tuple[tuple[PodSpec, int], ...]:
    """Return its pods that have not been counted as consumers, by pod set; () where all have."""
    if isinstance(state.pods, Unreadable):
        return ()
    left = tuple(
        (spec, max(0, count - state.consumed.get(index, 0))) for index, (spec, count) in enumerate(state.pods.sets)
    )
    return left if any(count for _, count in left) else ()
