"""What exists only in the one writer: the fleet over its journal and backend, the two services over the fleet, and the
loops that drive them. Where it listens and how it becomes the writer is `server`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.cluster.released_pods import ReleasedPods
from cagrpc.config.load import Settings
from cagrpc.controllers.provisioning.writing import Outcome
from cagrpc.controllers.settings import Drive
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.journal import Journal
from cagrpc.runtime.clock import SteadyClock
from cagrpc.runtime.heartbeat import Heartbeat
from cagrpc.runtime.loop import Loop
from cagrpc.runtime.stopping import STOP_SECONDS, stop_all
from cagrpc.server.cluster import Cluster, Controllers
from cagrpc.services.decisions import DecisionLog
from cagrpc.services.grpc import expander, provider
from solver.planning.rank import rank

log = logging.getLogger(__name__)

RECONCILE_SECONDS = 1.0
FLEET_PATIENCE_SECONDS = 600.0
"""For one call of the backend, which need not have a timeout, or one write to the journal."""


class Leader:
    """The parts that change the world. Built, it answers calls; it moves on by itself from `start` to `stop`."""

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        decisions: DecisionLog,
        cluster: Cluster | None = None,
        observe: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        """Takes the journal over: it is closed with the rest, also where this raises InvalidInput or Unavailable.
        `observe` is told what becomes of ProvisioningRequests."""
        with ExitStack() as undo:
            undo.callback(journal.close)
            backend = settings.backend.open(settings.state_directory)
            undo.callback(backend.close)
            clock = SteadyClock()  # one for all who compare with the fleet's times
            heartbeat = Heartbeat("a step of the fleet", FLEET_PATIENCE_SECONDS)
            self.pages = backend.pages
            self.fleet = Fleet(
                settings.groups,
                settings.limits,
                backend.backend,
                journal,
                shown=settings.shown,
                increment_deadline_seconds=settings.increment_deadline_seconds,
                nodes=cluster.view if cluster is not None else None,
                autoscaler_may_grow=settings.drive is not Drive.PLAN,
                clock=clock,
                beat=heartbeat.beat,
            )
            self.expander = expander.Expander(
                self.fleet,
                rank,
                decisions,
                clock=clock,
                timing=_timing(settings.expander_budget_seconds),
                planner_drives=settings.drive is Drive.PLAN,
                serves_requests=settings.requests is not None,
                gang_label=cluster.settings.gang_label if cluster is not None else DEFAULT_GANG_LABEL,
                gangs=cluster.view if cluster is not None else None,
                released_pods=ReleasedPods(cluster.view, clock) if cluster is not None else lambda _: frozenset(),
            )
            undo.callback(self.expander.close)
            self.provider = provider.Provider(
                self.fleet,
                options=settings.options,
                gpu_label=settings.gpu_label,
                take_choice=decisions.take_choice,
            )
            self.controllers = (
                Controllers(settings, cluster, self.fleet, backend, clock, observe) if cluster is not None else None
            )
            self._loops = [Loop(heartbeat.name, self.fleet.reconcile, RECONCILE_SECONDS, heartbeat=heartbeat)]
            if self.controllers is not None:
                self._loops += self.controllers.loops
            self._undo = undo.pop_all()

    @property
    def problem(self) -> str:
        """Why it cannot do its work; empty where it can."""
        return self.fleet.problem or ""

    @property
    def loops(self) -> list[Heartbeat]:
        return [loop.heartbeat for loop in self._loops]

    @property
    def stuck(self) -> str:
        """What does not go on; empty where all does."""
        queues = () if self.controllers is None else self.controllers.heartbeats
        return "; ".join(each.problem for each in (*self.loops, *queues) if each.problem)

    def start(self) -> None:
        if self.controllers is not None:
            self.controllers.start()
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """The steps under way finish if they can in the time, a plan under way is thrown away; then everything is
        closed. The fleet stays as it is; what is left undone is found in the journal at the next start."""
        controllers = () if self.controllers is None else (self.controllers.stop,)
        stop_all((*controllers, *(loop.stop for loop in self._loops)), STOP_SECONDS)
        self.fleet.close()
        self._undo.close()


def _timing(budget_seconds: float) -> expander.Timing:
    """The configured time for an answer, shared out: most of the rest is the planner's."""
    return expander.Timing(
        answer_seconds=budget_seconds, decode_seconds=0.4 * budget_seconds, rank_seconds=0.6 * budget_seconds
    )
