"""Settings of controllers: what the configuration file is read into, and what the controllers take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema, model_validator

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.movability import MovingRules
from cagrpc.api.core.schedulers import EXPENDABLE_BELOW
from cagrpc.cluster.markers import NAMESPACE
from cagrpc.durations import duration_text
from cagrpc.errors import shown
from cagrpc.fleet.fields import LabelKey
from cagrpc.fleet.group_ids import GroupPattern
from cagrpc.forms import Duration, Formerly, NotWritten, Section, Text
from cagrpc.runtime.progress import DEADLINE_SECONDS
from cagrpc.runtime.schedules import Schedule, parse_cron

_UpToAnHour = Duration("1ms", "1h", '"10s"', was_number=True)


class Drive(StrEnum):
    """Who decides on scale-ups."""

    ASSIST = "assist"
    """The cluster-autoscaler, which asks the expander."""
    PLAN = "plan"
    """The planner loop; the expander vetoes scale-ups of our fleet."""


class ExpanderMode(StrEnum):
    """What the expander does with what it finds."""

    DECIDE = "decide"
    """It answers the option that it chooses."""
    SHADOW = "shadow"
    """It answers every option at once, unchanged, so that the autoscaler's next expander decides, and records what it
    would have chosen."""


_ObjectName = Annotated[str, Field(min_length=1, max_length=253)]


@dataclass(frozen=True, slots=True)
class AutoscalerConfigMapSettings(Section):
    """Where the cluster-autoscaler's ConfigMaps are."""

    namespace: Annotated[str, Field(min_length=1, max_length=63)] = "kube-system"
    """The namespace that the cluster-autoscaler runs in."""
    status_config_map: _ObjectName = "cluster-autoscaler-status"
    """Its flag --status-config-map-name."""
    priority_config_map: _ObjectName = "cluster-autoscaler-priority-expander"
    """The priorities in it are weights of node groups that no provisioner takes in."""


def _check_window(idle_seconds: float, window_seconds: float) -> None:
    if window_seconds < idle_seconds:
        window, idle = duration_text(window_seconds), duration_text(idle_seconds)
        raise ValueError(f'window: found "{window}", expected at least idle, "{idle}"')


@dataclass(frozen=True, slots=True)
class BatchSettings(Section):
    """How long the expander lets the cluster-autoscaler wait for pods that come together, by vetoes: Karpenter's
    BATCH_IDLE_DURATION and BATCH_MAX_DURATION."""

    idle_seconds: Annotated[float, _UpToAnHour] = 2.0
    """A choice is made once the youngest pod is so old."""
    window_seconds: Annotated[float, _UpToAnHour] = 30.0
    """And at the latest so long after the first veto. The autoscaler asks once a loop, every 10 s by default."""

    def __post_init__(self) -> None:
        _check_window(self.idle_seconds, self.window_seconds)


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """What the expander answers."""

    mode: ExpanderMode = ExpanderMode.DECIDE
    shares: tuple[tuple[GroupPattern, float], ...] = ()
    """Of node groups by id, over which scale-ups are shared out; the first that matches counts."""
    batch: BatchSettings | None = None
    """None where nobody waits for more pods."""
    veto_partial_gangs: bool = False
    """Whether options of another cloud provider's groups are vetoed where all would serve gangs in part."""
    knows_vetoes: bool = False
    """Whether the autoscaler is said to be 1.32 or newer."""


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
    expendable_below: int = EXPENDABLE_BELOW
    """For pods of a lower priority no node is added, and none is kept from scale-down."""
    feature_gates: frozenset[str] = frozenset()
    """Kubernetes' that are on."""


