"""The sections of the configuration file about a cluster, the planner loop, ProvisioningRequests and Kueue, as they
are written."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.backends import registry
from cagrpc.config.schema.kubernetes import LabelKey
from cagrpc.forms import FilePath, Form

PositiveSeconds = Annotated[float, Field(gt=0, le=3600)]


class ClusterAccessForm(Form, title="Kubernetes"):
    """How the cluster is reached, and what is kept there."""

    kubeconfig: FilePath | None = None
    context: str = ""
    """Of the kubeconfig. Default: its current context."""
    in_cluster: bool = False
    """Use the service account of the pod that cagrpc runs in."""
    namespace: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = "cagrpc"
    """Where the Lease of the one writer is."""
    journal: Literal["cluster", "sqlite"] = "cluster"
    """Custom resources with a Lease (a standby may wait), or the file in the state directory."""

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


class Planner(Form):
    """The planner loop, with `drive: plan`."""

    idle_seconds: PositiveSeconds = 1.0
    """Planning waits until no new pod has come for so long, …"""
    window_seconds: PositiveSeconds = 10.0
    """… but never longer than this after the first."""
    budget_seconds: PositiveSeconds = 5.0
    """How long one planning round may think."""
    shortage_seconds: PositiveSeconds = 300.0
    """How long an offering is left out after a shortage; doubled each time, up to six times as long."""

    expected_pods: bool = True
    """Whether pods that Deployments, ReplicaSets, StatefulSets, Jobs and JobSets still have to create are planned with
    those that are there."""

    @model_validator(mode="before")
    @classmethod
    def _gone(cls, written: Any) -> Any:
        found = [name for name in ("realise", "scoring") if isinstance(written, dict) and name in written]
        if found:
            raise ValueError(
                f"found {' and '.join(found)}, which earlier releases knew: now pods are nominated to the nodes that"
                " were planned for them, whatever the scheduler's scoring (docs/reference/placement.md); remove what"
                " was found"
            )
        return written

    @model_validator(mode="after")
    def _windows(self) -> Self:
        if self.window_seconds < self.idle_seconds:
            raise ValueError(
                f"window_seconds: found {self.window_seconds:g}, expected at least idle_seconds, {self.idle_seconds:g}"
            )
        return self


class PerNamespace(Form):
    """How much the ProvisioningRequests of one namespace may have at once. Those beyond it wait, and say so."""

    requests: Annotated[int, Field(ge=1)] = 500
    """How many requests of a namespace have capacity reserved, or on its way, at most."""
    pods: Annotated[int, Field(ge=1)] = 50_000
    """How many of their pods that have not come yet have capacity reserved at most."""
    overtaken_seconds: Annotated[float, Field(gt=0)] = 3600.0
    """How long capacity is reserved for a request that was bypassed ten times; then none is for as long."""


class ProvisioningRequests(Form):
    """ProvisioningRequests (autoscaling.x-k8s.io/v1), in a cluster that has their CRD."""

    enabled: bool = True
    """Whether they are served; with `kubernetes`."""
    booking_seconds: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """How long provisioned capacity is reserved for pods that have not come. The flag --booking overrides it."""
    keep_seconds: Annotated[float, Field(ge=60)] = 7 * 86_400.0
    """A request that is decided is deleted after so long; one that is not fails then, unless its ValidUntilSeconds says
    otherwise."""
    upstream_classes: list[Literal["check-capacity", "atomic-scale-up"]] = Field(default_factory=list)
    """Which of the cluster-autoscaler's own class names it leaves to cagrpc: `check-capacity` is
    check-capacity.autoscaling.x-k8s.io, `atomic-scale-up` best-effort-atomic-scale-up.autoscaling.x-k8s.io. Default:
    none."""
    per_namespace: PerNamespace = Field(default_factory=PerNamespace)


class Kueue(Form):
    """The admission check controller for Kueue, in a cluster that has it."""

    enabled: bool = True
    """Whether AdmissionChecks are answered; with `kubernetes`."""
    controller_name: Annotated[str, Field(min_length=1, max_length=253)] = "cagrpc.io/provisioning-request"
    """AdmissionChecks with this controllerName are answered, and those with ProvisioningRequestController. Kueue's own
    name, kueue.x-k8s.io/provisioning-request, is refused where Kueue's own controller runs."""
    retry_mode: Literal["release", "keep"] = "release"
    """Between two attempts a Workload loses its quota (`release`: the check is Retry) or keeps it (`keep`: Pending)."""
