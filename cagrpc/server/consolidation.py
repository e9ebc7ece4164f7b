"""Wiring of the controller of consolidation. What its parts do is in `cagrpc.controllers.consolidation`."""

from __future__ import annotations

from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.consolidation.controller import ConsolidationController
from cagrpc.controllers.consolidation.question import Observer
from cagrpc.controllers.consolidation.queue import DisruptionQueue
from cagrpc.controllers.consolidation.undoing import UnfinishedStep
from cagrpc.controllers.events import EventRecorder
from cagrpc.controllers.runtime import Runtime
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.fleet.fleet import Fleet
from cagrpc.kube.client.client import Client

_ANSWER_SECONDS = 10.0
"""Of a request that evicts or cordons; one that is not answered is made again."""


def consolidation_controller(
    settings: ConsolidationSettings,
    client: Client,
    view: ClusterView,
    fleet: Fleet,
    assumed: AssumeCache,
    events: EventRecorder,
    runtime: Runtime,
) -> ConsolidationController:
    """Return the controller of consolidation, with who asks and who carries out steps."""
    observer = Observer(view, fleet, settings, assumed, events, runtime.now)
    queue = DisruptionQueue(client.hurried(_ANSWER_SECONDS), fleet, view, assumed, settings, runtime.clock)
    return ConsolidationController(fleet, observer, queue, settings, assumed.planning_lock, runtime)


def unfinished_step(client: Client, view: ClusterView, fleet: Fleet) -> UnfinishedStep:
    """Return who undoes the step that is under way where consolidation is off."""
    return UnfinishedStep(client.hurried(_ANSWER_SECONDS), fleet, view)
