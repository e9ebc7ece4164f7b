"""Settings of controllers: what the configuration file is read into, and what the controllers take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.movability import MovingRules
from cagrpc.cluster.markers import NAMESPACE
from cagrpc.durations import duration_text
from cagrpc.forms import Duration, Section
from cagrpc.runtime.progress import DEADLINE_SECONDS
from cagrpc.runtime.schedules import Schedule

_UpToAnHour = Duration("1ms", "1h", '"10s"', was_number=True)


class Drive(StrEnum):
    """Who decides on scale-ups."""

    ASSIST = "assist"
    """The cluster-autoscaler, which asks the expander."""
    PLAN = "plan"
    """The planner loop; the expander vetoes."""


class ClassBehaviour(StrEnum):
    """What is done for a request of a class."""

    CHECK = "check-capacity"
    """Whether there is room now."""
    ATOMIC = "atomic-scale-up"
    """Room is made for all of it, or for nothing."""


class JournalKind(StrEnum):
    CLUSTER = "cluster"
    """Custom resources, and a Lease for one writer."""
    SQLITE = "sqlite"


class RetryMode(StrEnum):
    """What becomes of a Workload between two attempts to provision it."""

    RELEASE = "release"
    """Its check is `Retry`: Kueue evicts it, and admits it again after a pause if there is quota for it then."""
    KEEP = "keep"
    """Its check stays `Pending`, and it keeps its quota."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Access to a cluster."""

    kubeconfig: Path | None = None
    """None inside a cluster: its service account is used."""
    context: str = ""
    """Of the kubeconfig; empty for its current one."""
    namespace: str = NAMESPACE
    """Where the Lease is."""
    journal: JournalKind = JournalKind.CLUSTER
    gang_label: str = DEFAULT_GANG_LABEL


@dataclass(frozen=True, slots=True)
class PlannerSettings(Section):
    """The planner loop, with `drive: plan`."""

    idle_seconds: Annotated[float, _UpToAnHour] = 1.0
    """Planning waits until no new pod has come for so long, …"""
    window_seconds: Annotated[float, _UpToAnHour] = 10.0
    """… but never longer than this after the first."""
    budget_seconds: Annotated[float, _UpToAnHour] = 5.0
    """How long one planning round may think."""
    shortage_seconds: Annotated[float, _UpToAnHour] = 300.0
    """How long an offering is left out after a shortage; doubled each time, up to six times as long."""
    expected_pods: bool = True
    """Whether pods that Deployments, ReplicaSets, StatefulSets, Jobs and JobSets still have to create are planned with
    those that are there."""
    progress_deadline_seconds: Annotated[float, _UpToAnHour] = DEADLINE_SECONDS
    """Controllers that still have to create pods, and the scheduler that has to bind them, are waited for as long as
    they make progress, however slowly; not any longer once they have made none for so long. Pods that the API server
    refuses (quota, webhook) are not waited for."""
    dedicated_nodes: bool = False
    """Whether a new node takes the pods planned there and no others, until they are bound: exact, whatever the order in
    which the scheduler tries pods. Takes the right to patch pods (deploy/rbac-dedicated-nodes.yaml), and leaves a
    toleration in them."""

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

    def __post_init__(self) -> None:
        if self.window_seconds < self.idle_seconds:
            window, idle = duration_text(self.window_seconds), duration_text(self.idle_seconds)
            raise ValueError(f'window: found "{window}", expected at least idle, "{idle}"')

    @property
    def step_patience_seconds(self) -> float:
        """Return after how long a step of a controller that plans is stuck: it waits for another's turn, compiles at
        first, and may take longer than its budget."""
        return 900.0 + 4 * self.budget_seconds


@dataclass(frozen=True, slots=True)
class NamespaceSettings(Section):
    """How much the ProvisioningRequests of one namespace may have at once. Those beyond it wait, and say so."""

    requests: Annotated[int, Field(ge=1)] = 500
    """How many requests of a namespace have capacity reserved, or on its way, at most."""
    pods: Annotated[int, Field(ge=1)] = 50_000
    """How many of their pods that have not come yet have capacity reserved at most."""
    overtaken_seconds: Annotated[float, Duration("1ms", None, '"1h"', was_number=True)] = 3600.0
    """How long capacity is reserved for a request that was bypassed ten times; then none is for as long."""


@dataclass(frozen=True, slots=True)
class RequestSettings(Section):
    """ProvisioningRequests (autoscaling.x-k8s.io/v1), in a cluster that has their CRD."""

    booking_seconds: Annotated[float, Duration("1ms", "24h", '"10m"', was_number=True)] = 600.0
    """How long provisioned capacity is reserved for pods that have not come, from the last that came. The flag
    --booking overrides it."""
    keep_seconds: Annotated[float, Duration("1m", None, '"168h"', was_number=True)] = 7 * 86_400.0
    """A request that is decided is deleted after so long; one that is not fails then, unless its ValidUntilSeconds says
    otherwise."""
    upstream_classes: frozenset[ClassBehaviour] = frozenset()
    """Which of the cluster-autoscaler's own class names it leaves to cagrpc: `check-capacity` is
    check-capacity.autoscaling.x-k8s.io, `atomic-scale-up` best-effort-atomic-scale-up.autoscaling.x-k8s.io. Default:
    none."""
    per_namespace: NamespaceSettings = field(default_factory=NamespaceSettings)
    enabled: bool = True
    """Whether they are served; with `kubernetes`."""


