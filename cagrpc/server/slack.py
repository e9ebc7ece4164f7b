"""Wiring of the slack controller with its carriers and its object. What each does is in `cagrpc.controllers.slack`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.runtime import Runtime
from cagrpc.controllers.slack.carriers.buffers import served
from cagrpc.controllers.slack.carriers.carrier import Carrying, Switching, Virtual, choose
from cagrpc.controllers.slack.carriers.objects import Place
from cagrpc.controllers.slack.carriers.store import Buffers, PausePods
from cagrpc.controllers.slack.controller import SlackController
from cagrpc.controllers.slack.model import Carrier, SlackSettings
from cagrpc.controllers.slack.record import SlackObject
from cagrpc.fleet.fleet import Fleet
from cagrpc.kube.client.client import Client


def slack_controller(
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

    carriers: Mapping[Carrier, Carrying] = {
        Carrier.VIRTUAL: Virtual(),
        Carrier.BUFFER: Buffers(client, place, timer=clock, now=now),
        Carrier.PODS: PausePods(client, place, view.pause_pods, timer=clock),
    }
    chosen = partial(choose, settings.carrier, planned=planned, serves_buffers=partial(served, client.get))
    switching = Switching(carriers, chosen, timer=clock)
    return SlackController(view, fleet, settings, switching, book, assumed, runtime)
