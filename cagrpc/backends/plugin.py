"""The contract between a backend and the rest of cagrpc: its fields in the configuration file, how it is opened, and
what it provides beside the fleet's `Backend` protocol. The backends are listed in `registry`.

Opening takes two steps, so that a configuration is checked without loading a cloud's client: `BackendPlugin.configure`
converts the configuration to settings, a plain value; the leader calls `BackendSettings.open`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.errors import did_you_mean
from cagrpc.fleet.backend import Backend
from cagrpc.fleet.backend_records import BackendRecords
from cagrpc.fleet.catalogue import Catalogue
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.forms import Form
from cagrpc.runtime.clock import EpochClock
from solver.model import NodeGroup, Taint

if TYPE_CHECKING:  # not needed to check a configuration
    from cagrpc.kube.client.client import Client
    from cagrpc.runtime.controller import Controller, JsonPage


__all__ = [
    "START_UP_TAINT",
    "BackendContext",
    "BackendPlugin",
    "BackendSettings",
    "CatalogueRequest",
    "CatalogueSource",
    "Configured",
    "FoundGroup",
    "ImportedSections",
    "Inventory",
    "OpenBackend",
    "OpenedLater",
    "ReadCatalogue",
    "SectionSource",
    "later",
    "unknown_names",
]


@dataclass(frozen=True, slots=True)
class Inventory:
    """The node groups and instance types that can be ordered."""

    groups: tuple[NodeGroup, ...]
    catalogue: Catalogue
    startup_taints: Mapping[str, tuple[Taint, ...]] = field(default_factory=dict)
    """Taints by provisioner that nodes register with and lose, which no node group has."""

    @property
    def names(self) -> AbstractSet[str]:
        """Ids of node groups, and instance types."""
        types = {group.instance_type for group in self.groups}
        return {*(group.id for group in self.groups), *types, *self.catalogue.instance_types}


def unknown_names(
    place: str, provisioners: Iterable[str], node_groups: Iterable[str], inventory: Inventory
) -> Iterator[str]:
    """Yield a problem for each name under `place`.provisioners or `place`.node_groups that the inventory lacks."""
    of_provisioners = {group.provisioner for group in inventory.groups}
    of_groups = {group.id for group in inventory.groups}
    for field_name, kind, names, known in (
        ("provisioners", "provisioner", provisioners, of_provisioners),
        ("node_groups", "node group", node_groups, of_groups),
    ):
        for name in names:
            if name not in known:
                where = f"{place}.{field_name}[{json.dumps(name)}]"
                yield f"{where}: there is no {kind} of this name{did_you_mean(name, known)}"


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """A node group as its cloud tells it. Its weight, price and limits are the provisioner's that takes it in."""

    id: str
    min_size: int
    max_size: int
    template: bytes
    """A serialised v1.Node: what a new node of it is like."""
    price_usd_per_hour: float | None = None
    """None where the cloud tells none."""


def _no_controllers(client: Client, snapshot: Callable[[], FleetSnapshot]) -> Sequence[Controller]:
    del client, snapshot
    return ()


@dataclass(frozen=True, slots=True)
class OpenBackend:
    """A backend in use, with its pages and controllers."""

    backend: Backend
    close: Callable[[], None]
    pages: Mapping[str, JsonPage] = field(default_factory=dict)
    """HTTP pages by path."""
    controllers: Callable[[Client, Callable[[], FleetSnapshot]], Sequence[Controller]] = _no_controllers
    """Return the controllers that the leader runs for the backend's instances in the client's cluster."""
    node_groups: Callable[[], Sequence[FoundGroup]] | None = None
    """Of a backend whose cloud has the node groups (`BackendPlugin.finds_node_groups`): return those of the last list,
    and the same object for as long as nothing has changed."""
    follows_clock: bool = False
    """Whether its instances change by the clock that it was opened with, and by nothing else: a replay then need not
    wait for them."""
    status: Callable[[], Mapping[str, str]] = dict
    """Returns what people are to know of the cloud now, by what it is about, for `backend` in `/status`. Called on any
    thread; it must not wait for the cloud."""


