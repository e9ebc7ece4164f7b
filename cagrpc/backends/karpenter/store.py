"""What is known of this fleet's NodeClaims: those that there are, those that went before they were launched, with the
reason, and which offerings are short. Follows the API server; nothing is created or deleted here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from cagrpc.backends.karpenter.claims import (
    EVENTS,
    EVENTS_QUERY,
    NODE_CLAIMS,
    NodeClaim,
    OfferingKey,
    Reason,
    claim,
    error_of_condition,
    error_of_event,
    reason,
    unexplained_error,
)
from cagrpc.cluster.markers import FLEET_LABEL
from cagrpc.fleet.backend import BackendInstance
from cagrpc.fleet.model import InstanceError, InstanceState
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.envelopes import Encoding, ObjectIdentity
from cagrpc.kube.informer.informers import Informer, InformerStore
from cagrpc.kube.informer.resource import Resource
from cagrpc.runtime.clock import EpochClock

REASON_SECONDS = 2.0
"""How long a NodeClaim's end waits for the Event with its reason, which Karpenter sends beside the deletion."""
LAUNCH_SECONDS = 30.0
"""How long Karpenter may fail to launch a NodeClaim, and try again, before that is an error: calls of a cloud that are
throttled work again by then. Karpenter itself gives up after 5 minutes."""
UNSEEN_SECONDS = 5.0
"""How long a NodeClaim that was created may be missing from the watch before it is asked for by name."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A NodeClaim that went before it was launched, and not because we deleted it."""

    claim: NodeClaim
    at_seconds: float
    error: InstanceError | None = None
    """None until its reason is known, or given up."""


