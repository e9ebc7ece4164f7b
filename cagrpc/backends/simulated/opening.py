"""Opens the simulated backend with its Node controller and its page `/simulation`, which changes behaviours at run
time; their meaning is in `behaviour`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cagrpc.backends.plugin import BackendContext, OpenBackend
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.backends.simulated.behaviour import EVERYWHERE, Behaviour, behaviour_from_json, behaviour_to_json
from cagrpc.backends.simulated.plugin import SimulatedSettings
from cagrpc.errors import InvalidConfiguration, did_you_mean, shown
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.runtime.controller import Controller, JsonPage

if TYPE_CHECKING:
    from cagrpc.kube.client.client import Client


_MOST_UNKNOWN = 20  # finding suggestions takes time


class Switches:
    """The page `/simulation`. Keys are instance types, node group ids or `*`."""

    def __init__(self, backend: SimulatedBackend, known: Collection[str]) -> None:
        """`known` are the existing node groups and instance types."""
        self._backend = backend
        self._known = {EVERYWHERE, *known}

    def get(self) -> Mapping[str, Any]:
        return {key: behaviour_to_json(behaviour) for key, behaviour in self._backend.behaviours().items()}

    def put(self, change: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace the behaviour of each key as a whole (missing settings have their defaults); null resets one. Raises
        InvalidConfiguration with every problem, unknown keys included."""
        known = (
            self._known | self._backend.behaviours().keys()
        )  # also keys of the configuration that only caused a warning
        if unknown := [key for key in change if key not in known][:_MOST_UNKNOWN]:
            raise InvalidConfiguration(
                [
                    f"{shown(key)}: is neither a node group nor an instance type{did_you_mean(key, known)}"
                    for key in unknown
                ]
            )
        self._backend.set_behaviours(_parsed(change))
        return self.get()


def configure(
    backend: SimulatedBackend, configured: Mapping[str, Behaviour | None], known: Collection[str]
) -> Switches:
    """Set the configured behaviours and reset all others, such as those that an earlier process set at run time.
    `known` are the existing node groups and instance types. Raises InvalidInput."""
    backend.set_behaviours({**dict.fromkeys(backend.behaviours()), **configured})
    return Switches(backend, known)


def _parsed(written: Mapping[str, Any]) -> dict[str, Behaviour | None]:
    parsed: dict[str, Behaviour | None] = {}
    problems: list[str] = []
    for key, value in written.items():
        try:
            parsed[key] = None if value is None else behaviour_from_json(value, key)
        except InvalidConfiguration as error:
            problems += error.problems
    if problems:
        raise InvalidConfiguration(problems)
    return parsed


def open_backend(settings: SimulatedSettings, context: BackendContext) -> OpenBackend:
    """Open the file. `context.changed` is called when a Node has become Ready. Raises InvalidConfiguration and
    Unavailable."""
    backend = SimulatedBackend(settings.file or context.state_directory / "simulated.sqlite", clock=context.clock)
    try:
        page = configure(backend, settings.behaviours, settings.known)
    except BaseException:
        backend.close()
        raise

    def controllers(client: Client, snapshot: Callable[[], FleetSnapshot]) -> Sequence[Controller]:
        from cagrpc.backends.simulated.nodes.controller import NodeController  # noqa: PLC0415 - of a cluster, as the client

        return [NodeController(client, backend, snapshot, changed=context.changed)] if settings.nodes else []

    pages = {"/simulation": JsonPage(page.get, page.put)}
    return OpenBackend(backend, backend.close, pages, controllers, follows_clock=True)
