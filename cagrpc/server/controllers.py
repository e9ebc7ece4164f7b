"""Wiring of the leader's controllers that work on a cluster. What each does is in `cagrpc.controllers`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from functools import partial

from cagrpc.backends.plugin import OpenBackend
from cagrpc.cluster.shortages import Shortages
from cagrpc.cluster.view.view import ClusterView
from cagrpc.config.settings import Settings
from cagrpc.controllers.admission_checks.controller import AdmissionCheckController
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.consolidation.controller import ConsolidationController
from cagrpc.controllers.consolidation.question import Observer
from cagrpc.controllers.consolidation.queue import DisruptionQueue, UnfinishedStep
from cagrpc.controllers.events import EventRecorder, EventSource, Note
from cagrpc.controllers.placement.controller import PlacementController
from cagrpc.controllers.placement.metrics import ReleasedTraces
from cagrpc.controllers.placement.release import ReleaseController
from cagrpc.controllers.planning import reasons
from cagrpc.controllers.planning.controller import PlanningController
from cagrpc.controllers.provisioning.controller import ProvisioningController
from cagrpc.controllers.provisioning.store import RequestStore
from cagrpc.controllers.runtime import Runtime
from cagrpc.controllers.scale_down.choice import Rules
from cagrpc.controllers.scale_down.controller import ScaleDownController
from cagrpc.controllers.settings import ConsolidationMode, Drive
from cagrpc.controllers.slack.carriers import Buffers, PausePods, Place, PlaceholderCarrier, Switching, choose, served
from cagrpc.controllers.slack.controller import SlackController
from cagrpc.controllers.slack.model import Carrier, SlackSettings
from cagrpc.controllers.slack.record import SlackObject
from cagrpc.fleet.fleet import Fleet
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import EpochClock
from cagrpc.runtime.controller import Controller
from cagrpc.server.cluster import ClusterConnection

_ANSWER_SECONDS = 10.0
"""Of a request that evicts or cordons; one that is not answered is made again."""


def assume_cache(settings: Settings, cluster: ClusterConnection, runtime: Runtime) -> AssumeCache:
    """Return the one of the process."""
    serves_requests = settings.provider is not None and settings.requests is not None
    shortages = Shortages(settings.planner.shortage_seconds, runtime.now)
    return AssumeCache(cluster.view, shortages, runtime.clock, serves_requests=serves_requests)


def cluster_controllers(
    settings: Settings,
    cluster: ClusterConnection,
    fleet: Fleet,
    backend: OpenBackend,
    assumed: AssumeCache,
    runtime: Runtime,
) -> list[Controller]:
    """Return the controllers in the order in which they are started and stopped."""
    view, client = cluster.view, cluster.client
    planner, now, clock = settings.planner, runtime.now, runtime.clock
    events = partial(_events, cluster, now)
    built: list[Controller] = []
    if settings.requests is not None:
        store = RequestStore(client)
        view.expect(store.expected)
        recorder = events("cagrpc.io/provisioning-requests", "Provisioning")
        requests = ProvisioningController(store, view, fleet, settings.requests, assumed, recorder, runtime)
        requests.patience_seconds = planner.step_patience_seconds
        built += [requests, recorder]
    deadline_seconds = planner.progress_deadline_seconds
    placement = PlacementController(
        client, fleet, view, assumed, progress_deadline_seconds=deadline_seconds, clock=clock
    )
    built += [placement, ReleaseController(client, fleet, view, placement, assumed, planner, clock=clock)]
    if settings.tracing:
        built.append(ReleasedTraces(fleet, view, now))
    planned = settings.drive is Drive.PLAN
    if settings.slack is not None:
        namespace = cluster.settings.namespace
        built.append(_slack(settings.slack, namespace, client, view, fleet, assumed, runtime, planned=planned))
    if planned:
        recorder = events(reasons.CONTROLLER, reasons.ACTION, lambda note: view.pod_of(note.about.uid) is not None)
        built += [PlanningController(fleet, view, planner, assumed, recorder, runtime), recorder]
    consolidation = settings.consolidation
    if consolidation is not None:
        recorder = events("cagrpc.io/consolidation", "Consolidating")
        observer = Observer(view, fleet, consolidation, assumed, recorder, now)
        queue = DisruptionQueue(client.hurried(_ANSWER_SECONDS), fleet, view, assumed, consolidation, clock)
        lock = assumed.planning_lock
        built += [ConsolidationController(fleet, observer, queue, consolidation, lock, runtime), recorder]
    elif fleet.snapshot.disruption is not None:
        # What is under way where consolidation is off is undone.
        built.append(UnfinishedStep(client.hurried(_ANSWER_SECONDS), fleet, view))
    thresholds = (each.scale_down_utilization_threshold for each in settings.options.values())
    rules = Rules.for_thresholds(thresholds, runtime.budget)
    consolidates = consolidation is not None and consolidation.mode is ConsolidationMode.ON
    built.append(ScaleDownController(view, fleet, client, assumed, rules, clock, consolidates=consolidates))
    if settings.kueue is not None:
        recorder = events(settings.kueue.controller_name, "AnsweringAdmissionCheck")
        built += [AdmissionCheckController(client, settings.kueue, record=recorder.event, now=now, clock=clock)]
        built.append(recorder)
    return [*built, *backend.controllers(client, lambda: fleet.snapshot)]


def _events(
    cluster: ClusterConnection,
    now: EpochClock,
    controller: str,
    action: str,
    still_so: Callable[[Note], bool] = lambda _: True,
) -> EventRecorder:
    instance = cluster.election.identity if cluster.election is not None else socket.gethostname()
    return EventRecorder(cluster.client, EventSource(controller, action, instance), clock=now, still_so=still_so)


def _slack(
    settings: SlackSettings,
    namespace: str,
    client: Client,
    view: ClusterView,
    fleet: Fleet,
    assumed: AssumeCache,
    runtime: Runtime,
    *,
    planned: bool,
) -> SlackController:
    """Return the slack controller, which writes in `namespace`. `planned` is whether the planner adds nodes."""
    now, clock = runtime.now, runtime.clock
    book = SlackObject(client, namespace, carrier=lambda: switching.name, clock=clock)

    def place() -> Place:
        return Place(namespace, settings.pause_image, book.owner())

    carriers: Mapping[Carrier, PlaceholderCarrier] = {
        Carrier.VIRTUAL: PlaceholderCarrier(),
        Carrier.BUFFER: Buffers(client, place, timer=clock, now=now),
        Carrier.PODS: PausePods(client, place, view.pause_pods, timer=clock),
    }
    chosen = partial(choose, settings.carrier, planned=planned, serves_buffers=partial(served, client))
    switching = Switching(carriers, chosen, timer=clock)
    return SlackController(view, fleet, settings, switching, book, assumed, runtime)