@dataclass(frozen=True, slots=True)
class BackendContext:
    """What a backend is opened with."""

    state_directory: Path
    """The directory for its own files."""
    clock: EpochClock
    """The fleet's."""
    client: Client | None = None
    """A client of the cluster that is served; None without the section `kubernetes`."""
    changed: Callable[[], None] = lambda: None
    """Called by a backend that learns of something between two lists: the fleet lists soon after."""
    records: BackendRecords | None = None
    """What the backend keeps in the journal, for a cloud that keeps no tokens; None in a process without one."""
    node_names: Callable[[], Mapping[str, str]] = dict
    """Returns the names of the cluster's Nodes by the ids of their instances; none without a cluster."""


class BackendSettings(Protocol):
    """The validated settings of a backend."""

    def open(self, context: BackendContext) -> OpenBackend:
        """Open the backend: start its watches, verify what has to be right. Raises InvalidInput or Unavailable, with
        nothing left open."""
        ...


def later(module: str, function: str) -> Callable[..., Any]:
    """Return a function of a module that is imported only when it is called."""

    def call(*given: Any) -> Any:
        return getattr(import_module(module), function)(*given)

    return call


@dataclass(frozen=True, slots=True)
class OpenedLater:
    """`BackendSettings` over plain values: what opens the backend is imported only then, and may import the values."""

    module: str
    """The module with the function `open_backend(settings, context)`."""
    settings: Any

    def open(self, context: BackendContext) -> OpenBackend:
        opened: OpenBackend = later(self.module, "open_backend")(self.settings, context)
        return opened


@dataclass(frozen=True, slots=True)
class Configured:
    """The result of `BackendPlugin.configure`."""

    settings: BackendSettings
    warnings: Sequence[tuple[Sequence[str], str]] = ()
    """Each with the path of a field, from the top of the file, and a message."""


@dataclass(frozen=True, slots=True)
class ImportedSections:
    """Sections of a configuration file as they were read from a cluster."""

    sections: Mapping[str, Any]
    """Sections in YAML shape."""
    warnings: Sequence[str] = ()
    """What could not be read, and what somebody has to decide."""
    preconditions: Sequence[str] = ()
    """What has to change in the cluster before a server starts with them."""


@dataclass(frozen=True, slots=True)
class SectionSource:
    """Objects of a cluster of which `cagrpc config import NAME` makes sections of a configuration. A plug-in that has
    some offers them as `cluster_source`."""

    name: str
    """What is read, as people call it: `machine-deployments`."""
    read: Callable[[Client, str, str], ImportedSections]
    """Reads by a client of the cluster, the name of what belongs together there (a Cluster; empty for the only one) and
    a namespace. Raises InvalidInput and Unavailable."""


@dataclass(frozen=True, slots=True)
class CatalogueRequest:
    """What a catalogue is to have."""

    region: str | None = None
    """None for that of the environment."""
    instance_types: Sequence[str] = ()
    """Names or patterns such as `m7*`; all where there are none."""
    prices: Path | None = None
    """A CSV file with on-demand prices, instead of those that the cloud tells."""
    spot: bool = True
    reservations: bool = False


@dataclass(frozen=True, slots=True)
class ReadCatalogue:
    """A catalogue as a cloud tells it."""

    text: str
    """CSV, with the columns that `cagrpc.fleet.catalogue` reads."""
    warnings: Sequence[str] = ()
    """What was left out, and why."""


@dataclass(frozen=True, slots=True)
class CatalogueSource:
    """A cloud that `cagrpc catalogue NAME` asks. A plug-in that can ask one offers it as `catalogue_source`."""

    name: str
    """The cloud, as people call it: `aws`."""
    read: Callable[[CatalogueRequest], ReadCatalogue]
    """Raises InvalidInput and Unavailable."""


class BackendPlugin(Protocol):
    """A kind of backend. Its module is imported to read any configuration file, so it must import little."""

    name: str
    backend_fields: type[Form]
    """Its fields in the section `backend`. A configuration that sets one of them selects this backend."""
    kubernetes_fields: type[Form] | None
    """Its fields in the section `kubernetes`."""
    finds_node_groups: bool = False
    """Whether its cloud has the node groups, so that provisioners have none of their own: they take in those that are
    found (`OpenBackend.node_groups`)."""

    def configure(self, backend: Form, kubernetes: Form | None, directory: Path, inventory: Inventory) -> Configured:
        """Return the settings of two validated sections, each with the fields declared above (and those of other
        backends). File names are relative to `directory`. Raises InvalidConfiguration with every problem."""
        ...