@dataclass(frozen=True, slots=True)
class PlannerSettings(Section):
    """The planner loop, with `drive: plan`."""

    idle_seconds: Annotated[float, _UpToAnHour] = 1.0
    """Planning waits until no new pod has come for so long, but no longer than `window`."""
    window_seconds: Annotated[float, _UpToAnHour] = 10.0
    """Planning begins at the latest so long after the first new pod."""
    budget_seconds: Annotated[float, _UpToAnHour] = 5.0
    """How long one planning round may think."""
    shortage_seconds: Annotated[float, _UpToAnHour] = 300.0
    """How long an offering is left out after a shortage. It is doubled each time, up to six times as long."""
    expected_pods: bool = True
    """Whether pods that Deployments, ReplicaSets, StatefulSets, Jobs and JobSets still have to create are planned with
    those that are there."""
    progress_deadline_seconds: Annotated[float, _UpToAnHour] = DEADLINE_SECONDS
    """Controllers that still have to create pods, and the scheduler that has to bind them, are waited for as long as
    they make progress, however slowly, and no longer once they have made none for so long. Pods that the API server
    refuses (quota, webhook) are not waited for."""
    dedicated_nodes: bool = False
    """Whether a new node takes the pods planned there and no others until they are bound. Plans are then carried out
    exactly, whatever the order in which the scheduler tries pods. It takes the right to patch pods
    (deploy/rbac-dedicated-nodes.yaml), and leaves a toleration in them."""

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
        _check_window(self.idle_seconds, self.window_seconds)

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
    bypassed_seconds: Annotated[
        float, Duration("1ms", None, '"1h"', was_number=True), Formerly("overtaken_seconds")
    ] = 3600.0
    """How long capacity is reserved for a request that was bypassed ten times. Then none is reserved for as long."""


@dataclass(frozen=True, slots=True)
class RequestSettings(Section):
    """ProvisioningRequests (autoscaling.x-k8s.io/v1), in a cluster that has their CRD."""

    booking_seconds: Annotated[float, Duration("1ms", "24h", '"10m"', was_number=True)] = 600.0
    """How long provisioned capacity is reserved for pods that have not come, counted from the last pod that came. The
    flag --booking overrides it."""
    keep_seconds: Annotated[float, Duration("1m", None, '"168h"', was_number=True)] = 7 * 86_400.0
    """A request that is decided is deleted after so long; one that is not fails then, unless its ValidUntilSeconds says
    otherwise."""
    upstream_classes: frozenset[ClassBehaviour] = frozenset()
    """Which of the cluster-autoscaler's own class names it leaves to cagrpc: `check-capacity` is
    check-capacity.autoscaling.x-k8s.io, `atomic-scale-up` is best-effort-atomic-scale-up.autoscaling.x-k8s.io. The
    default is none."""
    per_namespace: NamespaceSettings = field(default_factory=NamespaceSettings)
    enabled: bool = True
    """Whether ProvisioningRequests are served, which takes the section `kubernetes`."""


@dataclass(frozen=True, slots=True)
class KueueSettings(Section):
    """The admission check controller for Kueue, in a cluster that has it."""

    controller_name: Annotated[str, Field(min_length=1, max_length=253)] = "cagrpc.io/provisioning-request"
    """AdmissionChecks with this controllerName are answered, and those with ProvisioningRequestController. Kueue's own
    name, kueue.x-k8s.io/provisioning-request, is refused where Kueue's own controller runs."""
    retry_mode: RetryMode = RetryMode.RELEASE
    """What becomes of the quota of a Workload between two attempts: `release` gives it up (the check is Retry), `keep`
    keeps it (the check is Pending)."""
    enabled: bool = True
    """Whether AdmissionChecks are answered, which takes the section `kubernetes`."""


class ConsolidationMode(StrEnum):
    OFF = "off"
    DRY_RUN = "dry-run"
    """Says what it would do, and changes nothing, but that it undoes what is under way."""
    ON = "on"


class ConsolidationPolicy(StrEnum):
    """Which nodes of a provisioner may be replaced, in Karpenter's words: only those without pods to move or, with all
    others, any. How much nodes with pods have to save is said by the section `consolidation`."""

    WHEN_EMPTY = "WhenEmpty"
    WHEN_EMPTY_OR_UNDERUTILIZED = "WhenEmptyOrUnderutilized"
    WHEN_UNDERUTILIZED = "WhenUnderutilized"
    BALANCED = "Balanced"


