"""Opens the simulated backend with its page for behaviours and its Node controller."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cagrpc.backends.plugin import OpenBackend
from cagrpc.backends.simulated import switches
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.runtime.clock import EpochClock
from cagrpc.runtime.controller import Controller, JsonPage

if TYPE_CHECKING:
    from cagrpc.kube.client.client import Client


def open_backend(
    path: Path,
    clock: EpochClock,
    behaviours: Mapping[str, Behaviour | None],
    known: Collection[str],
    *,
    nodes: bool,
    changed: Callable[[], None] = lambda: None,
) -> OpenBackend:
    """Open the file. `known` are the existing node groups and instance types; with `nodes`, instances become Nodes
    where there is a cluster, and `changed` is called when one has become Ready. Raises InvalidConfiguration and
    Unavailable."""
    backend = SimulatedBackend(path, clock=clock)
    try:
        page = switches.configure(backend, behaviours, known)
    except BaseException:
        backend.close()
        raise

    def controllers(client: Client, snapshot: Callable[[], FleetSnapshot]) -> Sequence[Controller]:
        from cagrpc.backends.simulated.nodes.controller import NodeController  # noqa: PLC0415 - of a cluster, as the client

        return [NodeController(client, backend, snapshot, changed=changed)] if nodes else []

    pages = {"/simulation": JsonPage(page.get, page.put)}
    return OpenBackend(backend, backend.close, pages, controllers, follows_clock=True)
