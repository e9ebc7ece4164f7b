"""Settings of controllers, as plain values. How they are written in a file is in `config.schema`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.movability import MovingRules
from cagrpc.cluster.markers import NAMESPACE
from cagrpc.runtime.progress import DEADLINE_SECONDS
from cagrpc.runtime.schedules import Schedule


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
class PlannerSettings:
    """Of the planner loop. Times in seconds."""

    idle_seconds: float = 1.0
    """Planning waits until no new pod has come for so long,"""
    window_seconds: float = 10.0
    """but never longer than this after the first."""
    budget_seconds: float = 5.0
    """Of one planning round."""
    expected_pods: bool = True
    """Whether pods that workloads still have to create are planned with those that are there."""
    shortage_seconds: float = 300.0
    """How long an offering is left out after a shortage; twice as long each time, up to six times."""
    progress_deadline_seconds: float = DEADLINE_SECONDS
    """Controllers that still have to create pods, and the scheduler that has to bind them, are waited for as long as
    they make progress; not any longer once they have made none for so long."""
    dedicated_nodes: bool = False
    """Whether a new node takes the pods planned there and no others, until they are bound. Takes the right to patch
    pods."""

    @property
    def step_patience_seconds(self) -> float:
        """Return after how long a step of a controller that plans is stuck: it waits for another's turn, compiles at
        first, and may take longer than its budget."""
        return 900.0 + 4 * self.budget_seconds


@dataclass(frozen=True, slots=True)
class NamespaceSettings:
    """How much the ProvisioningRequests of one namespace may have at once; the others wait."""

    requests: int = 500
    """For so many room is kept, or on its way,"""
    pods: int = 50_000
    """and for so many of their pods that have not come."""
    overtaken_seconds: float = 3600.0
    """So long what a request needs is kept for it after it was overtaken ten times; then not for as long."""


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """Of ProvisioningRequests. Times in seconds."""

    booking_seconds: float = 600.0
    """How long what was provisioned is kept for pods that have not come, from the last that came."""
    keep_seconds: float = 7 * 86_400.0
    """After so long a request that is decided is deleted; one that is not is given up, unless it says otherwise."""
    upstream_classes: frozenset[ClassBehaviour] = frozenset()
    """Behaviours whose upstream class names (….autoscaling.x-k8s.io) the cluster-autoscaler leaves to us."""
    per_namespace: NamespaceSettings = field(default_factory=NamespaceSettings)


@dataclass(frozen=True, slots=True)
class KueueSettings:
    """Of the admission check controller for Kueue."""

    controller_name: str = "cagrpc.io/provisioning-request"
    """AdmissionChecks with this controllerName are ours."""
    retry_mode: RetryMode = RetryMode.RELEASE


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