def _nodes(written: Any) -> int | str:
    text = str(written) if isinstance(written, int) and not isinstance(written, bool) else written
    if not isinstance(text, str) or not re.fullmatch(r"(?:100|[0-9]{1,2})%|[0-9]{1,9}", text):
        raise ValueError(
            f'found {shown(written)}, expected a number of nodes or a percentage of them, such as 5 or "10%"'
        )
    return int(text) if text.isdecimal() else text


@dataclass(frozen=True, slots=True)
class NodeBudget(Section):
    """How many nodes of a provisioner may be disrupted at once: a budget of Karpenter's NodePool. Of several that are
    active the smallest holds."""

    nodes: Annotated[
        int | str,
        PlainValidator(_nodes),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}),
    ] = "10%"
    """How many nodes, or which part of them, rounded up; 0 means none."""
    reasons: frozenset[Literal["Underutilized", "Empty", "Drifted"]] | None = None
    """The reasons for which the budget holds. The default is all."""
    schedule: Annotated[str, Text(parse_cron)] | None = None
    """When the budget becomes active: five fields of cron, or @daily and the like, in UTC. The default is that it is
    always active."""
    duration_seconds: Annotated[float, Duration("1m", "8784h", '"8h" or "1h30m"')] | None = None
    """How long it stays active, with `schedule`."""

    def __post_init__(self) -> None:
        if (self.schedule is None) != (self.duration_seconds is None):
            found, missing = ("schedule", "duration") if self.duration_seconds is None else ("duration", "schedule")
            raise ValueError(f"{missing} is missing; {found} goes with it")

    def active_at(self, now_seconds: float) -> bool:
        """Return whether it is active at a time (since the epoch)."""
        if self.schedule is None or self.duration_seconds is None:
            return True
        return Schedule(self.schedule, ZoneInfo("UTC"), self.duration_seconds).open_at(now_seconds)

    def most_of(self, count: int) -> int:
        """Return how many of so many nodes may be disrupted."""
        return self.nodes if isinstance(self.nodes, int) else share(int(self.nodes.removesuffix("%")), count)


