"""The question and the answer of consolidation, as plain values; what is invalid is refused, every fault at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from solver.model import Budget, Limit, Node, NodeGroup, Plan, PodSet, PodSpec, Problem, Taint, TaintEffect, TierCost
from solver.model.errors import ProblemError
from solver.model.validation import MAX_COUNT, validate


class DisruptionReason(StrEnum):
    """Why nodes go, in Karpenter's words where it has them."""

    EMPTY = "Empty"
    """Nothing on them has to move."""
    UNDERUTILIZED = "Underutilized"
    """Their pods run elsewhere for less."""
    BETTER_WEIGHT = "BetterWeight"
    """Their pods run on nodes of a higher weight, which may cost more."""
    INTERRUPTED = "Interrupted"
    """The cloud takes them soon."""
    UNHEALTHY = "Unhealthy"
    """They have gone bad."""


FORCEFUL = frozenset({DisruptionReason.INTERRUPTED, DisruptionReason.UNHEALTHY})
"""Reasons for which nodes go whatever becomes of the plan (Karpenter's forceful disruption): windows do not hold for
them, and pauses for other nodes do not."""


@dataclass(frozen=True, slots=True)
class StandingNode:
    """A node that stands, with what runs on it."""

    node: Node
    """With what its pods leave free; `running` are all of its pods that constraints between pods see, those that would
    move among them."""
    node_group: str = ""
    """Whose price, weight and capacity it has; empty for a node of nobody's, which takes pods and never goes."""
    pods: tuple[PodSet, ...] = ()
    """The pods that move when it goes, placeholders of the slack among them. Pods of one gang, on whatever nodes, move
    together or not at all."""
    kept: str = ""
    """Why it has to stay, for people; empty where it may go. Its pods stay too."""
    takes_pods: bool = True
    """Whether pods may move there; false of one that is cordoned, not Ready, or that has to go."""
    must_go: DisruptionReason | None = None
    """Why it is replaced whatever that costs (INTERRUPTED, UNHEALTHY); None where cost decides."""
    spare: bool = False
    """Whether it stays empty for pods of gangs in its domain whose nodes must go. It goes with its domain only."""


@dataclass(frozen=True, slots=True)
class ConsolidationProblem:
    """Everything that a consolidation plan depends on."""

    nodes: tuple[StandingNode, ...]
    node_groups: tuple[NodeGroup, ...]
    """`target_size` counts the nodes that stand or are coming, `min_size` holds for what is left."""
    limits: tuple[Limit, ...] = ()
    """`used` counts what stands. New nodes come before old ones go, so both count at once."""
    daemon_sets: tuple[PodSpec, ...] = ()
    least_saving_usd_per_hour_per_pod: float = 0.0
    """A step that moves pods saves at least so much for each of them, or is none; nodes that must go and pods that go
    to a better weight are moved all the same."""
    most_nodes_per_step: int = 50
    """How many nodes a step takes away at most; one that gangs tie together may be larger."""

    def with_hard_taints_only(self) -> ConsolidationProblem:
        """Return the same without taints of `PreferNoSchedule`, which prevent no move: the cluster-autoscaler has them
        on nodes that it may take one day (DeletionCandidateOfClusterAutoscaler)."""
        if not any(taint.effect is TaintEffect.PREFER_NO_SCHEDULE for taint in self._taints()):
            return self
        nodes = (replace(each, node=replace(each.node, taints=_hard(each.node.taints))) for each in self.nodes)
        groups = (replace(each, taints=_hard(each.taints)) for each in self.node_groups)
        return replace(self, nodes=tuple(nodes), node_groups=tuple(groups))

    def _taints(self) -> Iterable[Taint]:
        yield from (taint for each in self.nodes for taint in each.node.taints)
        yield from (taint for each in self.node_groups for taint in each.taints)


def _hard(taints: tuple[Taint, ...]) -> tuple[Taint, ...]:
    return tuple(taint for taint in taints if taint.effect is not TaintEffect.PREFER_NO_SCHEDULE)


