"""The vocabulary of the resource slack: what is to be held in reserve, of which cluster, as which placeholders, and
where these are. Values only: how much is `slack`, where is `slack_placement`.

Source: the specification "Resource Slack" of the cluster-autoscaler (R1 to R10, S1 to S7); docs/reference/slack.md
works it through. Units are the planner's: millicores, bytes, pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from solver.model import Labels, PodSet, PodSpec, Resources, Taint

Placement = Mapping[str, Mapping[str, int]]
"""Where placeholders are: name of the shape -> name of the node -> how many. Without zeros."""


class Version(StrEnum):
    """Which of the specification's ways to turn a rate into placeholders."""

    EVEN = "1"
    """Version 1: all of them one size, `granularity` to an average node."""
    BIGGEST_PODS = "2-incomplete"
    """Version 2, incomplete idea: room for the pod with most of each resource, the rest in even parts."""
    BIGGEST = "2"
    """Version 2, more complete idea: room for a pod with the most of every resource, the rest in even parts."""


class Base(StrEnum):
    """What the rate is a rate of."""

    REQUESTED = "requested"
    """What pods request together."""
    ALLOCATABLE = "allocatable"
    """What nodes have together, as in the specification's formulas."""


@dataclass(frozen=True, slots=True)
class Copies:
    """`count` placeholders like one pod: mirrors of a workload's pods, or placeholders of a fixed size."""

    name: str
    """Unique within the target; for people, and what the placeholders are known by."""
    spec: PodSpec
    count: int = 1
    namespace: str = ""
    """Of the workload."""


@dataclass(frozen=True, slots=True)
class SlackTarget:
    """What is to be held in reserve. `rate` is a fraction (0.1 for a tenth) and the least of it: 0 asks for nothing but
    `fixed` and `mirrors`, which count towards it.

    Raises ValueError for invalid values.
    """

    name: str
    rate: float = 0.0
    version: Version = Version.BIGGEST
    base: Base = Base.REQUESTED
    granularity: int = 5
    """Placeholders for each node: the more there are, the smaller they are."""
    fixed: tuple[Copies, ...] = ()
    """Placeholders of these sizes, whatever pods there are."""
    mirrors: tuple[Copies, ...] = ()
    """Room for more of these pods: with all that their specs ask of nodes and of other pods."""
    node_selector: tuple[tuple[str, str], ...] = ()
    """Only nodes with these labels, and pods that may run there: a provisioner's, by the label that names it."""
    namespace: str = ""
    """Only pods of this namespace; empty for all."""

    def __post_init__(self) -> None:
        names = [each.name for each in (*self.fixed, *self.mirrors)]
        if not 0 <= self.rate <= 10:
            raise ValueError(f"slack {self.name}: rate {self.rate} is not between 0 and 10; write 0.1 for a tenth")
        if self.granularity < 1:
            raise ValueError(f"slack {self.name}: granularity {self.granularity} is not at least 1")
        if self.namespace and self.base is Base.ALLOCATABLE:
            raise ValueError(f"slack {self.name}: a namespace has no allocatable capacity; its base is requested")
        if any(each.count < 0 for each in (*self.fixed, *self.mirrors)):
            raise ValueError(
                f"slack {self.name}: fewer than 0 placeholders; counts of fixed sizes and mirrors are 0 or more"
            )
        if len(set(names)) < len(names):
            raise ValueError(f"slack {self.name}: fixed sizes and mirrors have unique names, found {', '.join(names)}")


@dataclass(frozen=True, slots=True)
class NodeShape:
    """Nodes that are alike. Those that a node group may open belong here too, with `count` 0 where none stands."""

    allocatable: Resources
    """Of one node: what a rate of base `allocatable` is a rate of."""
    count: int
    labels: Labels = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    """Lasting ones: not those that nodes start with and lose."""
    room: Resources = field(default_factory=dict)
    """What an empty one has beside its DaemonSets' pods, `pods` included; where empty, `allocatable` is taken."""

    @property
    def free(self) -> Resources:
        """Return what an empty one has for pods."""
        return self.room or self.allocatable


@dataclass(frozen=True, slots=True)
class PodCount:
    """`count` pods of one spec, wherever they run or wait. DaemonSets' pods are none of them: they come with nodes."""

    spec: PodSpec
    count: int
    namespace: str = ""
    """The true one; `spec.namespace` is left out where no selector sees it."""
    excluded: bool = False
    """No room is kept for the size of these (databases, say); they count towards the base all the same."""


class Role(StrEnum):
    """Why there is a placeholder."""

    MIRROR = "mirror"
    FIXED = "fixed"
    BIGGEST = "biggest"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class SlackShape:
    """Placeholders of one kind."""

    name: str
    """`target/role/…`: stays while sizes and numbers change, so that placeholders can stay where they are."""
    role: Role
    spec: PodSpec
    count: int
    why: str
    """For people."""

    def pod_set(self, count: int) -> PodSet:
        """So many of them as the planner takes placeholders."""
        return PodSet(self.name, self.spec, count, placeholder=True)


@dataclass(frozen=True, slots=True)
class SlackDemand:
    """All placeholders of a target, hardest to place first."""

    shapes: tuple[SlackShape, ...]
    warnings: tuple[str, ...] = ()
    """For people: what cannot be held, and why."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Where placeholders are after a loop, and what has changed."""

    held: Placement
    """`kept` and `placed` together: the placement before of the next loop."""
    kept: Placement
    placed: Placement
    """New there: pushed out elsewhere, or not there before."""
    pushed_out: Placement
    """Where they were before real pods took the room, or the node went."""
    removed: Placement
    """Wanted no more."""
    left: Mapping[str, int]
    """Name of the shape -> placeholders without a place: what nodes are to be opened for."""
