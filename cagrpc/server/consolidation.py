"""Wiring of the controller of consolidation: what it asks, and who walks. What each does is in
`cagrpc.controllers.consolidation`."""

from __future__ import annotations

from collections.abc import Callable

from cagrpc.cluster.node_info import Reservations
from cagrpc.cluster.state import ClusterState
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.consolidation.assignment import assigned
from cagrpc.controllers.consolidation.controller import AskedQuestion, ConsolidationController
from cagrpc.controllers.consolidation.observer import Observer
from cagrpc.controllers.consolidation.question import ConsolidationQuestion
from cagrpc.controllers.consolidation.unfinished import UnfinishedStep
from cagrpc.controllers.consolidation.walk import Walk
from cagrpc.controllers.events import Note
from cagrpc.controllers.placement.places import Places
from cagrpc.controllers.provisioning.controller import ProvisioningController
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.fleet.fleet import Fleet
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import MonotonicClock, monotonic
from cagrpc.runtime.fair_lock import FairLock
from cagrpc.server.runtime import Runtime
from solver.consolidation.consolidate import consolidate
from solver.consolidation.model import ConsolidationPlan, ConsolidationProblem, ConsolidationStep
from solver.model import Budget

_ANSWER_SECONDS = 10.0
"""Of a request that evicts or cordons; one that is not answered is made again."""


class Walker:
    """Walks steps as plans have them."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk

    @property
    def waits_for(self) -> str:
        return self._walk.waits_for

    @property
    def evicted(self) -> int:
        return self._walk.evictions.evicted

    @property
    def refused(self) -> int:
        return self._walk.evictions.refused

    def begin(self, step: ConsolidationStep, asked: AskedQuestion[ConsolidationQuestion]) -> None:
        """Begin the first step of a plan."""
        self._walk.begin(assigned(step, asked.question))

    def advance(self) -> None:
        self._walk.advance()

    def undo(self, why: str) -> None:
        self._walk.undo(why)


def walk_of(
    settings: ConsolidationSettings,
    client: Client,
    view: ClusterView,
    fleet: Fleet,
    places: Places,
    reservations: Callable[[ClusterState], Reservations],
    *,
    clock: MonotonicClock = monotonic,
) -> Walk:
    """Return who walks. `reservations` are those of ProvisioningRequests: what slack holds gives way to pods."""
    return Walk(
        client.hurried(_ANSWER_SECONDS),
        fleet,
        view,
        places,
        reserved=reservations,
        deadline_seconds=settings.step_deadline_seconds,
        minimum_node_age_seconds=settings.minimum_node_age_seconds,
        clock=clock,
    )


def consolidation_controller(
    settings: ConsolidationSettings,
    walk: Walk,
    view: ClusterView,
    fleet: Fleet,
    requests: ProvisioningController | None,
    slack: Callable[[], Reservations],
    *,
    shortage_seconds: float,
    turn: FairLock,
    record: Callable[[Note], object],
    runtime: Runtime,
) -> ConsolidationController[ConsolidationQuestion]:
    """Return the controller. `slack` is the room of placeholders; `record` writes Events."""
    now = runtime.now

    def plan(problem: ConsolidationProblem, budget: Budget) -> ConsolidationPlan:
        return consolidate(problem, runtime.budget or budget)

    if requests is None:
        observer = Observer(
            view, fleet, settings, shortage_seconds=shortage_seconds, slack=slack, record=record, now=now
        )
    else:
        observer = Observer(
            view,
            fleet,
            settings,
            shortage_seconds=shortage_seconds,
            reservations=requests.reservations,
            booked=requests.booked_nodes,
            slack=slack,
            requests_due=requests.due,
            requests_known=requests.observed_once,
            record=record,
            now=now,
        )
    return ConsolidationController(
        fleet, observer, Walker(walk), settings, plan, turn=turn, now=now, clock=runtime.clock
    )


def unfinished_step(client: Client, view: ClusterView, fleet: Fleet) -> UnfinishedStep:
    """Return who undoes the step that is under way where consolidation is off."""
    return UnfinishedStep(client.hurried(_ANSWER_SECONDS), fleet, view)