@dataclass(frozen=True, slots=True)
class ConsolidationStep:
    """Nodes to take away together, after the new ones are there: of use by itself, whatever becomes of later steps."""

    reason: DisruptionReason
    nodes: tuple[str, ...]
    """Names of the nodes that go."""
    plan: Plan
    """Where their pods go, and those of gangs that move with them: its increments are the new nodes. All pods have a
    place. Nodes that steps before this one opened are called `<node group>/step-<index of the step>-<number>` there."""
    saving_usd_per_hour: float
    """Negative where nodes of a better weight, or in place of ones that must go, cost more."""

    @property
    def pods_moved(self) -> int:
        """Return how many pods are evicted: all but placeholders."""
        return sum(each.count for each in self.plan.pod_classes if not each.placeholder)


@dataclass(frozen=True, slots=True)
class ConsolidationPlan:
    """Steps in their order, each on what the ones before leave. Costs are US dollars per hour, of the nodes of node
    groups."""

    steps: tuple[ConsolidationStep, ...]
    """Those that must go first, then empty nodes, then small and sure steps before large ones."""
    cost_before_usd_per_hour: float
    cost_after_usd_per_hour: float
    least_usd_per_hour: float
    """Proven: no consolidation that moves only what may be moved leaves less, whatever weights say, nor, where there
    are several, one after which no lower weight costs more than after this one."""
    least_if_all_moved_usd_per_hour: float
    """Proven: none leaves less if all that is kept could be moved too, but nodes of nobody's. The difference is what
    the constraints on moving cost."""
    stays: Mapping[str, str] = field(default_factory=dict)
    """By node that stays though it costs more than its pods are worth: why, for people."""
    elapsed_seconds: float = 0.0
    tiers: tuple[TierCost, ...] = ()
    """What the nodes of each weight cost after the steps, the highest first, and the least that they cost in any
    consolidation after which those of lower weights cost no more than they do here."""

    @property
    def saving_usd_per_hour(self) -> float:
        return self.cost_before_usd_per_hour - self.cost_after_usd_per_hour

    @property
    def proven_saving_usd_per_hour(self) -> float:
        """Return the most that any consolidation could save."""
        return self.cost_before_usd_per_hour - self.least_usd_per_hour


def validate_consolidation(problem: ConsolidationProblem, budget: Budget | None = None) -> None:
    """Raises `ProblemError` with every fault, of the budget too where one is given."""
    faults: list[str] = []
    sets: dict[tuple[int, int, str | None, bool], PodSet] = {}
    for standing in problem.nodes:
        for each in standing.pods:
            faults.extend(_count(standing, each))
            sets.setdefault((id(each.spec), each.priority, each.gang, each.placeholder), each)
    nodes = tuple(standing.node for standing in problem.nodes)
    try:
        validate(Problem(tuple(sets.values()), problem.node_groups, nodes, problem.limits, problem.daemon_sets), budget)
    except ProblemError as error:
        faults.extend(error.problems)
    groups = {group.id for group in problem.node_groups}
    for standing in problem.nodes:
        faults.extend(_standing(standing, groups))
    least = problem.least_saving_usd_per_hour_per_pod
    if not (math.isfinite(least) and least >= 0):
        faults.append(f"least saving per pod: {least} $/h is not a finite number from 0 up")
    most = problem.most_nodes_per_step
    if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= MAX_COUNT:
        faults.append(f"nodes per step: at most {most!r} is not a whole number between 1 and {MAX_COUNT}")
    if faults:
        raise ProblemError(faults)


def _count(standing: StandingNode, pods: PodSet) -> Iterator[str]:
    if not 0 <= pods.count <= MAX_COUNT:
        yield f"node {standing.node.name}: pod set {pods.name}: count {pods.count} is not between 0 and {MAX_COUNT}"


def _standing(standing: StandingNode, groups: set[str]) -> Iterator[str]:
    place = f"node {standing.node.name}"
    if standing.node_group and standing.node_group not in groups:
        yield f"{place}: node group {standing.node_group} is not among the problem's"
    if standing.must_go is not None and standing.must_go not in FORCEFUL:
        known = " or ".join(sorted(FORCEFUL))
        yield f"{place}: must go because {standing.must_go}, which is decided by cost; expected {known}"
    if standing.must_go is not None and not standing.node_group:
        yield f"{place}: must go, but is of no node group; name the group that replaces it"
