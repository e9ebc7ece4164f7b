"""The report as plain values: numbers, and texts of the cluster as `ClusterName`, so that these can be replaced as a
whole. Nothing here is computed or shown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cagrpc.api.core.movability import StaysBecause
from cagrpc.offline.live import Unread
from solver.consolidation.model import DisruptionReason


class Cause(StrEnum):
    """What the difference between two costs is due to, in the order of the steps."""

    EMPTY = "empty nodes"
    STRANDED = "stranded room"
    SHAPES = "shapes of nodes"
    WEIGHTS = "weights"
    LIMITS = "limits"
    RULES = "spread and affinity between pods"
    VOLUMES = "volumes and claims"
    SELECTORS = "selectors, node affinity and taints"
    UNPROVEN = "not proven"


class KeptBecause(StrEnum):
    """Why a node is left out of the comparison, with its pods."""

    NO_PRICE = "no price"
    CONTROL_PLANE = "control plane"
    OTHER_SCHEDULER = "pods of another scheduler"
    NO_PLACE = "pods for which no place was found"


class NameKind(StrEnum):
    """What a text of the cluster names. The value begins its replacement in an anonymised report."""

    GROUP = "group"
    POOL = "pool"
    INSTANCE_TYPE = "type"
    ZONE = "zone"
    CAPACITY_TYPE = "capacity"
    NAMESPACE = "namespace"
    WORKLOAD = "workload"
    RESOURCE = "resource"
    LIMIT = "limit"
    NODE = "node"
    POD = "pod"
    BUDGET = "budget"
    REASON = "reason"
    WAY = "way"


@dataclass(frozen=True, slots=True, order=True)
class ClusterName:
    """A text that comes from the cluster."""

    kind: NameKind
    text: str

    def __str__(self) -> str:
        return self.text or "(none)"


@dataclass(frozen=True, slots=True)
class PodsOfWorkload:
    """Pods of one controller."""

    namespace: ClusterName
    name: ClusterName
    pods: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def workload(name: str, pods: int) -> PodsOfWorkload:
    """Return so many pods of a workload by its namespace and name."""
    namespace, _, own = name.partition("/")
    return PodsOfWorkload(ClusterName(NameKind.NAMESPACE, namespace), ClusterName(NameKind.WORKLOAD, own), pods)


@dataclass(frozen=True, slots=True)
class Share:
    """What nodes of one kind cost together."""

    name: ClusterName
    nodes: int
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class Unpriced:
    """Nodes without a price."""

    instance_type: ClusterName
    zone: ClusterName
    capacity_type: ClusterName
    nodes: int


@dataclass(frozen=True, slots=True)
class KeptNodes:
    """Nodes that are no part of the comparison."""

    reason: KeptBecause
    nodes: int
    pods: int
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class Bar:
    """Nodes that are about as full, and how full they are: fractions of what pods may use."""

    nodes: int
    cpu: float
    cpu_overhead: float
    memory: float
    memory_overhead: float


@dataclass(frozen=True, slots=True)
class ShapeUse:
    """Nodes of one shape, fullest first."""

    group: ClusterName
    instance_type: ClusterName
    zone: ClusterName
    capacity_type: ClusterName
    pool: ClusterName
    nodes: int
    usd_per_hour: float
    cpu_milli: int
    """Of one node, as `memory_bytes`."""
    memory_bytes: int
    bars: tuple[Bar, ...]
    gpus: int = 0
    """Of all of them, as `gpus_requested`."""
    gpus_requested: int = 0


@dataclass(frozen=True, slots=True)
class RoomUse:
    """What nodes have and what pods ask for, in all and by shape."""

    nodes: int
    usd_per_hour: float
    cpu_milli: int
    cpu_requested_milli: int
    memory_bytes: int
    memory_requested_bytes: int
    shapes: tuple[ShapeUse, ...]
    gpus: int = 0
    gpus_requested: int = 0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Pods that have no place in the plan of a step, so that their nodes stay as they are in it."""

    pods: int
    nodes: int
    example: PodsOfWorkload
    reason: ClusterName
    """Why the example has no place; empty where it is not known."""


@dataclass(frozen=True, slots=True)
class ArchitectureChange:
    """Pods that would run on another architecture than now, though no node selector or affinity of theirs says that
    they may."""

    architecture: str
    """Where they would run."""
    pods: int


@dataclass(frozen=True, slots=True)
class Contribution:
    """A step from the present cost to the least: what a cause costs, and what is left without it. One that does not
    `apply` has nothing to take away."""

    cause: Cause
    usd_per_hour: float
    left_usd_per_hour: float
    applies: bool = True
    left_out: LeftOut | None = None


@dataclass(frozen=True, slots=True)
class GroupDelta:
    """Nodes more (or fewer) of a node group."""

    group: ClusterName
    nodes: int


@dataclass(frozen=True, slots=True)
class Bound:
    """A maximum size or limit that the best plan has used up."""

    of: ClusterName
    resource: ClusterName
    amount: int | None


@dataclass(frozen=True, slots=True)
class Saving:
    """What to change, and what that saves."""

    cause: Cause
    usd_per_hour: float
    nodes: int = 0
    deltas: tuple[GroupDelta, ...] = ()
    bounds: tuple[Bound, ...] = ()
    workloads: tuple[PodsOfWorkload, ...] = ()
    more_workloads: int = 0
    pools: tuple[ClusterName, ...] = ()


