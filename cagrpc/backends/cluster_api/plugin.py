"""The Cluster API backend's plug-in: its fields in the configuration file, and how it is opened. Modules with behaviour
are imported only then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from cagrpc.backends.cluster_api.settings import ClusterApiSettings, MachineSource, ManagementAccess, ObjectName
from cagrpc.backends.plugin import (
    BackendPlugin,
    Configured,
    ImportedSections,
    Inventory,
    OpenedLater,
    SectionSource,
    unknown_names,
)
from cagrpc.errors import InvalidConfiguration
from cagrpc.forms import FilePath, Form
from solver.model import NodeGroup

if TYPE_CHECKING:  # not needed to check a configuration
    from cagrpc.kube.client.client import Client

PLACE = "backend.cluster_api"
Namespace = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
_GroupId = Annotated[str, Field(min_length=1)]


class ClusterApiForm(Form):
    """Nodes come from Machines of Cluster API."""

    cluster: ObjectName
    """The Cluster object whose Machines are made."""
    namespace: Namespace = "default"
    """The namespace of the Cluster object and its templates."""
    fleet: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")] = "cagrpc"
    """The name that marks this server's Machines, so that two servers can share a Cluster."""
    kubeconfig: FilePath | None = None
    """The kubeconfig of the management cluster. The default is the cluster of the section `kubernetes`."""
    context: str = ""
    """The context of the kubeconfig. The default is its current context."""
    in_cluster: bool = False
    """Whether the management cluster is the one that cagrpc runs in; the service account of its pod is used."""
    provisioners: dict[_GroupId, MachineSource] = Field(default_factory=dict)
    """What the Machines of the node groups of each provisioner are made from. They have one shape, as templates
    have."""
    node_groups: dict[_GroupId, MachineSource] = Field(default_factory=dict)
    """What the Machines of each node group are made from; it replaces what the provisioner says."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.kubeconfig is not None and self.in_cluster:
            raise ValueError("found both kubeconfig and in_cluster: true, expected at most one of them")
        if self.context and self.kubeconfig is None:
            raise ValueError("context goes with kubeconfig; found none")
        return self


class ClusterApiFields(Form):
    """In the section `backend`."""

    cluster_api: ClusterApiForm | None = None


def _read(client: Client, cluster: str, namespace: str) -> ImportedSections:
    read: ImportedSections = import_module("cagrpc.backends.cluster_api.importing").read(client, cluster, namespace)
    return read


class ClusterApiPlugin(BackendPlugin):
    name = "cluster_api"
    backend_fields = ClusterApiFields
    kubernetes_fields = None
    cluster_source = SectionSource("machine-deployments", _read)

    def configure(self, backend: Form, kubernetes: Form | None, directory: Path, inventory: Inventory) -> Configured:
        form = backend.cluster_api if isinstance(backend, ClusterApiFields) else None
        if form is None:
            raise InvalidConfiguration([f"{PLACE}: is empty; give at least the name of the cluster"])
        access = ManagementAccess(
            kubeconfig=None if form.kubeconfig is None else directory / form.kubeconfig,
            context=form.context,
            in_cluster=form.in_cluster,
        )
        problems = []
        if kubernetes is None:
            problems.append(
                "kubernetes: is missing; Machines become Nodes, so the cluster that they join must be watched"
            )
        problems += unknown_names(PLACE, form.provisioners, form.node_groups, inventory)
        sources, missing = _sources(form, inventory.groups)
        problems += missing
        problems += _mixed_shapes(form, inventory.groups)
        if problems:
            raise InvalidConfiguration(problems)
        settings = ClusterApiSettings(form.cluster, form.namespace, sources, access, form.fleet)
        return Configured(OpenedLater("cagrpc.backends.cluster_api.backend", settings))


def _sources(form: ClusterApiForm, groups: Sequence[NodeGroup]) -> tuple[Mapping[str, MachineSource], list[str]]:
    """Return the source of each node group, and a problem for each provisioner with groups that have none."""
    found: dict[str, MachineSource] = {}
    without: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        written = form.node_groups.get(group.id) or form.provisioners.get(group.provisioner)
        if written is None:
            without[group.provisioner].append(group.id)
        else:
            found[group.id] = written
    problems = [
        f'{PLACE}: has no templates for {_some(ids)} of provisioner "{provisioner}"; give provisioners["{provisioner}"]'
        f' or node_groups["{ids[0]}"] with a machine_deployment'
        for provisioner, ids in without.items()
    ]
    return found, problems


def _mixed_shapes(form: ClusterApiForm, groups: Sequence[NodeGroup]) -> list[str]:
    """Return a problem for each provisioner's template that would have to make machines of different shapes."""
    problems = []
    for provisioner in form.provisioners:
        of_it = [group for group in groups if group.provisioner == provisioner and group.id not in form.node_groups]
        shapes = {tuple(sorted(group.allocatable.items())) for group in of_it}
        if len(shapes) > 1:
            problems.append(
                f'{PLACE}.provisioners["{provisioner}"]: its node groups have {len(shapes)} different shapes, and a '
                "template makes machines of one; name a machine_deployment for each under node_groups"
            )
    return problems


def _some(ids: Sequence[str]) -> str:
    return f'node group "{ids[0]}"' + (f" and {len(ids) - 1} more" if len(ids) > 1 else "")
