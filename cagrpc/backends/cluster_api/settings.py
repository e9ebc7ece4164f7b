"""The validated settings of the Cluster API backend, as values; what they are read from is in `plugin`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from cagrpc.forms import Duration, NotWritten, Section

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")]


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
class ManagementAccess:
    """How the management cluster is reached."""

    kubeconfig: Path | None = None
    """None with `in_cluster`, and where it is the cluster that is served."""
    context: str = ""
    in_cluster: bool = False

    @property
    def is_another(self) -> bool:
        """Whether it is not the cluster of the section `kubernetes`."""
        return self.in_cluster or self.kubeconfig is not None


@dataclass(frozen=True, slots=True)
class ClusterApiSettings:
    """All of them."""

    cluster: str
    """Name of the Cluster object."""
    namespace: str
    """Of it, and so of its Machines."""
    sources: Mapping[str, MachineSource]
    """By node group id."""
    access: ManagementAccess = ManagementAccess()
    fleet: str = "cagrpc"
    """The value of the label by which our Machines are known."""
