"""The cluster's side of a server: what exists in a standby too (the client, the view, the candidacy for the Lease), and
the controllers of the one writer. What each does is its own module's; here they are put together.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cagrpc.backends.plugin import OpenBackend
from cagrpc.cluster.exclusion import Exclusion
from cagrpc.cluster.node_info import nothing_reserved
from cagrpc.cluster.state import ClusterState
from cagrpc.cluster.view.view import ClusterView
from cagrpc.config.load import Settings
from cagrpc.controllers.admission_checks.controller import STEP_SECONDS as KUEUE_SECONDS
from cagrpc.controllers.admission_checks.controller import KueueChecks
from cagrpc.controllers.events import Events, Note
from cagrpc.controllers.placement.controller import STEP_SECONDS as PLACEMENT_SECONDS
from cagrpc.controllers.placement.controller import PlacementController
from cagrpc.controllers.placement.places import Places, Wanted
from cagrpc.controllers.placement.release import STEP_SECONDS as RELEASE_SECONDS
from cagrpc.controllers.placement.release import Release
from cagrpc.controllers.planning import reasons
from cagrpc.controllers.planning.controller import PlannerLoop
from cagrpc.controllers.provisioning.controller import STEP_SECONDS as REQUESTS_SECONDS
from cagrpc.controllers.provisioning.controller import RequestsLoop
from cagrpc.controllers.provisioning.store import Store
from cagrpc.controllers.provisioning.writing import Outcome
from cagrpc.controllers.scale_down.choice import Rules
from cagrpc.controllers.scale_down.controller import TICK_SECONDS, ScaleDown
from cagrpc.controllers.settings import ClusterSettings, Drive, JournalKind, KueueSettings, RequestSettings
from cagrpc.controllers.slack.carriers.carrier import Switching
from cagrpc.controllers.slack.controller import STEP_SECONDS as SLACK_SECONDS
from cagrpc.controllers.slack.controller import SlackLoop
from cagrpc.controllers.slack.model import SlackSettings, no_slack
from cagrpc.controllers.slack.page import as_json
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.kube.client.client import Client
from cagrpc.kube.informer.informers import Informer, still_to_come
from cagrpc.kube.lease import LeaderElection
from cagrpc.runtime.heartbeat import Heartbeat
from cagrpc.runtime.loop import Loop
from cagrpc.runtime.stopping import stop_all
from cagrpc.server.slack import slack_loop
from solver.planning.warm_up import warm_up

PLANNER_SECONDS = 0.25
EVENTS_SECONDS = 0.5
PLANNING_PATIENCE_SECONDS = 900.0
"""And four budgets: whoever plans waits for another's turn, compiles at first, and may take longer than its budget."""


class Cluster:
    """Access to the cluster and what is known of it."""

    def __init__(self, settings: ClusterSettings, slack: Exclusion | None = None, *, expects: bool = False) -> None:
        """Asks nothing of the API server yet. `slack` is for whom it holds no room, where there is slack; `expects`:
        pods that are still to be created are planned. Raises InvalidInput for a kubeconfig that cannot be read."""
        self.settings = settings
        self.client = Client.connect(settings.kubeconfig, settings.context, pool_size=64)
        self.view = ClusterView(
            self.client,
            gang_label=settings.gang_label,
            namespace=settings.namespace,
            slack=slack,
            expects=expects,
        )
        self.election = (
            LeaderElection(self.client, settings.namespace) if settings.journal is JournalKind.CLUSTER else None
        )

    def start(self) -> None:
        self.view.start()

    def stop(self) -> None:
        self.view.stop()
        self.client.close()

    def about(self) -> Mapping[str, Any]:
        """For `/status`."""
        if self.view.problem:
            return {"cluster": self.view.problem}
        arrivals = self.view.arrivals()
        return {"cluster": self.client.server, "waiting_pods": arrivals.waiting, "pods_to_come": arrivals.expected}