def share(percent: int, count: int) -> int:
    """Return a percentage of a number, rounded up."""
    return -(-percent * count // 100)


def _one_or_more(budgets: tuple[NodeBudget, ...]) -> tuple[NodeBudget, ...]:
    if not budgets:  # pydantic's own check would take one that is wrong for none
        raise ValueError("found [], expected at least 1 of them")
    return budgets


_Budgets = Annotated[tuple[NodeBudget, ...], Field(max_length=50)]


@dataclass(frozen=True, slots=True)
class ProvisionerDisruption(Section):
    """Which nodes of a provisioner consolidation may replace, and how many at once: `spec.disruption` of a NodePool."""

    consolidation_policy: ConsolidationPolicy = ConsolidationPolicy.WHEN_EMPTY_OR_UNDERUTILIZED
    """Which nodes may be replaced. With `WhenEmpty` only nodes that have no pods to move; with all others any node."""
    consolidate_after_seconds: Annotated[
        float | None, Duration("0s", "8760h", '"0s", "30m" or "Never"', never="Never")
    ] = 0.0
    """A node is left alone for so long after pods came to it; `Never`: consolidation leaves all of them alone."""
    budgets: _Budgets | None = None
    """How many nodes may be disrupted at once. The default is `consolidation.budgets`."""


_ConditionType = Annotated[str, Field(min_length=1, max_length=316)]


@dataclass(frozen=True, slots=True)
class RepairRule(Section):
    """A condition of nodes that have gone bad."""

    condition: _ConditionType
    """The type of the condition, such as Ready, or one of a node problem detector."""
    status: Literal["True", "False", "Unknown"]
    toleration_seconds: Annotated[float, Duration("1s", "168h", '"30m"')]
    """How long the node may have it."""


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


def _switch(value: Any) -> Any:
    """YAML reads on and off without quotes as truth values."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


@dataclass(frozen=True, slots=True)
class ConsolidationSettings(Section):
    """Replaces nodes by cheaper ones, or ones of a better weight, step by step (docs/guides/consolidation.md)."""

    mode: Annotated[
        ConsolidationMode,
        BeforeValidator(_switch),
        WithJsonSchema({"enum": ["off", "dry-run", "on", True, False]}),
    ] = ConsolidationMode.DRY_RUN
    """`dry-run`: only says what it would do, and changes nothing. `on`: does it, and cagrpc alone scales the fleet
    down."""
    every_seconds: Annotated[float, Duration("1s", "24h", '"60s"')] = 60.0
    """How often it is planned anew."""
    budget_seconds: Annotated[float, Duration("1s", "10m", '"10s"')] = 10.0
    """How long planning may think."""
    least_saving_usd_per_hour_per_pod: Annotated[float, Field(ge=0, le=1_000)] = 0.0
    """A step that moves pods saves at least this much for each of them, or is left out. Nodes that must go, and pods
    that go to a better weight, are moved all the same."""
    most_nodes_per_step: Annotated[int, Field(ge=1, le=1_000)] = 50
    """How many nodes one step removes at most. A step that gangs tie together may be larger."""
    minimum_node_age_seconds: Annotated[float, Duration("1s", "168h", '"10m"')] = 600.0
    """A younger node stays, unless it must go."""
    skip_nodes_with_local_storage: bool = True
    """Whether hostPath and emptyDir volumes (but in memory) keep a pod where it is, as CA's flag of this name;
    Karpenter has no such rule."""
    skip_nodes_with_system_pods: bool = True
    """Whether pods of kube-system without a PodDisruptionBudget stay for an hour, as CA's flag of this name."""
    step_deadline_seconds: Annotated[float, Duration("1m", "24h", '"15m"')] = 900.0
    """A step that makes no progress for so long is undone. It is longer than `increment_deadline`."""
    windows: tuple[Schedule, ...] = ()
    """When nodes may be replaced. The default is always. A step that has begun is finished; nodes that must go do not
    wait."""
    budgets: Annotated[_Budgets, AfterValidator(_one_or_more), Field(json_schema_extra={"minItems": 1})] = field(
        default_factory=lambda: (NodeBudget(),)
    )
    """The budgets of each provisioner that has none of its own."""
    disruption: Annotated[Mapping[str, ProvisionerDisruption], NotWritten()] = field(default_factory=dict)
    """By provisioner that says something of its own."""
    pause_after_failure_seconds: Annotated[float, Duration("1s", "6h", '"10m"')] = 600.0
    """How long nothing is begun after a step that was undone: twice as long after each further one, and at most 6h."""
    longest_pause_seconds: Annotated[float, NotWritten()] = 6 * 3600.0
    interruption_taints: frozenset[LabelKey] = frozenset(DEFAULT_INTERRUPTION_TAINTS)
    """A node with one of these taints is about to be taken by its cloud, and is replaced before that happens."""
    interruption_conditions: frozenset[_ConditionType] = frozenset(DEFAULT_INTERRUPTION_CONDITIONS)
    """A node of which one of these conditions is True is about to be taken by its cloud, too."""
    repair: tuple[RepairRule, ...] = field(
        default_factory=lambda: (RepairRule("Ready", "False", 1800.0), RepairRule("Ready", "Unknown", 1800.0))
    )
    """A node with one of these conditions for so long has gone bad, and is replaced."""

    def __post_init__(self) -> None:
        if self.budget_seconds > self.every_seconds:
            budget, every = duration_text(self.budget_seconds), duration_text(self.every_seconds)
            raise ValueError(f'budget: found "{budget}", expected at most every, "{every}"')

    @property
    def moving(self) -> MovingRules:
        """What keeps a pod where it is."""
        return MovingRules(
            keeps_local_storage=self.skip_nodes_with_local_storage, keeps_system_pods=self.skip_nodes_with_system_pods
        )

    def disruption_of(self, provisioner: str) -> ProvisionerDisruption:
        """Return what holds for the nodes of a provisioner, but for its budgets."""
        return self.disruption.get(provisioner, ProvisionerDisruption())

    def budgets_of(self, provisioner: str) -> tuple[NodeBudget, ...]:
        """Return the budgets of a provisioner: its own, even if there are none, or those of all."""
        own = self.disruption_of(provisioner).budgets
        return self.budgets if own is None else own
