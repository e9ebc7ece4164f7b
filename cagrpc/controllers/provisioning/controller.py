"""The controller of ProvisioningRequests: observes them, the cluster and the fleet, and takes the next step for each.
Which step that is, is `progress`'s; `writing` writes statuses, `deciding` grants capacity. This module has the order of
steps and the handling of failures.

A step releases what no request asks for any more, advances every request of ours, and writes what has changed; requests
that are due are then decided together, and the decisions are written. The journal comes first, then the object: a
process that is killed between the two finds in the journal what it has to write.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prometheus_client.registry import Collector

from cagrpc.cluster.node_info import Reservations
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.bookings import AssumedRequests, Booking, consumed
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.events import EventRecorder
from cagrpc.controllers.provisioning import conditions, consumers
from cagrpc.controllers.provisioning.capacity_requeue import CapacityRequeue
from cagrpc.controllers.provisioning.deciding import Deciding
from cagrpc.controllers.provisioning.decisions import MOST_AT_ONCE
from cagrpc.controllers.provisioning.fairness import Shares, Turns, due, one_by_one
from cagrpc.controllers.provisioning.labels import BookingLabels, Crowded, by_node
from cagrpc.controllers.provisioning.model import ProvisioningRequest, is_ours
from cagrpc.controllers.provisioning.observation import (
    GoneNodes,
    LostRoom,
    ReconcileResult,
    RequestReader,
    RequestsObservation,
    bookings_of,
    increment_of,
)
from cagrpc.controllers.provisioning.progress import (
    Action,
    Decision,
    ManagedRequest,
    Pods,
    ReconcileContext,
    Refused,
    RequestPhase,
    advance,
)
from cagrpc.controllers.provisioning.scenario import scenario_of
from cagrpc.controllers.provisioning.store import RequestStore
from cagrpc.controllers.provisioning.writing import RequestMetrics, Writing
from cagrpc.controllers.runtime import Runtime
from cagrpc.controllers.settings import ClassBehaviour, RequestSettings
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import Phase as IncrementPhase
from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.controller import Controller, Json, JsonList, JsonPage, described
from cagrpc.runtime.health import SyncedResource
from solver.model import Budget

log = logging.getLogger(__name__)

STEP_SECONDS = 0.25
"""How often to step."""
OBSERVE_SECONDS = 1.0
"""How often to observe where only time and pods can have changed."""
IDLE_SECONDS = 10.0
"""How often to observe where no request of ours is open. As often, Events on pods that consume requests are written."""
OBSERVE_SHARE = 0.02
"""The share of a core that observing may take: with very many requests it is done less often, but at least every"""
SELDOM_SECONDS = 5.0
MOST_WRITTEN = 200
"""Requests written in one step; others wait for the next, and those that are due are decided in between."""
DECIDING_SECONDS = 2.0
"""The budget for requests that are decided together."""
HURRIED_SHARE = 0.25
"""The share of it that is used while more are due than are decided together, and for requests that are tried early."""
_OPEN = frozenset({RequestPhase.WAITING, RequestPhase.COMING})


class ProvisioningController(Controller):
    """Serves requests. `step` is for one thread; everything else is for any."""

    name = "ProvisioningRequests"
    every_seconds = STEP_SECONDS
    back_off = BackOff(first_seconds=0.5)

    def __init__(
        self,
        store: RequestStore,
        cluster: ClusterView,
        fleet: Fleet,
        settings: RequestSettings,
        assumed: AssumeCache,
        events: EventRecorder,
        runtime: Runtime,
    ) -> None:
        """`events` are written on requests and pods."""
        self._store = store
        self._cluster = cluster
        self._fleet = fleet
        self._settings = settings
        self._assumed = assumed
        self._events = events
        self._metrics = RequestMetrics(self.bookings)
        self._now, self._clock, self._cpu = runtime.now, runtime.clock, runtime.cpu
        self._labels = BookingLabels(store.client, assumed.labels, runtime.writers)
        self._reader = RequestReader(store, settings)
        self._writing = Writing(store, events, self._metrics, runtime)
        self._turns = Turns(settings.per_namespace, runtime.clock)
        self._deciding = Deciding(
            fleet,
            self._labels,
            runtime.budget or Budget(DECIDING_SECONDS),
            self._turns,
            still_there=self._still_there,
            stopping=lambda: self.stopping,
        )
        self._decided: dict[str, Decision] = {}
        """Decisions that are not written yet."""
        self._lost_room = LostRoom(runtime.clock)
        self._gone_nodes = GoneNodes()
        self._crowded = Crowded()
        self._requeue = CapacityRequeue(runtime.clock)
        self._seen: ReconcileResult | None = None
        self._observed_version: object = None
        self._observed_at = self._reported_at = float("-inf")
        self._observe_seconds = OBSERVE_SECONDS

    def bookings(self) -> int:
        """Return the number of requests with a reservation."""
        return len(self._bookings())

    def _bookings(self) -> tuple[Booking, ...]:
        return self._seen.bookings if self._seen is not None else ()

    def records(self) -> list[dict[str, Any]]:
        """Return every request of ours, oldest first, as JSON."""
        return self._seen.records() if self._seen is not None else []

    def informers(self) -> Sequence[SyncedResource]:
        return self._store.informers

    def status(self) -> Json:
        """Return what the controller waits for, and how many requests are in which phase."""
        seen = self._seen
        return {
            "provisioning_requests": {
                "waits_for": self.waits_for,
                "bookings": self.bookings(),
                "over_share": seen.over_share() if seen is not None else {},
                "nodes_with_most_labels": len(self._crowded.full),
                **(seen.phases() if seen is not None else {}),
            }
        }

    def pages(self) -> Mapping[str, JsonPage]:
        """Return `/provisioningrequests`, which `cagrpc explain provisioningrequest` reads."""
        return {"/provisioningrequests": JsonPage(lambda: JsonList(self.records()))}

    def collectors(self) -> Iterable[Collector]:
        return self._metrics.collectors()

    # ---- for one thread

    def step(self) -> None:
        """Reconcile all requests. Raises Unavailable where the API server or the journal is out of reach."""
        try:
            self._step()
        except Exception as error:
            self.waits_for = described(error)
            self._observed_version = None
            raise
        finally:
            if self._seen is None:  # until then nobody plans, unless it cannot be known what requests hold
                unknown = self.waits_for if self._store.problem is None else ""
                self._assumed.requests = AssumedRequests(unknown=unknown)

    def _step(self) -> None:
        hindrance = self._store.problem or self._cluster.problem or self._fleet.problem
        if hindrance is None and not self._store.synced:
            hindrance = "the list of ProvisioningRequests is still to come"
        if hindrance is not None:
            self.waits_for = hindrance
            return
        requests = self._store.requests()
        if not self._is_due(requests):
            return
        began = self._cpu()
        observed = self._observe_now(requests)
        self._requeue.learn(observed, (each.uid for each in self._bookings()))
        self._withdraw_unwanted(observed)
        seen = self._advance(observed)
        self._observe_seconds = min(SELDOM_SECONDS, max(OBSERVE_SECONDS, (self._cpu() - began) / OBSERVE_SHARE))
        open_ones = self._write(seen)
        self._report_consumers(seen)
        if any(seen.actions[uid].wants for uid in open_ones):
            self._decide(seen)
            self._observed_version = None
        self.waits_for = ""

    def _is_due(self, requests: Sequence[ProvisioningRequest]) -> bool:
        now = self._clock()
        version = self._fleet.snapshot.version, tuple((each.uid, each.resource_version) for each in requests)
        actions = self._seen.actions.values() if self._seen is not None else ()
        wait = self._observe_seconds if any(each.holds or each.phase in _OPEN for each in actions) else IDLE_SECONDS
        if version == self._observed_version and now < self._observed_at + wait:
            return False
        self._observed_version, self._observed_at = version, now
        return True

    def _observe_now(self, requests: Iterable[ProvisioningRequest]) -> RequestsObservation:
        fleet = self._fleet.snapshot  # first: what it has ordered by then is in the cluster's state, or still held
        snapshot = self._assumed.snapshot(fleet, self._cluster.state())
        return self._reader.observe(self._now(), requests, snapshot)

    def _still_there(self, uid: str) -> bool:
        return any(each.uid == uid and not each.deleting for each in self._store.requests())

    def _withdraw_unwanted(self, observed: RequestsObservation) -> None:
        """Withdraw increments in flight that no request asks for any more, remove the labels of requests that are gone,
        and forget their decisions."""
        failed = {uid for uid, each in observed.ours.items() if each.phase is RequestPhase.FAILED}
        for status in observed.fleet.increments:
            if status.phase.in_flight and status.phase is not IncrementPhase.ROLLING_BACK:
                uids = status.increment.requests
                if uids and not (uids & observed.requests.keys()) - failed:
                    log.info(
                        "increment %s is withdrawn: no request asks for it", status.id, extra={"increment": status.id}
                    )
                    self._fleet.withdraw(status.id, f"{status.increment.reason}: deleted, or failed")
        gone = {uid: names for uid, names in observed.booked.items() if uid not in observed.requests}
        self._labels.drop(by_node(gone))
        before = self._seen.observed.ours if self._seen is not None else {}
        for uid in before.keys() - observed.requests.keys():
            if before[uid].phase in (RequestPhase.WAITING, RequestPhase.COMING):
                self._writing.note(before[uid].request, "cancelled")
        self._decided = {uid: each for uid, each in self._decided.items() if uid in observed.ours}

    # ---- what comes next

    def _advance(self, observed: RequestsObservation) -> ReconcileResult:
        """Advance all requests. Others see their reservations from now on."""
        gone = self._gone_nodes.of(observed)
        states = {
            uid: self._state_of(observed, each, gone.get(uid, frozenset())) for uid, each in observed.ours.items()
        }
        actions = {uid: self._next(observed, each) for uid, each in states.items()}
        bookings = bookings_of(observed, actions)
        shares = Shares(bookings, self._settings.per_namespace)
        for uid in [uid for uid, each in actions.items() if each.wants or each.joins]:
            if why := shares.why_not(observed.ours[uid]):
                actions[uid] = self._next(observed, replace(states[uid], over_share=why))
        booked = observed.snapshot.book(bookings)
        through = [uid for uid, each in actions.items() if each.phase is RequestPhase.CONSUMED]
        replacements = consumers.replacements_without_room(observed, through, booked)
        for uid, why in self._lost_room.why(observed, actions, bookings, booked, replacements).items():
            actions[uid] = self._next(observed, replace(states[uid], lost=why))
        seen = self._seen = ReconcileResult(observed, actions, bookings, booked)
        self._assumed.requests = seen.assumed()
        return seen

    def _next(self, observed: RequestsObservation, state: ManagedRequest) -> Action:
        return advance(state, ReconcileContext(observed.fleet, self._settings, observed.at_seconds))

    def _state_of(self, observed: RequestsObservation, each: ManagedRequest, gone: frozenset[str]) -> ManagedRequest:
        uid, came = each.request.uid, conditions.consumed_of(each.request)
        pods = observed.consumers.get(each.request.key, ())
        if pods and isinstance(each.pods, Pods) and each.phase in (RequestPhase.COMING, RequestPhase.PROVISIONED):
            came = consumed(each.pods.sets, pods, came)
        return replace(
            each,
            increment=increment_of(observed, uid, self._fleet),
            labelled=len(observed.booked.get(uid, ())),
            consumed=came,
            came_at_seconds=max((pod.pod.created_at_seconds for pod in pods), default=0),
            gone=gone,
            decision=self._decided.get(uid),
            rests=self._turns.rests(each.request.namespace),
            woken=uid in self._requeue.due(),
        )

    def _write(self, seen: ReconcileResult) -> set[str]:
        """Write what has changed. Return the UIDs of requests without a change."""
        actions, ours = seen.actions, seen.observed.ours
        dropped = {uid: seen.observed.booked.get(uid, ()) for uid, each in actions.items() if each.drops_labels}
        self._labels.drop(by_node(dropped))
        through = [uid for uid in ours if actions[uid].phase not in _OPEN and not actions[uid].holds]
        self._labels.drop(self._crowded.old(seen.observed.state.nodes, through))
        self._writing.delete(ours[uid].request for uid, each in actions.items() if each.delete)
        changes = {uid: each.change for uid, each in actions.items() if each.change is not None}
        now = one_by_one(changes, lambda uid: ours[uid].request.namespace)[:MOST_WRITTEN]
        written = self._writing.write((ours[uid].request, changes[uid]) for uid in now)
        quiet = actions.keys() - changes.keys()
        for uid in written | quiet:
            self._decided.pop(uid, None)
        if written != changes.keys():
            self._observed_version = None  # conflicts, or too many for one step
        return set(quiet)

    # ---- those that are due

    def _decide(self, seen: ReconcileResult) -> None:
        """Decide those that are due. Where both kinds are, whoever else waits to plan comes between the two."""
        with self._assumed.planning_lock:
            requests = self._store.requests()
            observed = self._observe_now(requests)
            shares = Shares(seen.bookings, self._settings.per_namespace)
            atomic = due(observed, seen.actions, ClassBehaviour.ATOMIC, self._turns, shares)
            checks = due(observed, seen.actions, ClassBehaviour.CHECK, self._turns, shares)
            booked = observed.snapshot.book(seen.bookings).reservations
            early = self._requeue.due().issuperset(each.request.uid for each in atomic)
            self._requeue.tried(each.request.uid for each in (*atomic, *checks))
            try:
                if atomic:
                    scenario = scenario_of(observed.snapshot, booked)
                    share = HURRIED_SHARE if early or len(atomic) == MOST_AT_ONCE else 1.0
                    began = self._clock()
                    self._note(self._deciding.atomic(atomic, scenario, observed, share=share), observed, began)
                elif checks:
                    self._check(checks, observed, booked)
            finally:  # whoever plans next has to know what was ordered
                decided = self._advance(self._observe_now(requests))
        if atomic and checks:
            with self._assumed.planning_lock:
                observed = self._observe_now(requests)
                try:
                    self._check(checks, observed, self._advance(observed).booked.reservations)
                finally:
                    decided = self._advance(self._observe_now(requests))
        self._write(decided)

    def _check(self, checks: Sequence[ManagedRequest], observed: RequestsObservation, booked: Reservations) -> None:
        scenario, began = scenario_of(observed.snapshot, booked), self._clock()
        self._note(self._deciding.checks(checks, scenario, observed.state), observed, began)

    def _note(self, decided: Mapping[str, Decision], observed: RequestsObservation, began: float) -> None:
        """Keep decisions until they are written, and whose requests were refused in the time since `began`."""
        self._decided.update(decided)
        refused = (observed.ours[uid] for uid, each in decided.items() if isinstance(each, Refused))
        self._turns.refused((each.request.namespace for each in refused), self._clock() - began)

    # ---- pods that consume requests

    def _report_consumers(self, seen: ReconcileResult) -> None:
        now = self._clock()
        if now < self._reported_at + IDLE_SECONDS:
            return
        self._reported_at = now
        for note in consumers.notes(seen.observed, seen.booked.reservations, self._is_ours):
            self._events.event(note)

    def _is_ours(self, class_name: str) -> bool:
        return is_ours(class_name, self._settings.upstream_classes, self._store.service)
