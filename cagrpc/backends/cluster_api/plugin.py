"""The Cluster API backend's plug-in: its fields in the configuration file, the settings that they become, and how it is
opened. Modules with behaviour are imported only then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from cagrpc.backends.plugin import (
    BackendPlugin,
    Configured,
    Inventory,
    OpenedLater,
    SectionSource,
    later,
    unknown_names,
)
from cagrpc.errors import InvalidConfiguration
from cagrpc.forms import Duration, File, Form, NotWritten, Section
from solver.model import NodeGroup

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")]

PLACE = "backend.cluster_api"
Namespace = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
_GroupId = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Reference(Section):
    """A template of an infrastructure or bootstrap provider, in the namespace of the Cluster."""

    api_group: ObjectName
    """The group of its API, such as infrastructure.cluster.x-k8s.io."""
    kind: Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9]*Template$")]
    """The kind, which ends in Template."""
    name: ObjectName
    version: Annotated[str, NotWritten()] = ""
    """Empty where the API server is to choose."""

    def __str__(self) -> str:
        return f"{self.kind}.{self.api_group} {self.name}"


@dataclass(frozen=True, slots=True)
class MachineSource(Section):
    """What Machines are made from: a MachineDeployment's template, or templates named here."""

    machine_deployment: ObjectName | None = None
    """The MachineDeployment whose template is used. It keeps its own Machines, and may have 0 replicas."""
    machine_pool: ObjectName | None = None
    """The MachinePool whose template is used; `infrastructure_template` goes with it, as its own makes pools."""
    infrastructure_template: Reference | None = None
    """The template of the infrastructure. The default is that of machine_deployment."""
    bootstrap_template: Reference | None = None
    """The template of the bootstrap data. The default is that of machine_deployment."""
    bootstrap_data_secret: ObjectName | None = None
    """The name of a Secret with bootstrap data that all Machines share, instead of bootstrap_template."""
    version: Annotated[str, Field(pattern=r"^v\d+\.\d+\.\d+")] | None = None
    """The version of Kubernetes. The default is that of machine_deployment."""
    failure_domain: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The failure domain. The default is the node group's zone, where the Cluster has a failure domain of that name, or
    else that of machine_deployment."""
    machine_taints: bool = False
    """Whether Cluster API sets the node group's taints and the start-up taint, which takes its feature gate
    MachineTaintPropagation. kubeadm's bootstrap provider does not need it."""
    node_drain_timeout_seconds: Annotated[float, Duration("0s", "24h", '"10m"', was_number=True)] | None = None
    """How long the deletion of a Machine may drain its Node; 0 means no limit. The default is that of
    machine_deployment."""

    def __post_init__(self) -> None:
        if self.machine_deployment and self.machine_pool:
            raise ValueError("found both machine_deployment and machine_pool, expected one of them")
        if self.bootstrap_template and self.bootstrap_data_secret:
            raise ValueError("found both bootstrap_template and bootstrap_data_secret, expected one of them")
        if self.machine_deployment:
            return
        if self.infrastructure_template is None:
            found = "machine_pool alone" if self.machine_pool else "none"
            raise ValueError(f"found {found}, expected machine_deployment or infrastructure_template")
        if not (self.machine_pool or self.bootstrap_template or self.bootstrap_data_secret):
            raise ValueError("bootstrap_template or bootstrap_data_secret is missing; a machine needs one to join")

    @property
    def owner(self) -> tuple[str, str] | None:
        """Kind and name of the object whose `spec.template` is used."""
        owners = (("MachineDeployment", self.machine_deployment), ("MachinePool", self.machine_pool))
        return next(((kind, name) for kind, name in owners if name), None)

    def __str__(self) -> str:
        if self.owner is not None:
            return " ".join(self.owner)
        return str(self.infrastructure_template)


@dataclass(frozen=True, slots=True)
class ClusterApiSettings(Section):
    """Nodes come from Machines of Cluster API."""

    cluster: ObjectName
    """The Cluster object whose Machines are made."""
    namespace: Namespace = "default"
    """The namespace of the Cluster object and its templates."""
    sources: Annotated[Mapping[str, MachineSource], NotWritten()] = field(default_factory=dict)
    """What Machines are made from, by node group id."""
    fleet: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")] = "cagrpc"
    """The name that marks this server's Machines, so that two servers can share a Cluster."""
    kubeconfig: File | None = None
    """The kubeconfig of the management cluster. The default is the cluster of the section `kubernetes`."""
    context: str = ""
    """The context of the kubeconfig. The default is its current context."""
    in_cluster: bool = False
    """Whether the management cluster is the one that cagrpc runs in; the service account of its pod is used."""
    provisioners: Mapping[_GroupId, MachineSource] = field(default_factory=dict)
    """What the Machines of the node groups of each provisioner are made from. They have one shape, as templates
    have."""
    node_groups: Mapping[_GroupId, MachineSource] = field(default_factory=dict)
    """What the Machines of each node group are made from; it replaces what the provisioner says."""

    def __post_init__(self) -> None:
        if self.kubeconfig is not None and self.in_cluster:
            raise ValueError("found both kubeconfig and in_cluster: true, expected at most one of them")
        if self.context and self.kubeconfig is None:
            raise ValueError("context goes with kubeconfig; found none")


class ClusterApiFields(Form):
    """In the section `backend`."""

    cluster_api: ClusterApiSettings | None = None


class ClusterApiPlugin(BackendPlugin):
    name = "cluster_api"
    backend_fields = ClusterApiFields
    kubernetes_fields = None
    cluster_source = SectionSource("machine-deployments", later("cagrpc.backends.cluster_api.importing", "read"))

    def configure(self, backend: Form, kubernetes: Form | None, directory: Path, inventory: Inventory) -> Configured:
        del directory
        form = backend.cluster_api if isinstance(backend, ClusterApiFields) else None
        if form is None:
            raise InvalidConfiguration([f"{PLACE}: is empty; give at least the name of the cluster"])
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
        return Configured(OpenedLater("cagrpc.backends.cluster_api.backend", replace(form, sources=sources)))


def _sources(form: ClusterApiSettings, groups: Sequence[NodeGroup]) -> tuple[Mapping[str, MachineSource], list[str]]:
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


def _mixed_shapes(form: ClusterApiSettings, groups: Sequence[NodeGroup]) -> list[str]:
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
