"""The simulated backend's plug-in: its fields in the configuration file, and how it is opened. Modules with behaviour
are imported only then."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from cagrpc.backends.plugin import BackendPlugin, Configured, Inventory, OpenedLater
from cagrpc.backends.simulated.behaviour import EVERYWHERE, Behaviour
from cagrpc.errors import did_you_mean
from cagrpc.forms import File, Form


class SimulatedFields(Form):
    """In the section `backend`."""

    simulated: dict[Annotated[str, Field(min_length=1)], Behaviour | None] = Field(default_factory=dict)
    """The embedded simulation's behaviours and faults, by instance type, node group id, or "*" for all others."""
    file: File | None = None
    """Where the simulation keeps its instances. Processes that share the file see one cloud. The default is
    `simulated.sqlite` in the state directory."""


class SimulatedNodesField(Form):
    """In the section `kubernetes`."""

    simulated_nodes: bool = True
    """Whether instances of the simulated backend become Nodes of the cluster, as with kwok."""


@dataclass(frozen=True, slots=True)
class SimulatedSettings:
    """What the backend is opened with."""

    behaviours: Mapping[str, Behaviour | None]
    known: AbstractSet[str]
    """Ids of node groups, and instance types."""
    file: Path | None
    """None for the default in the state directory."""
    nodes: bool
    """Whether instances become Nodes of the cluster, where there is one."""


class SimulatedPlugin(BackendPlugin):
    name = "simulated"
    backend_fields = SimulatedFields
    kubernetes_fields = SimulatedNodesField

    def configure(self, backend: Form, kubernetes: Form | None, directory: Path, inventory: Inventory) -> Configured:
        del directory
        assert isinstance(backend, SimulatedFields)
        known = {EVERYWHERE, *inventory.names}
        warnings = [
            (("backend", "simulated", key), f"is neither a node group nor an instance type{did_you_mean(key, known)}")
            for key in backend.simulated
            if key not in known
        ]
        nodes = isinstance(kubernetes, SimulatedNodesField) and kubernetes.simulated_nodes
        settings = SimulatedSettings(backend.simulated, inventory.names, backend.file, nodes)
        return Configured(OpenedLater("cagrpc.backends.simulated.opening", settings), warnings)