@dataclass(frozen=True, slots=True)
class KueueSettings(Section):
    """The admission check controller for Kueue, in a cluster that has it."""

    controller_name: Annotated[str, Field(min_length=1, max_length=253)] = "cagrpc.io/provisioning-request"
    """AdmissionChecks with this controllerName are answered, and those with ProvisioningRequestController. Kueue's own
    name, kueue.x-k8s.io/provisioning-request, is refused where Kueue's own controller runs."""
    retry_mode: RetryMode = RetryMode.RELEASE
    """Between two attempts a Workload loses its quota (`release`: the check is Retry) or keeps it (`keep`: Pending)."""
    enabled: bool = True
    """Whether AdmissionChecks are answered; with `kubernetes`."""


class ConsolidationMode(StrEnum):
    DRY_RUN = "dry-run"
    """Says what it would do, and changes nothing, but that it undoes what is under way."""
    ON = "on"


class ConsolidationPolicy(StrEnum):
    """Which nodes of a provisioner may be replaced, in Karpenter's words."""

    WHEN_EMPTY = "WhenEmpty"
    WHEN_EMPTY_OR_UNDERUTILIZED = "WhenEmptyOrUnderutilized"


@dataclass(frozen=True, slots=True)
class NodeBudget:
    """How many nodes of a provisioner may be disrupted at once."""

    amount: int
    """Nodes, or percent of them."""
    is_percentage: bool = False
    reasons: frozenset[str] | None = None
    """Karpenter's, for which it holds; None for all."""
    schedule: Schedule | None = None
    """When it is active; None for always."""


@dataclass(frozen=True, slots=True)
class ProvisionerDisruption:
    """What a provisioner says of the disruption of its nodes."""

    policy: ConsolidationPolicy = ConsolidationPolicy.WHEN_EMPTY_OR_UNDERUTILIZED
    consolidate_after_seconds: float | None = 0.0
    """A node is left alone for so long after pods came to it; None: always."""
    budgets: tuple[NodeBudget, ...] | None = None
    """None for those that hold where a provisioner has none."""


@dataclass(frozen=True, slots=True)
class RepairRule:
    """A condition that makes a node bad once it has lasted for so long."""

    condition: str
    status: str
    toleration_seconds: float


DEFAULT_INTERRUPTION_TAINTS = (
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/rebalance-recommendation",
    "aws-node-termination-handler/scheduled-maintenance",
    "cloud.google.com/impending-node-termination",
    "node.cloudprovider.kubernetes.io/shutdown",
)
"""Of nodes that their cloud takes soon."""
DEFAULT_INTERRUPTION_CONDITIONS = ("PreemptionScheduled", "Terminating")
"""Types of conditions that are True of such nodes: AKS' node problem detector sets the first on spot VMs, OpenShift's
termination handler and Gardener's machine-controller-manager the other."""


@dataclass(frozen=True, slots=True)
class ConsolidationSettings:
    """Of consolidation. Times in seconds."""

    mode: ConsolidationMode = ConsolidationMode.DRY_RUN
    every_seconds: float = 60.0
    """Between two plans."""
    budget_seconds: float = 10.0
    """Of one plan."""
    least_saving_usd_per_hour_per_pod: float = 0.0
    most_nodes_per_step: int = 50
    minimum_node_age_seconds: float = 600.0
    moving: MovingRules = field(default_factory=MovingRules)
    step_deadline_seconds: float = 900.0
    """A step that makes no progress for so long is undone."""
    windows: tuple[Schedule, ...] = ()
    """When nodes may be replaced that need not be; empty for always."""
    budgets: tuple[NodeBudget, ...] = (NodeBudget(10, is_percentage=True),)
    """Of each provisioner that has none of its own."""
    disruption: Mapping[str, ProvisionerDisruption] = field(default_factory=dict)
    """By provisioner that says something of its own."""
    pause_seconds: float = 600.0
    """After a step that was undone; twice as long after each further one,"""
    longest_pause_seconds: float = 6 * 3600.0
    """but no longer than this."""
    interruption_taints: frozenset[str] = frozenset(DEFAULT_INTERRUPTION_TAINTS)
    interruption_conditions: frozenset[str] = frozenset(DEFAULT_INTERRUPTION_CONDITIONS)
    repair: tuple[RepairRule, ...] = (RepairRule("Ready", "False", 1800.0), RepairRule("Ready", "Unknown", 1800.0))

    def disruption_of(self, provisioner: str) -> ProvisionerDisruption:
        """Return what holds for the nodes of a provisioner, but for its budgets."""
        return self.disruption.get(provisioner, ProvisionerDisruption())

    def budgets_of(self, provisioner: str) -> tuple[NodeBudget, ...]:
        """Return the budgets of a provisioner: its own, even if there are none, or those of all."""
        own = self.disruption_of(provisioner).budgets
        return self.budgets if own is None else own
