"""Wiring of the leader's controllers that work on a cluster. What each does is in `cagrpc.controllers`."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial

from cagrpc.backends.plugin import OpenBackend
from cagrpc.cluster.node_info import Reservations, merged, nothing_reserved
from cagrpc.cluster.state import ClusterState
from cagrpc.config.settings import Settings
from cagrpc.controllers.admission_checks.controller import AdmissionCheckController
from cagrpc.controllers.consolidation.walk import Walk
from cagrpc.controllers.events import EventRecorder, Note
from cagrpc.controllers.placement.controller import PlacementController
from cagrpc.controllers.placement.dedication import Dedication
from cagrpc.controllers.placement.places import Places, Wanted
from cagrpc.controllers.placement.release import ReleaseController
from cagrpc.controllers.placement.traces import ReleasedTraces
from cagrpc.controllers.planning import reasons
from cagrpc.controllers.planning.controller import PlanningController
from cagrpc.controllers.provisioning.controller import ProvisioningController
from cagrpc.controllers.provisioning.store import RequestStore
from cagrpc.controllers.scale_down.choice import Rules
from cagrpc.controllers.scale_down.controller import ScaleDownController
from cagrpc.controllers.settings import ConsolidationMode, Drive
from cagrpc.controllers.slack.model import no_slack
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.runtime.clock import EpochClock
from cagrpc.runtime.controller import Controller
from cagrpc.runtime.fair_lock import FairLock
from cagrpc.server.cluster import ClusterConnection
from cagrpc.server.consolidation import consolidation_controller, unfinished_step, walk_of
from cagrpc.server.runtime import Runtime
from cagrpc.server.slack import slack_controller


def cluster_controllers(
    settings: Settings, cluster: ClusterConnection, fleet: Fleet, backend: OpenBackend, runtime: Runtime
) -> list[Controller]:
    """Return the controllers in the order in which they are started and stopped."""
    view, client = cluster.view, cluster.client
    now, clock = runtime.now, runtime.clock
    events = partial(_events, cluster, now)
    turn = FairLock()  # held while planning, so that the same room is never assigned twice
    places = Places()
    built: list[Controller] = []

    walk: Walk | None = None

    def of_walk(state: ClusterState) -> Reservations:  # of one that is built later: it heeds those of requests
        return {} if walk is None else walk.reservations(state)

    requests = None
    if settings.requests is not None:
        store = RequestStore(client)
        view.expect(store.expected)
        recorder = events("cagrpc.io/provisioning-requests", "Provisioning")
        requests = ProvisioningController(
            store,
            view,
            fleet,
            client,
            settings.requests,
            turn=turn,
            record=recorder.event,
            now=now,
            clock=clock,
            cpu=runtime.cpu,
            budget=runtime.budget,
            workers=runtime.writers,
            planner=settings.planner,
            wanted=partial(_wanted, places, cluster),
            others=of_walk,
        )
        built += [requests, recorder]
    of_requests = requests.reservations if requests is not None else nothing_reserved
    if settings.consolidation is not None:
        walk = walk_of(settings.consolidation, client, view, fleet, places, of_requests, clock=clock)
    reservations = partial(_merged, of_requests, of_walk)

    placement = PlacementController(
        client,
        fleet,
        view,
        places,
        reservations=reservations,
        consumers=dict if requests is None else partial(requests.consumer_nodes, view.pending),
        progress_deadline_seconds=settings.planner.progress_deadline_seconds,
        clock=clock,
    )
    known = requests.observed_once if requests is not None else _always
    dedication = Dedication(client) if settings.planner.dedicated_nodes else None
    release = ReleaseController(
        client,
        fleet,
        view,
        placement,
        places,
        requests_known=known,
        dedication=dedication,
        to_hold=frozenset if walk is None else partial(_held_by, walk),
        progress_deadline_seconds=settings.planner.progress_deadline_seconds,
        clock=clock,
    )
    built += [placement, release]
    if settings.tracing:
        built.append(ReleasedTraces(fleet, view, now))

    slack = None
    if settings.slack is not None:
        planned = settings.drive is Drive.PLAN
        slack = slack_controller(
            settings.slack, cluster.settings.namespace, client, view, fleet, reservations, runtime, planned=planned
        )
        built.append(slack)

    if settings.drive is Drive.PLAN:
        recorder = events(reasons.CONTROLLER, reasons.ACTION, reasons.still_waits(view.pod_of))
        planner = PlanningController(
            fleet,
            view,
            settings.planner,
            record=recorder.event,
            now=now,
            clock=clock,
            budget=runtime.budget,
            reservations=reservations,
            turn=turn,
            slack=no_slack if slack is None else slack.current,
            places=places,
            lost=lambda: placement.news,
        )
        built += [planner, recorder]

    held_by_slack = slack.reservations if slack is not None else dict
    if settings.consolidation is not None and walk is not None:
        recorder = events("cagrpc.io/consolidation", "Consolidating")
        built += [
            consolidation_controller(
                settings.consolidation,
                walk,
                view,
                fleet,
                requests,
                held_by_slack,
                shortage_seconds=settings.planner.shortage_seconds,
                turn=turn,
                record=recorder.event,
                runtime=runtime,
            ),
            recorder,
        ]
    elif fleet.snapshot.disruption is not None:
        built.append(unfinished_step(client, view, fleet))

    built.append(
        ScaleDownController(
            view,
            fleet,
            client,
            clock=clock,
            rules=Rules.for_thresholds(
                (each.scale_down_utilization_threshold for each in settings.options.values()), runtime.budget
            ),
            reservations=reservations,
            booked=requests.booked_nodes if requests is not None else dict,
            slack=held_by_slack,
            undrainable=view.undrainable,
            consolidates=_consolidates(settings),
        )
    )
    if settings.kueue is not None:
        recorder = events(settings.kueue.controller_name, "AnsweringAdmissionCheck")
        built += [AdmissionCheckController(client, settings.kueue, record=recorder.event, now=now, clock=clock)]
        built.append(recorder)
    return [*built, *backend.controllers(client, lambda: fleet.snapshot)]


def _always() -> bool:
    return True


def _held_by(walk: Walk) -> frozenset[str]:
    return walk.instances_to_hold


def _consolidates(settings: Settings) -> bool:
    """Return whether cagrpc alone takes nodes away."""
    return settings.consolidation is not None and settings.consolidation.mode is ConsolidationMode.ON


def _merged(
    first: Callable[[ClusterState], Reservations],
    second: Callable[[ClusterState], Reservations],
    state: ClusterState,
) -> Reservations:
    return merged(first(state), second(state))


def _wanted(places: Places, cluster: ClusterConnection, snapshot: FleetSnapshot, state: ClusterState) -> Wanted:
    return places.wanted(snapshot, cluster.view.nominated_by_us(), state)


def _events(
    cluster: ClusterConnection,
    now: EpochClock,
    controller: str,
    action: str,
    still_so: Callable[[Note], bool] = lambda _: True,
) -> EventRecorder:
    instance = cluster.election.identity if cluster.election is not None else socket.gethostname()
    return EventRecorder(
        cluster.client, clock=now, controller=controller, action=action, still_so=still_so, instance=instance
    )
