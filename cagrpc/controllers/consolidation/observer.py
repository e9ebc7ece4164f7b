"""Reads fleet and cluster, and makes the question of them with what others hold; or says why nothing may be begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from cagrpc.cluster.node_info import Reservations, nothing_reserved
from cagrpc.cluster.shortages import Shortages
from cagrpc.cluster.state import BoundPodsSource, ClusterSource, ClusterState
from cagrpc.controllers.consolidation.controller import AskedQuestion
from cagrpc.controllers.consolidation.must_go import must_go
from cagrpc.controllers.consolidation.question import ConsolidationQuestion, question, why_not_now
from cagrpc.controllers.scale_down.choice import Bookings
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import FleetSnapshot, PodKey
from cagrpc.runtime.clock import EpochClock, epoch

PATIENCE_SECONDS = 900.0
"""A pod that has waited for so long, with no increment in flight, is one that nothing can be done for now: nobody waits
for it any longer. Increments have less time than this."""


class ObservedCluster(ClusterSource, BoundPodsSource, Protocol):
    """The part of `cagrpc.cluster.view.view.ClusterView` that asking needs."""

    @property
    def problem(self) -> str | None: ...


class Observer:
    """For one thread."""

    def __init__(
        self,
        cluster: ObservedCluster,
        fleet: Fleet,
        settings: ConsolidationSettings,
        *,
        shortage_seconds: float,
        reservations: Callable[[ClusterState], Reservations] = nothing_reserved,
        booked: Callable[[], Mapping[str, str]] = dict,
        slack: Callable[[], Reservations] = dict,
        requests_due: Callable[[], int] = int,
        requests_known: Callable[[], bool] = lambda: True,
        now: EpochClock = epoch,
    ) -> None:
        """`reservations` is the room of ProvisioningRequests, `booked` their nodes, `slack` the room of placeholders;
        `requests_due` counts requests that still need room. `now` is the fleet's clock."""
        self._cluster, self._fleet, self._settings = cluster, fleet, settings
        self._reservations, self._booked, self._slack = reservations, booked, slack
        self._requests_due, self._requests_known = requests_due, requests_known
        self._now = now
        self._shortages = Shortages(shortage_seconds, now)
        self._waiting_since: dict[PodKey, float] = {}

    def __call__(self) -> AskedQuestion[ConsolidationQuestion] | str:
        """Return what is asked now, or why nothing may be begun. Raises Unavailable while the cluster is not known."""
        snapshot, now = self._fleet.snapshot, self._now()
        self._shortages.learn(snapshot)
        hindrance = self._hindrance(self._cluster.state(), snapshot, now)
        if hindrance:
            return hindrance
        state = self._cluster.state_with_bound_pods()
        hindrance = self._hindrance(state, snapshot, now)
        if hindrance:
            return hindrance
        asked = question(
            state,
            snapshot,
            self._settings,
            now,
            going=must_go(state.nodes, snapshot, self._settings, now),
            bookings=Bookings(self._reservations(state), self._booked(), self._slack()),
            short=frozenset(each.offering for each in self._shortages.active()),
        )
        return AskedQuestion(snapshot, state, asked.problem, asked)

    def _hindrance(self, state: ClusterState, snapshot: FleetSnapshot, now: float) -> str:
        problem = self._cluster.problem or self._fleet.problem
        if problem is None and not self._requests_known():
            problem = "ProvisioningRequests are not known yet"
        found = why_not_now(
            state,
            snapshot,
            problem=problem,
            requests_due=self._requests_due(),
            unservable=self._given_up(state, now),
        )
        return "; ".join(found)

    def _given_up(self, state: ClusterState, now: float) -> AbstractSet[PodKey]:
        """Return the pods that have waited for too long to be waited for."""
        waiting = [pod.key for each in state.waiting for pod in each.pods]
        self._waiting_since = {key: self._waiting_since.get(key, now) for key in waiting}
        return {key for key, since in self._waiting_since.items() if now >= since + PATIENCE_SECONDS}
