"""What a backend is to the rest of cagrpc: the fields that it adds to the configuration file, how it is opened, and
what it brings along beside the fleet's `Backend` protocol. Which backends there are is `registry`'s.

Opening is in two steps, so that a configuration is checked without loading a cloud's client: `BackendPlugin.configure`
turns what is written into settings, a plain value; `BackendSettings.open` is called by the one writer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cagrpc.fleet.backend import Backend
from cagrpc.fleet.catalogue import Catalogue
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.forms import Form
from solver.model import NodeGroup

if TYPE_CHECKING:  # a configuration is checked without them
    from cagrpc.kube.client.client import Client
    from cagrpc.runtime.controller import Controller, JsonPage


@dataclass(frozen=True, slots=True)
class Inventory:
    """What can be ordered."""

    groups: tuple[NodeGroup, ...]
    catalogue: Catalogue

    @property
    def names(self) -> AbstractSet[str]:
        """Ids of node groups, and instance types."""
        types = {group.instance_type for group in self.groups}
        return {*(group.id for group in self.groups), *types, *self.catalogue.instance_types}


def _no_controllers(client: Client, snapshot: Callable[[], FleetSnapshot]) -> Sequence[Controller]:
    del client, snapshot
    return ()


@dataclass(frozen=True, slots=True)
class OpenBackend:
    """A backend in use."""

    backend: Backend
    close: Callable[[], None]
    pages: Mapping[str, JsonPage] = field(default_factory=dict)
    """HTTP pages by path."""
    controllers: Callable[[Client, Callable[[], FleetSnapshot]], Sequence[Controller]] = _no_controllers
    """What acts for the backend's instances in the cluster that the client reaches, in the one writer."""


class BackendSettings(Protocol):
    """A backend as it is configured."""

    def open(self, state_directory: Path) -> OpenBackend:
        """Return the backend, ready for calls; files of its own are in `state_directory` by default. Raises
        InvalidInput or Unavailable, with nothing left open."""
        ...


@dataclass(frozen=True, slots=True)
class Configured:
    """What `BackendPlugin.configure` makes of a configuration file."""

    settings: BackendSettings
    warnings: Sequence[tuple[Sequence[str], str]] = ()
    """Each the path of a field, from the top of the file, and a sentence on it."""


class BackendPlugin(Protocol):
    """A kind of backend. Its module is imported to read any configuration file, so it imports little."""

    name: str
    backend_fields: type[Form]
    """What it adds to the section `backend`. A configuration that has one of these fields chooses this backend."""
    kubernetes_fields: type[Form] | None
    """What it adds to the section `kubernetes`."""

    def configure(self, backend: Form, kubernetes: Form | None, directory: Path, inventory: Inventory) -> Configured:
        """Return the settings of two sections that have been validated, each with the fields declared above (and those
        of other backends). Names of files are relative to `directory`. Raises InvalidConfiguration with every
        problem."""
        ...
