"""The section `kubernetes`: access to the cluster."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.schedulers import EXPENDABLE_BELOW
from cagrpc.backends import registry
from cagrpc.controllers.settings import ClusterSettings, JournalKind
from cagrpc.fleet.fields import LabelKey
from cagrpc.forms import File, Form


class ClusterAccessForm(Form, title="Kubernetes"):
    """How the cluster is reached, and what is kept there."""

    kubeconfig: File | None = None
    context: str = ""
    """The context of the kubeconfig. The default is its current context."""
    in_cluster: bool = False
    """Whether the service account of the pod that cagrpc runs in is used."""
    namespace: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = "cagrpc"
    """Where the Lease of the one writer is."""
    journal: JournalKind = JournalKind.CLUSTER
    """Where the journal is kept: in custom resources, with a Lease for which a standby may wait, or in a file in the
    state directory."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.kubeconfig is not None) == self.in_cluster:
            found = "both" if self.in_cluster else "neither"
            raise ValueError(f"found {found} of kubeconfig and in_cluster: true, expected one of them")
        if self.context and self.in_cluster:
            raise ValueError("context goes with kubeconfig; found it with in_cluster: true")
        return self


class Kubernetes(registry.kubernetes_fields(), ClusterAccessForm):  # type: ignore[misc] # backends are known at run time
    """Access to the cluster that cagrpc serves. Exactly one of `kubeconfig` and `in_cluster: true`."""

    gang_label: LabelKey = DEFAULT_GANG_LABEL
    """Pods with the same value of this label (or Volcano's annotation) are useful only together."""
    expendable_pods_priority_cutoff: int = EXPENDABLE_BELOW
    """As the cluster-autoscaler's flag of this name: for pods of a lower priority no node is added, and none is kept
    from scale-down."""

    feature_gates: tuple[Literal["TaintTolerationComparisonOperators"], ...] = ()
    """Kubernetes' feature gates that the cluster has, of those that change what pods mean."""

    def settings(self) -> ClusterSettings:
        """Return the settings, without what is a backend's."""
        return ClusterSettings(
            kubeconfig=self.kubeconfig,
            context=self.context,
            namespace=self.namespace,
            journal=self.journal,
            gang_label=self.gang_label,
            expendable_below=self.expendable_pods_priority_cutoff,
            feature_gates=frozenset(self.feature_gates),
        )
