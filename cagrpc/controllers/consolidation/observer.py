"""Reads fleet and cluster, and makes the question of them with what others hold; or says why nothing may be begun."""

from __future__ import annotations

from typing import Protocol

from cagrpc.cluster.state import BoundPodsSource, ClusterSource, ClusterState
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.consolidation.forceful import must_go
from cagrpc.controllers.consolidation.holds import Hold, Holds, in_words, needs, notes
from cagrpc.controllers.consolidation.question import AskedQuestion, in_flight, question, why_nothing
from cagrpc.controllers.events import EventRecorder
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.runtime.clock import EpochClock, epoch


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
        assumed: AssumeCache,
        events: EventRecorder,
        now: EpochClock = epoch,
    ) -> None:
        """`now` is the fleet's clock."""
        self._cluster, self._fleet, self._settings = cluster, fleet, settings
        self._assumed, self._events, self._now = assumed, events, now
        self._holds = Holds()
        self.holding: tuple[Hold, ...] = ()

    def __call__(self) -> AskedQuestion | str:
        """Return what is asked now, or why nothing may be begun. Raises Unavailable while the cluster is not known."""
        snapshot, now = self._fleet.snapshot, self._now()
        self.holding = ()
        self._assumed.shortages.learn(snapshot)
        state = self._cluster.state()
        why = self._why_nothing(state, snapshot) or self._why_nothing_cheaper(state, snapshot, now)
        if why and not must_go(state.nodes, snapshot, self._settings, now).nodes:
            return why
        state = self._cluster.state_with_bound_pods()
        going = must_go(state.nodes, snapshot, self._settings, now)
        nothing, held = self._why_nothing(state, snapshot), self._why_nothing_cheaper(state, snapshot, now)
        if nothing or (held and not going.nodes):
            return nothing or held
        taken = self._assumed.snapshot(snapshot, state)
        asked = question(
            taken,
            self._settings,
            now,
            going=going,
            short=frozenset(each.offering for each in self._assumed.shortages.active()),
        )
        return AskedQuestion(taken, asked, held)

    def _why_nothing(self, state: ClusterState, snapshot: FleetSnapshot) -> str:
        """Return why nothing at all may be begun."""
        problem = self._cluster.problem or self._fleet.problem
        if problem is None and self._assumed.requests.unknown:
            problem = "ProvisioningRequests are not known yet"
        return "; ".join(why_nothing(state, snapshot, problem))

    def _why_nothing_cheaper(self, state: ClusterState, snapshot: FleetSnapshot, now: float) -> str:
        """Return why only nodes that must go may be taken away."""
        self.holding = self._holds.holding(needs(state, snapshot, self._assumed.requests.due), now)
        for note in notes(self.holding, now):
            self._events.event(note)
        return "; ".join((*in_words(self.holding), *in_flight(snapshot)))
