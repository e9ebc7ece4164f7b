"""What the fleet is made of: instances, increments and the immutable snapshot that readers see.

Node groups and limits are the solver's own values (`solver.model.NodeGroup`, `Limit`): one concept, one home. This
module holds no behaviour; `journal` keeps increments, `fleet` changes them, `backend` is the world outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cagrpc.errors import ErrorKind
from solver.model import Limit, NodeGroup

LARGEST_INCREMENT = 100_000
"""Nodes of one increment: whole or not at all, it is journalled, ordered and rolled back in one piece. No cluster has
as many: what is larger is a slip."""


@dataclass(frozen=True, slots=True)
class ExpectedPod:
    """A pod that a workload still has to create, and that is planned all the same."""

    workload: str
    """`kind/namespace/name`, the one that people know."""
    number: int
    """Its number among those expected of the workload."""

    def __str__(self) -> str:
        return f"{self.workload}/{self.number}"


PodKey = str | ExpectedPod
"""What a pod is known by: its UID, as long as it has one."""


class InstanceState(StrEnum):
    CREATING = "creating"
    RUNNING = "running"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class InstanceError:
    """Why an instance was not created. `code` and `message` reach CA as errorCode and errorMessage; CA backs the
    node group off for any of them, and takes `out_of_resources` for a shortage rather than a fault."""

    code: str
    message: str
    kind: ErrorKind = ErrorKind.CAPACITY
    retry_after_seconds: float | None = None
    """How long the backend will not try this again, where it says so."""

    @property
    def out_of_resources(self) -> bool:
        return self.kind in (ErrorKind.CAPACITY, ErrorKind.QUOTA)


@dataclass(frozen=True, slots=True)
class Instance:
    """One machine, or what is left to see of one. `id` equals the Node's spec.providerID exactly."""

    id: str
    node_group: str
    state: InstanceState
    error: InstanceError | None = None
    """Set on a CREATING instance whose creation failed."""


class Phase(StrEnum):
    """An increment's life: planned -> creating -> ready -> done, or -> rolling back -> rolled back."""

    PLANNED = "planned"
    CREATING = "creating"
    READY = "ready"
    DONE = "done"
    ROLLING_BACK = "rolling-back"
    ROLLED_BACK = "rolled-back"

    @property
    def in_flight(self) -> bool:
        return self in (Phase.PLANNED, Phase.CREATING, Phase.READY, Phase.ROLLING_BACK)


class Origin(StrEnum):
    """Who asked. It decides what is left to see of a failed increment."""

    AUTOSCALER = "cluster-autoscaler"
    """CA's NodeGroupIncreaseSize: failed instances stay listed until CA has deleted them, or 10 minutes."""
    CAGRPC = "cagrpc"
    """Our own: targets are restored at once."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What one new node of a group is planned for: pods, or ProvisioningRequests."""

    node_group: str
    pods: tuple[PodKey, ...] = ()
    requests: tuple[str, ...] = ()
    """UIDs."""
    domain: str = ""
    """Which topology domain (`NodeGroup.new_domains`): all nodes of the increment and the group with this one are to
    share it. Empty where no pod of the node asks for that."""


@dataclass(frozen=True, slots=True)
class IncrementSpec:
    """What is asked of the fleet: `deltas` (node group id -> new nodes, each >= 1), whole or not at all."""

    deltas: Mapping[str, int]
    origin: Origin = Origin.CAGRPC
    pods: frozenset[PodKey] = frozenset()
    """The pods it is meant to serve; while it is in flight nothing else is opened for only these."""
    reason: str = ""
    plan: str = ""
    """The planning round it comes from; increments of one round share nothing but this."""
    placements: tuple[Placement, ...] = ()
    """Which pods each node is planned for, at most one entry a node; where it is known."""
    cost_usd_per_hour: float | None = None
    """The cost of its nodes."""
    gap: float | None = None
    """The gap of the plan it comes from, a fraction of its cost."""
    requests: frozenset[str] = frozenset()
    """UIDs of the ProvisioningRequests that it is for. An increment is for these or for pods, never for both."""
    waiting_since_seconds: float | None = None
    """When the oldest of its pods or requests was created, since the epoch; None where it is not known."""


@dataclass(frozen=True, slots=True)
class IncrementNode:
    """A node of an increment in flight, and what it is planned for."""

    name: str
    """`increment/node group/number`: what it is called while its Node is not known."""
    node_group: str
    instance_id: str = ""
    """Empty until the backend has listed it."""
    pods: tuple[PodKey, ...] = ()
    """The pods planned for it."""
    requests: tuple[str, ...] = ()
    """UIDs of the ProvisioningRequests planned for it."""
    domain: str = ""
    """What stands for its new topology domain until it is known; empty where it has none."""