class Reasons:
    """Sink of the informer of Events: why NodeClaims came to nothing, by their names. Thread-safe."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._by_event: dict[str, Reason] = {}
        self._by_claim: dict[str, Reason] = {}

    def of(self, claim: str) -> Reason | None:
        with self._lock:
            return self._by_claim.get(claim)

    def replaced(self, objects: Iterable[Reason]) -> None:
        found = [each for each in objects if each.is_final]
        with self._lock:
            self._by_event = {each.event: each for each in found}
            self._by_claim = {each.claim: each for each in found}

    def applied(self, obj: Reason) -> None:
        if obj.is_final:
            with self._lock:
                self._by_event[obj.event] = self._by_claim[obj.claim] = obj
            self._changed()

    def deleted(self, of: ObjectIdentity) -> None:
        with self._lock:
            gone = self._by_event.pop(of.name, None)
            if gone is not None:
                self._by_claim.pop(gone.claim, None)


class ClaimStore(InformerStore):
    """Thread-safe. Two informers feed it: NodeClaims with the label of the fleet, and Events about NodeClaims."""

    def __init__(
        self,
        client: Client,
        fleet: str,
        unavailable_offerings_seconds: float,
        clock: EpochClock,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called where a NodeClaim has failed, or its reason has come."""
        self._short_seconds = unavailable_offerings_seconds
        self._clock = clock
        self._changed = changed
        self._lock = threading.RLock()
        self._claims: dict[str, NodeClaim] = {}
        self._first_seen: dict[str, float] = {}
        self._failed: dict[str, Failed] = {}
        self.reasons = Reasons(changed)
        self._short: dict[OfferingKey, float] = {}
        """Until when Karpenter launches nothing of an offering."""
        self._unseen: dict[str, tuple[NodeClaim, float]] = {}
        """Sent to the API server, and not seen since."""
        self._deleted: set[str] = set()
        """That we have deleted, and that are not gone yet."""
        of_fleet = {"labelSelector": f"{FLEET_LABEL}={fleet}"}
        claims = Resource(NODE_CLAIMS, claim, Encoding.JSON, of_fleet)
        events = Resource(EVENTS, reason, Encoding.JSON, EVENTS_QUERY)
        self.informers = (
            Informer(client, claims, self),
            Informer(client, events, self.reasons),
        )

    # ---- what is read

    def listing(self) -> tuple[tuple[BackendInstance, ...], float]:
        """Return the instances in order of creation, and the time as of which they are complete."""
        with self._lock:
            now = self._clock()
            self._explain(now)
            standing = [
                (each.created_at_seconds, each.token, self._instance(each, now)) for each in self._claims.values()
            ]
            gone = [
                (each.claim.created_at_seconds or each.at_seconds, each.claim.token, _of_failed(each))
                for each in self._failed.values()
                if each.claim.name not in self._claims
            ]
            found = tuple(instance for _, _, instance in sorted([*standing, *gone], key=lambda each: each[:2]))
            return found, min((sent_at for _, sent_at in self._unseen.values()), default=now)

    def knows(self, expected: NodeClaim) -> bool:
        """Return whether this NodeClaim exists or has existed. One that failed before this process is known from its
        Event, and listed as failed from now on."""
        with self._lock:
            if expected.name in self._claims or expected.name in self._failed:
                return True
            if self.reasons.of(expected.name) is None:
                return False
            self._failed[expected.name] = Failed(expected, self._clock())
            return True

    def claim(self, name: str) -> NodeClaim | None:
        with self._lock:
            return self._claims.get(name)

    def short_for(self, offering: OfferingKey) -> float:
        """Return for how many seconds Karpenter will launch nothing of this offering; 0 where it may."""
        with self._lock:
            now = self._clock()
            self._explain(now)
            self._short = {known: until for known, until in self._short.items() if until > now}
            return max(0.0, self._short.get(offering, now) - now)

    def overdue(self) -> list[NodeClaim]:
        """Return the NodeClaims that were created and should have been seen by now."""
        with self._lock:
            now = self._clock()
            return [sent for sent, at in self._unseen.values() if now - at >= UNSEEN_SECONDS]

    def unexplained(self) -> list[NodeClaim]:
        """Return the NodeClaims whose reason should have come by now."""
        with self._lock:
            now = self._clock()
            self._explain(now)
            open_ones = [each for each in self._failed.values() if each.error is None]
            return [each.claim for each in open_ones if now - each.at_seconds >= REASON_SECONDS]

    def explain(self, name: str, not_ready: str | None) -> None:
        """Give up waiting for the Event; `not_ready` is what is wrong with the NodeClass, None where nothing is."""
        with self._lock:
            found = self._failed.get(name)
            if found is None or found.error is not None:
                return
            offering, now = found.claim.offering, self._clock()
            until = max(found.at_seconds + self._short_seconds, self._short.get(offering, 0.0))
            error = unexplained_error(not_ready, str(offering), max(1.0, until - now))
            if error.out_of_resources:
                self._short[offering] = until
            self._failed[name] = replace(found, error=error)

    # ---- what is told of our own calls

    def sending(self, sent: NodeClaim) -> None:
        """Before it is created: lists are as of this moment until it was seen."""
        with self._lock:
            self._unseen[sent.name] = (sent, self._clock())

    def not_created(self, name: str) -> None:
        """Wait for nothing: the call failed, or was not needed."""
        with self._lock:
            self._unseen.pop(name, None)

    def absent(self, sent: NodeClaim) -> None:
        """Note that the API server has accepted this NodeClaim, and has it no longer."""
        with self._lock:
            self._unseen.pop(sent.name, None)
            if sent.name not in self._claims:
                self._failed.setdefault(sent.name, Failed(sent, self._clock()))

    def deleting(self, name: str) -> None:
        """Before it is deleted by us; one that had failed is forgotten."""
        with self._lock:
            self._failed.pop(name, None)
            if name in self._claims:
                self._deleted.add(name)

    def not_deleted(self, name: str) -> None:
        """Note that the call failed: it is still to be deleted."""
        with self._lock:
            self._deleted.discard(name)

    # ---- sink of the informer of NodeClaims

    def replaced(self, objects: Iterable[NodeClaim]) -> None:
        found = {each.name: each for each in objects}
        with self._lock:
            for name in self._claims.keys() - found.keys():
                self._gone(name)
            for each in found.values():
                self.applied(each)

    def applied(self, obj: NodeClaim) -> None:
        with self._lock:
            self._unseen.pop(obj.name, None)
            known = self._claims.get(obj.name)
            if obj.name in self._failed or (known is not None and known.version > obj.version):
                return  # older than what is known
            self._claims[obj.name] = obj
            self._first_seen.setdefault(obj.name, self._clock())

    def deleted(self, of: ObjectIdentity) -> None:
        with self._lock:
            self._gone(of.name)

    def _gone(self, name: str) -> None:
        gone = self._claims.pop(name, None)
        self._first_seen.pop(name, None)
        asked = name in self._deleted
        self._deleted.discard(name)
        if gone is not None and not gone.provider_id and not asked:
            self._failed[name] = Failed(gone, self._clock())
            self._changed()

    # ---- from what is known to what is listed

    def _explain(self, now: float) -> None:
        """Find the reasons of failures, and which offerings they say are short."""
        for name, each in self._failed.items():
            if each.error is not None:
                continue
            told = self.reasons.of(name)
            if told is not None:
                error = self._told(told, each.claim.offering, each.at_seconds, now)
            elif each.claim.failure is not None and now - each.at_seconds >= REASON_SECONDS:
                error = error_of_condition(each.claim.failure)
            else:
                continue
            self._failed[name] = replace(each, error=error)

    def _told(self, told: Reason, offering: OfferingKey, at_seconds: float, now: float) -> InstanceError:
        """Return the error of an Event that came at that time; a shortage is one of the offering."""
        until = max(at_seconds + self._short_seconds, self._short.get(offering, 0.0))
        error = error_of_event(told, max(1.0, until - now))
        if error.out_of_resources:
            self._short[offering] = until
        return error

    def _instance(self, found: NodeClaim, now: float) -> BackendInstance:
        state, error = InstanceState.CREATING, None
        if found.name in self._deleted or (found.deleting and found.provider_id):
            state = InstanceState.DELETING
        elif found.registered and found.provider_id:
            state = InstanceState.RUNNING
        elif not found.provider_id and (told := self.reasons.of(found.name)) is not None:
            error = self._told(told, found.offering, now, now)
        elif found.failure is not None and now - self._first_seen[found.name] >= LAUNCH_SECONDS:
            error = error_of_condition(found.failure)
        return BackendInstance(found.provider_id or found.token, found.token, found.node_group, state, error)


def _of_failed(failed: Failed) -> BackendInstance:
    found = failed.claim
    return BackendInstance(found.token, found.token, found.node_group, InstanceState.CREATING, failed.error)
