"""What controllers read of a cluster: plain immutable values that `view` makes and nobody changes.

Pods and nodes are already in the planner's words; what is here beside them is who they are, so that a controller can
nominate a pod, write an Event on it or annotate a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from cagrpc.api.capacity_quotas import CapacityQuota
from cagrpc.api.core.movability import Kept, StaysBecause, kept_by
from cagrpc.api.devices.expressions import Expressions
from cagrpc.api.devices.matching import NodeDevices, NodeMatching
from cagrpc.api.devices.objects import Device
from cagrpc.api.devices.selectors import Matcher
from cagrpc.fleet.model import ExpectedPod, PodKey
from solver.model import Node, PodSet, PodSpec, Resources, RunningPods
from solver.slack.model import Copies, PodCount

if TYPE_CHECKING:  # not needed to check a configuration
    from cagrpc.api.provisioning.objects import TemplatePod


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod as the API server knows it, or an expected one."""

    key: PodKey
    namespace: str
    name: str
    created_at_seconds: int = 0
    """The time of its creation since the epoch."""
    workload: str = ""
    """Who has made it, `kind/namespace/name`: its controller, or of an expected pod the workload that people know."""

    @property
    def uid(self) -> str:
        """Its UID; empty for an expected pod, which the API server does not know."""
        return "" if isinstance(self.key, ExpectedPod) else self.key

    @property
    def is_expected(self) -> bool:
        """Whether a workload still has to create it."""
        return isinstance(self.key, ExpectedPod)


def oldest_first(ref: PodRef) -> tuple[int, str, str]:
    return ref.created_at_seconds, ref.namespace, ref.name


@dataclass(frozen=True, slots=True)
class PendingPod:
    """A pod that the scheduler has not bound yet, and its `status.nominatedNodeName`."""

    ref: PodRef
    nominated_node: str = ""
    nominated_by_us: bool = False
    """Whether the nomination is our own, by the pod's managed fields."""
    seen: int = 1
    """How often it was seen: more often with each change."""
    tried_at_seconds: float = 0.0
    """When it was seen last to have been tried by the scheduler, or first; of the view's clock."""
    cleared: int = 0
    """How often a nomination of ours has been cleared."""
    tolerated: frozenset[str] = frozenset()
    """Values of our start-up taint that it tolerates: of nodes that are dedicated to it."""


@dataclass(frozen=True, slots=True)
class WaitingPods:
    """Pending pods that planning cannot tell apart, oldest first. `pod_set.count` is their number."""

    pod_set: PodSet
    pods: tuple[PodRef, ...]


@dataclass(frozen=True, slots=True)
class ReschedulablePod:
    """A pod that is bound and has to go elsewhere if its node goes: none of a DaemonSet, no mirror pod, none that has
    finished."""

    ref: PodRef
    spec: PodSpec
    """The spec with all that the constraints of any pod can see, and with its preferences."""
    priority: int = 0
    gang: str | None = None
    kept: str = ""
    """Why it may not be moved now, for people, with its namespace/name; empty where it may."""
    because: StaysBecause | None = None
    """Which of the reasons that there are keeps it; None where it may be moved."""
    budgets: tuple[str, ...] = ()
    """PodDisruptionBudgets that keep it, `namespace/name`."""

    @property
    def kept_by(self) -> Kept:
        return kept_by(self.because)


@dataclass(frozen=True, slots=True)
class PodsOnNode:
    """The pods that are bound to one node."""

    reschedulable: tuple[ReschedulablePod, ...] = ()
    """Oldest first."""
    others: tuple[RunningPods, ...] = ()
    """DaemonSets' and mirror pods, and those that are being deleted: they go with the node. Their specs have all that
    the constraints of any pod can see."""
    coming: str = ""
    """One that the scheduler has nominated to the node and not bound yet, `namespace/name`; empty where there is none.
    The same below."""
    ending: str = ""
    """One that is being deleted and has its time."""


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """What a condition of a Node says, and since when."""

    type: str
    status: str
    since_seconds: int = 0
    """The time of its last transition since the epoch; 0 where it does not say."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A registered Node."""

    node: Node
    """The node with what is free on it: allocatable less the requests of all pods bound to it. `node.taints` are
    without our own start-up taint."""
    provider_id: str
    ready: bool
    held: bool
    """Whether it carries our start-up taint."""
    movable: tuple[RunningPods, ...] = ()
    """Those of its pods that would have to go elsewhere if it went: all but DaemonSets', mirror and finished pods.
    Their specs have all that the constraints of any pod can see; `node.running` has what pods that wait see."""
    expendable: tuple[RunningPods, ...] = ()
    """Those of `movable` of a priority below the cluster-autoscaler's cutoff, for which it keeps no node."""
    scale_down_disabled: str = ""
    """The value of the scale-down-disabled annotation; empty where there is none."""
    scale_down_disabled_by_us: bool = False
    attach_limits: Mapping[str, int] | None = None
    """How many volumes each driver may attach, by the node's CSINode; None without one. What is left of it is in
    `node.free`."""
    created_at_seconds: int = 0
    """The time of its Node's creation since the epoch."""
    do_not_disrupt: bool = False
    """Whether somebody has set Karpenter's annotation `karpenter.sh/do-not-disrupt` to `true`; Karpenter's copies of
    what our own NodeClaims say do not count."""
    conditions: tuple[NodeCondition, ...] = ()
    """The conditions of its Node, one of a type."""
    capacity: Resources = field(default_factory=dict)
    """What it counts against limits; empty where its Node does not say it."""

    @property
    def is_to_stay(self) -> bool:
        """Whether somebody has said so of it, by an annotation of CA's or Karpenter's; what we say ourselves we take
        back."""
        by_others = self.scale_down_disabled == "true" and not self.scale_down_disabled_by_us
        return by_others or self.do_not_disrupt


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Pending pods in numbers, for deciding when to plan. Times are seconds of the view's clock."""

    waiting: int
    first_seen_at_seconds: float | None
    """When the pending pod was seen that is known longest."""
    news_at_seconds: Mapping[str, float] = field(default_factory=dict)
    """When a pod came last that was not expected, or more were expected than before, by namespace; the empty one stands
    for what is of no namespace."""
    expected: int = 0
    """Pods that workloads still have to create."""
    placeholders: int = 0
    """Placeholders of the slack without room on nodes that stand. The view does not know of them."""

    @property
    def any(self) -> bool:
        return bool(self.waiting or self.expected or self.placeholders)

    @property
    def last_seen_at_seconds(self) -> float | None:
        """Return when the latest news of all came."""
        return max(self.news_at_seconds.values(), default=None)