@dataclass(frozen=True, slots=True)
class IncrementStatus:
    """An increment as the journal knows it."""

    id: str
    increment: IncrementSpec
    phase: Phase
    message: str = ""
    """Why it was rolled back, or what it waits for."""
    created_at_seconds: float = 0.0
    deadline_at_seconds: float = 0.0
    finished_at_seconds: float | None = None
    short_groups: tuple[str, ...] = ()
    """The node groups of a failed one that were out of capacity."""
    retry_after_seconds: float | None = None
    """How long after its end the backend goes on refusing its short groups, where it said so."""
    nodes: tuple[IncrementNode, ...] = ()
    """The nodes of one that is planned, creating or ready, but for those that were deleted or are gone."""

    @property
    def held(self) -> tuple[IncrementNode, ...]:
        """Of one that is ready: its nodes, which wait to be released (`Fleet.release`)."""
        return self.nodes if self.phase is Phase.READY else ()


class DisruptionPhase(StrEnum):
    """The life of a disruption: creating -> moving -> done, or -> undoing -> undone."""

    CREATING = "creating"
    """Its new nodes come, and are held; then its old nodes are cordoned."""
    MOVING = "moving"
    """Pods are evicted from the old nodes, and their successors run elsewhere."""
    DONE = "done"
    """The old nodes are deleted."""
    UNDOING = "undoing"
    """Nothing is evicted any more; cordons are lifted, and new nodes that nobody needs go."""
    UNDONE = "undone"

    @property
    def under_way(self) -> bool:
        return self in (DisruptionPhase.CREATING, DisruptionPhase.MOVING, DisruptionPhase.UNDOING)


@dataclass(frozen=True, slots=True)
class DisruptedNode:
    """A node that is to go."""

    name: str
    instance_id: str
    node_group: str


@dataclass(frozen=True, slots=True)
class PodMove:
    """A pod that is to be evicted, and where its successor is to go."""

    uid: str
    namespace: str
    name: str
    workload: str
    """Its controller, `kind/namespace/name`."""
    target: str
    """The name of a Node; of a new one the `IncrementNode.name` until it is known."""
    gang: str = ""
    """Pods of one gang are evicted together."""


@dataclass(frozen=True, slots=True)
class Disruption:
    """Nodes that go together, after the new ones are there and their pods run elsewhere: one step of consolidation.
    Times are seconds of the fleet's clock."""

    id: str
    reason: str
    """`solver.consolidation.model.DisruptionReason`."""
    phase: DisruptionPhase
    nodes: tuple[DisruptedNode, ...]
    created_at_seconds: float
    deadline_at_seconds: float
    """When it is undone if it is not done by then."""
    increment_id: str = ""
    """Its new nodes; empty without any."""
    moves: tuple[PodMove, ...] = ()
    """The pods of one under way; a finished one has only their number."""
    pods: int = 0
    """How many pods move."""
    saving_usd_per_hour: float = 0.0
    message: str = ""
    """Why it was undone, or how it ended."""
    new_nodes: tuple[DisruptedNode, ...] = ()
    """The nodes of its increment, once they are there."""
    moving_since_seconds: float | None = None
    """None as long as no pod was evicted for it."""
    newest_pod_seconds: int = 0
    """When the newest pod of the workloads that it moves was created, at that moment, since the epoch and by the API
    server's clock. Those that are created later are successors."""
    finished_at_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GroupState:
    """A node group with its target and its instances, in order of creation. `group.target_size` is `target_size`."""

    group: NodeGroup
    target_size: int
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """What readers see: published whole, never changed, so that no reader waits for a writer or sees half a change.

    `shown` are the ids that CA is told of; the fleet serves all of `groups`.
    """

    version: int
    groups: Mapping[str, GroupState]
    shown: tuple[str, ...]
    group_of_instance: Mapping[str, str]
    """Instance id -> node group id, of every instance that is listed."""
    increments: tuple[IncrementStatus, ...] = ()
    """Increments in flight, and the most recent finished ones."""
    limits: tuple[Limit, ...] = ()
    """Limits with `used` brought up to date."""
    held_instances: frozenset[str] = field(default_factory=frozenset)
    """Instances of increments in flight, and what failed ones still have to get rid of: their nodes keep the start-up
    taint. So does one that is not in `group_of_instance` either, which no look has found yet."""
    requested_instances: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Instances that were ordered for ProvisioningRequests, in flight or let go, and the UIDs of these."""
    in_flight_pods: frozenset[PodKey] = field(default_factory=frozenset)
    """Pods that an increment in flight is meant to serve; pods, no requests. One that is being rolled back serves
    nobody any more, so its pods are not among them and may look elsewhere at once."""
    orphans: tuple[Instance, ...] = ()
    """Instances of the backend whose node group nobody serves; they count nowhere."""
    disruptions: tuple[Disruption, ...] = ()
    """The last ones, in order of creation; at most one is under way."""

    @property
    def disruption(self) -> Disruption | None:
        """The one under way."""
        return next((each for each in self.disruptions if each.phase.under_way), None)