@dataclass(frozen=True, slots=True)
class BestPlan:
    """The best plan found, under all rules as they are."""

    status: str
    usd_per_hour: float
    lower_bound_usd_per_hour: float | None
    """No plan that keeps the rules and serves as many pods costs less; None where nothing is proven."""
    gap: float | None
    """None also where more pods might be served."""
    unplaced: int
    unserved_unproven: int
    """Pods that are left out though nothing proves that they have to be."""
    increments: tuple[GroupDelta, ...]


@dataclass(frozen=True, slots=True)
class PodsWithoutPlace:
    """Pods that no plan was found for: they have no place in the best one, or their nodes are kept because of them."""

    pods: PodsOfWorkload
    """The workload of one of them, and how many they are."""
    causes: tuple[str, ...]
    """The kinds of constraints that keep them out together, such as "node selector"; empty where they are not known."""
    reasons: tuple[ClusterName, ...]
    """Each cause in a sentence."""
    ways: tuple[ClusterName, ...]
    """What would serve them, each sufficient, and each tried by planning; where there is nothing, why."""


@dataclass(frozen=True, slots=True)
class DisruptedNodes:
    """A step of consolidation: nodes that go together, once the new ones are there."""

    reason: DisruptionReason
    nodes: tuple[ClusterName, ...]
    deltas: tuple[GroupDelta, ...]
    """By node group: fewer of those that go, more of those that come."""
    pods_moved: int
    saving_usd_per_hour: float
    saving_usd_per_hour_per_pod: float | None
    """None where no pod is moved."""
    left_usd_per_hour: float
    """What the nodes cost after it."""


@dataclass(frozen=True, slots=True)
class PodThatStays:
    """An example of a pod that is not moved; its texts are empty where the node itself says so."""

    namespace: ClusterName
    name: ClusterName
    node: ClusterName
    budgets: tuple[ClusterName, ...]
    """PodDisruptionBudgets that keep it, of its namespace."""


@dataclass(frozen=True, slots=True)
class StayingNodes:
    """Nodes of which some pods may not be moved, for one reason. A node may stay for several."""

    because: StaysBecause
    nodes: int
    nodes_for_this_alone: int
    pods: int
    """Those that stay for this reason themselves; the others of the node could be moved."""
    usd_per_hour: float
    unused_usd_per_hour: float
    """The part of that which no pod asks for: of each node, what is left of the fuller of cpu and memory."""
    examples: tuple[PodThatStays, ...]


@dataclass(frozen=True, slots=True)
class Consolidation:
    """From the present nodes to cheaper ones, step by step, by moving what may be moved. The nodes are those of the
    comparison."""

    cost_before_usd_per_hour: float
    cost_after_usd_per_hour: float
    least_usd_per_hour: float
    """Proven: moving only what may be moved, nothing leaves less."""
    least_if_all_moved_usd_per_hour: float
    """Proven: nothing leaves less, even if all pods could be moved."""
    nodes_before: int
    nodes_after: int
    pods_moved: int
    """In all steps: each is evicted, and runs again elsewhere. One may be moved more than once."""
    steps: tuple[DisruptedNodes, ...]
    stays: tuple[StayingNodes, ...]
    """What is unused first, the dearest."""
    architectures: tuple[ArchitectureChange, ...] = ()

    @property
    def saving_usd_per_hour(self) -> float:
        """Of all steps; negative where they cost more."""
        return self.cost_before_usd_per_hour - self.cost_after_usd_per_hour


@dataclass(frozen=True, slots=True)
class Report:
    """What a cluster costs, what it could cost, and why. Costs are US dollars per hour, without kept nodes where
    nothing else is said."""

    source: str
    """`files`, `recording` or `cluster`."""
    anonymised: bool
    elapsed_seconds: float
    pods: int
    """Of the comparison."""
    waiting: int
    """Pods without a node, which are no part of it where nodes stand."""
    nodes: int
    standing_usd_per_hour: float | None
    """Of all nodes with a price, kept ones too; None where nothing stands."""
    present_usd_per_hour: float | None
    planned: BestPlan
    least_usd_per_hour: float | None
    """No plan for these pods costs less, whatever the rules; None where nothing is proven."""
    by_group: tuple[Share, ...]
    by_pool: tuple[Share, ...]
    by_zone: tuple[Share, ...]
    by_capacity_type: tuple[Share, ...]
    unpriced: tuple[Unpriced, ...]
    kept: tuple[KeptNodes, ...]
    steps: tuple[Contribution, ...]
    consolidation: Consolidation | None
    """None where it is not known which pods are on which nodes."""
    before: RoomUse | None
    after: RoomUse
    changes: tuple[Saving, ...]
    """The largest saving first."""
    not_read: tuple[Unread, ...]
    warnings: tuple[str, ...]
    """Empty in an anonymised report, which counts them."""
    without_place: tuple[PodsWithoutPlace, ...] = ()
    left_out_warnings: int = 0
    architectures: tuple[ArchitectureChange, ...] = ()
    """Of the best plan; those of consolidation's steps are its own."""
    interrupted: bool = False
    """Whether planning ended before its time: the plans are the best ones until then."""