class Controllers:
    """The controllers of the one writer, with the loops that drive them."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        fleet: Fleet,
        backend: OpenBackend,
        clock: Callable[[], float],
        observe: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        """`clock` is the fleet's. `observe` is told what becomes of ProvisioningRequests."""
        self._clock = clock
        view, client = cluster.view, cluster.client
        self._view, self._places = view, Places()
        self.loops: list[Loop] = []
        self._of_backend = backend.controllers(client, lambda: fleet.snapshot)
        self.loops += [Loop(each.name, each.step, each.step_seconds) for each in self._of_backend]
        self._turn = threading.Lock()
        """Of whoever plans: the same room is never given away twice."""
        self._store: Store | None = None
        self.requests: RequestsLoop | None = None
        if settings.requests is not None:
            self._store = Store(client)
            view.expect(self._store.expected)
            self.requests = self._request_loop(settings, settings.requests, cluster, fleet, self._store, observe)
        self._reservations = self.requests.reservations if self.requests is not None else nothing_reserved
        self.placement = self._placement(cluster, fleet)
        self._carried_by: Switching | None = None
        self._slack = self._hold_slack(settings.slack, cluster, fleet, settings.drive) if settings.slack else None
        self.planner = self._planner(settings, cluster, fleet) if settings.drive is Drive.PLAN else None
        self.scale_down = ScaleDown(
            view,
            fleet,
            client,
            clock=time.monotonic,
            rules=_scale_down_rules(settings),
            reservations=self._reservations,
            booked=self.requests.booked_nodes if self.requests is not None else dict,
            slack=self._slack.reservations if self._slack is not None else dict,
        )
        self.loops.append(Loop("what the autoscaler may scale down", self.scale_down.tick, TICK_SECONDS))
        self._checks = self._kueue_checks(settings.kueue, cluster) if settings.kueue is not None else None

    def _placement(self, cluster: Cluster, fleet: Fleet) -> PlacementController:
        view, requests = cluster.view, self.requests
        placement = PlacementController(
            cluster.client,
            fleet,
            view,
            self._places,
            reservations=self._reservations,
            consumers=dict if requests is None else lambda: requests.consumer_nodes(view.pending),
        )
        release = Release(cluster.client, fleet, view, placement, self._places, requests_known=self._requests_known)
        self.loops += [
            Loop("placing pods", placement.step, PLACEMENT_SECONDS, wake=placement.wake),
            Loop("releasing nodes", release.step, RELEASE_SECONDS),
        ]
        self._queues = (placement.queue, release.queue)
        return placement

    def _wanted(self, snapshot: FleetSnapshot, state: ClusterState) -> Wanted:
        return self._places.wanted(snapshot, self._view.nominated_by_us(), state)

    def _planner(self, settings: Settings, cluster: Cluster, fleet: Fleet) -> PlannerLoop:
        view = cluster.view
        events = self._events(
            cluster, reasons.CONTROLLER, reasons.ACTION, lambda note: view.pod_of(note.about.uid) is not None
        )
        slack = self._slack
        planner = PlannerLoop(
            fleet,
            view,
            settings.planner,
            say=events.say,
            now=self._clock,
            reservations=self._reservations,
            turn=self._turn,
            slack=no_slack if slack is None else lambda: slack.state,
            places=self._places,
            lost=lambda: self.placement.news,
        )
        # Compiled before its first round: that would take all of the round's time.
        self.loops.append(_planning("the planner loop", planner.step, PLANNER_SECONDS, settings))
        return planner

    def _hold_slack(self, settings: SlackSettings, cluster: Cluster, fleet: Fleet, drive: Drive) -> SlackLoop:
        namespace, planned = cluster.settings.namespace, drive is Drive.PLAN
        loop, self._carried_by = slack_loop(
            settings, namespace, cluster.client, cluster.view, fleet, self._reservations, planned=planned
        )
        self.loops.append(Loop("the slack", loop.step, SLACK_SECONDS))
        return loop

    def _request_loop(
        self,
        settings: Settings,
        of_requests: RequestSettings,
        cluster: Cluster,
        fleet: Fleet,
        store: Store,
        observe: Callable[[Outcome], None],
    ) -> RequestsLoop:
        events = self._events(cluster, "cagrpc.io/provisioning-requests", "Provisioning")
        requests = RequestsLoop(
            store,
            cluster.view,
            fleet,
            cluster.client,
            of_requests,
            turn=self._turn,
            say=events.say,
            observe=observe,
            clock=self._clock,
            planner=settings.planner,
            wanted=self._wanted,
        )
        self.loops.append(_planning("ProvisioningRequests", requests.step, REQUESTS_SECONDS, settings))
        return requests

    def _kueue_checks(self, settings: KueueSettings, cluster: Cluster) -> KueueChecks:
        events = self._events(cluster, settings.controller_name, "AnsweringAdmissionCheck")
        checks = KueueChecks(cluster.client, settings, say=events.say)
        self.loops.append(Loop("Kueue's admission checks", checks.step, KUEUE_SECONDS))
        return checks

    def _events(
        self, cluster: Cluster, controller: str, action: str, still_so: Callable[[Note], bool] = lambda _: True
    ) -> Events:
        instance = cluster.election.identity if cluster.election is not None else socket.gethostname()
        events = Events(
            cluster.client,
            clock=self._clock,
            controller=controller,
            action=action,
            still_so=still_so,
            instance=instance,
        )
        self.loops.append(Loop(f"writing Events of {controller}", events.drain, EVENTS_SECONDS))
        return events

    def _requests_known(self) -> bool:
        return self.requests is None or self.requests.looked

    def informers(self) -> tuple[Informer, ...]:
        """Of what only the one writer follows."""
        parts = (self._store, *self._of_backend, self._checks)
        return tuple(each for part in parts if part is not None for each in part.informers)

    def still_to_come(self) -> str:
        """Why not all that the one writer follows has been listed once; empty where it has."""
        return still_to_come(self.informers()) or (self._checks.still_to_come if self._checks is not None else "")

    def plans(self) -> Sequence[Mapping[str, Any]]:
        """For `/plans`."""
        return [record.as_json() for record in self.planner.plans()] if self.planner is not None else []

    def provisioning_requests(self) -> Sequence[Mapping[str, Any]]:
        """For `/provisioningrequests`."""
        return self.requests.records() if self.requests is not None else []

    def bookings(self) -> int:
        """ProvisioningRequests with a reservation."""
        return self.requests.bookings() if self.requests is not None else 0

    def checks(self) -> Mapping[str, int]:
        """What was done for Kueue's AdmissionChecks, counted."""
        return self._checks.counts if self._checks is not None else {}

    def slack(self) -> Mapping[str, Any]:
        """For `/slack`."""
        if self._slack is None or self._carried_by is None:
            return {}
        return as_json(self._slack.state, self._carried_by.carrier or "", self._slack.problem)

    def about(self) -> Mapping[str, Any]:
        """For `/status`."""
        planner = {"planner": self.planner.waits_for} if self.planner is not None else {}
        requests = {"provisioning_requests": self.requests.about()} if self.requests is not None else {}
        backend = {name: value for each in self._of_backend for name, value in each.about().items()}
        checks = {"admission_checks": self._checks.about()} if self._checks is not None else {}
        slack = {"slack": self._slack.about()} if self._slack is not None else {}
        placement = {"placement": self.placement.about()}
        return {**planner, **placement, **slack, **requests, **checks, **backend, "scale_down": self.scale_down.about()}

    @property
    def heartbeats(self) -> list[Heartbeat]:
        """Of the threads of work queues; those of the loops are theirs."""
        checks = () if self._checks is None else (self._checks.queue,)
        parts = (*self._queues, *self._of_backend, *checks)
        return [each for part in parts for each in part.heartbeats]

    def start(self) -> None:
        for queue in self._queues:
            queue.start()
        if self._store is not None:
            self._store.start()
        for each in self._of_backend:
            each.start()
        if self._checks is not None:
            self._checks.start()

    def stop(self, wait_seconds: float) -> None:
        """Nothing more is ordered, and a plan under way is thrown away. Waits at most so long for the other parts; the
        loops are the caller's to stop. The cluster stays as it is. May be repeated."""
        for planner in (self.planner, self.requests, self._slack):
            if planner is not None:
                planner.stop()
        parts = (*self._queues, self._store, *self._of_backend, self._checks)
        stop_all([part.stop for part in parts if part is not None], wait_seconds)


def _planning(name: str, step: Callable[[], object], every_seconds: float, settings: Settings) -> Loop:
    patience = PLANNING_PATIENCE_SECONDS + 4 * settings.planner.budget_seconds
    return Loop(name, step, every_seconds, first=warm_up, heartbeat=Heartbeat(name, patience))


def _scale_down_rules(settings: Settings) -> Rules:
    """Looking at every node that CA may find too little used, by the highest threshold that a group is given."""
    shares = (each.scale_down_utilization_threshold or 0.0 for each in settings.options.values())
    return Rules(utilisation=max([Rules().utilisation, *shares]))
