"""The validated settings of the Cluster API backend, as values: what its forms (`plugin`) become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Reference:
    """An object of the namespace, as a template refers to it. `version` is empty where the API server is to choose."""

    group: str
    kind: str
    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.kind}.{self.group} {self.name}"


@dataclass(frozen=True, slots=True)
class MachineSource:
    """Where a node group's Machines are described. Templates that are named here replace those of the owner."""

    owner: tuple[str, str] | None = None
    """Kind and name of the object whose `spec.template` is used: a MachineDeployment, MachineSet or MachinePool."""
    infrastructure_template: Reference | None = None
    bootstrap_template: Reference | None = None
    bootstrap_data_secret: str = ""
    version: str = ""
    """Of Kubernetes, for the bootstrap provider."""
    failure_domain: str = ""
    """Empty for the node group's zone, where the Cluster has a failure domain of that name, or else the owner's."""
    machine_taints: bool = False
    """Whether Cluster API sets taints (its feature gate MachineTaintPropagation)."""
    node_drain_timeout_seconds: float | None = None
    """None for the owner's."""

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