@dataclass(frozen=True, slots=True)
class PlannedTemplate:
    """A pod of a PodTemplate, as planning reads it with its volumes and claims."""

    spec: PodSpec
    """The spec with namespace and labels."""
    of_one_pod: str = ""
    """Why no second pod can be made of it; empty where it can."""


class ConsumerStage(StrEnum):
    PENDING = "pending"
    BOUND = "bound"
    SUCCEEDED = "succeeded"


@dataclass(frozen=True, slots=True)
class Consumer:
    """A pod that consumes a ProvisioningRequest of its namespace: no demand of its own (it carries both annotations of
    CA, under either prefix)."""

    pod: PodRef
    request: str
    """The name of the request."""
    class_name: str
    """The provisioning class that its annotation names."""
    spec: PodSpec
    """The spec without namespace and labels, as that of a PodTemplate. Pods of a cluster tolerate more than their
    template says: what the API server's admission adds (not-ready and unreachable nodes)."""
    stage: ConsumerStage
    node: str = ""
    """Where it is bound."""


@dataclass(frozen=True, slots=True)
class IncompleteGang:
    """A gang that is not planned before more of its pods are there."""

    name: str
    there: int
    needed: int
    pods: tuple[PodRef, ...] = ()
    """Those that wait, oldest first."""


@dataclass(frozen=True, slots=True)
class SlackSeen:
    """What the resource slack goes by."""

    pods: tuple[PodCount, ...] = ()
    """Pods that wait or run, but for DaemonSets'."""
    mirrors: tuple[Copies, ...] = ()
    """What room is to be kept for, by workload, or pod without one: named `deployment/namespace/name`, sorted by that.
    Specs have all that the constraints of pods that wait can see."""
    warnings: tuple[str, ...] = ()
    """Invalid slack annotations."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """One consistent state of the cluster."""

    waiting: tuple[WaitingPods, ...]
    nodes: tuple[ClusterNode, ...]
    daemon_sets: tuple[PodSpec, ...]
    incomplete_gangs: tuple[IncompleteGang, ...] = ()
    warnings: tuple[str, ...] = ()
    """Pods that planning cannot read, and why."""
    consumers: tuple[Consumer, ...] = ()
    """Oldest first. Not among `waiting`; those that are on a node take from it as any pod."""
    consumers_missing_annotation: tuple[tuple[PodRef, str], ...] = ()
    """Pods with one of the two annotations, oldest first, and what is missing. They are ordinary pods."""
    slack: SlackSeen = field(default_factory=SlackSeen)
    """Empty where the view is not asked for it."""
    roots: Mapping[str, str] = field(default_factory=dict)
    """Workloads that others have made to the ones that people know: a ReplicaSet to its Deployment, for instance."""
    expected: frozenset[ExpectedPod] = frozenset()
    """All expected pods."""
    devices: NodeMatching = field(default_factory=lambda: NodeMatching(Matcher(Expressions())), compare=False)
    """What the devices of nodes are to the claims of pods; what nobody has of them is in `node.devices`."""
    devices_of_types: Mapping[str, NodeDevices] = field(default_factory=dict)
    """Devices of nodes that stand or have stood, by instance type."""
    devices_configured: Mapping[str, tuple[Device, ...]] = field(default_factory=dict)
    """Devices of new nodes, by node group."""
    templates: Mapping[TemplatePod, PlannedTemplate] = field(default_factory=dict)
    """Pods that do not exist yet and are planned all the same."""
    drivers: frozenset[str] = frozenset()
    """CSI drivers that attach volumes of pods: every node has a number of attachments of each."""
    attach_limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """How many volumes each driver may attach to a node, by instance type, of nodes that stand or have stood."""
    capacity_quotas: Mapping[str, CapacityQuota] = field(default_factory=dict)
    """By name."""
    bound: Mapping[str, PodsOnNode] = field(default_factory=dict)
    """The pods of each node that stands; empty where the view was not asked for them."""

    @property
    def waiting_pods(self) -> int:
        """Return how many pods wait, expected ones among them."""
        return sum(len(each.pods) for each in self.waiting)
