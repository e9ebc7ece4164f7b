"""A plan: which groups open how many nodes, where every pod goes, and how good that is proven to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from solver.model.objective import Goal, StageValue
from solver.model.objects import PodSpec
from solver.model.proof import gap, proven


class Status(StrEnum):
    OPTIMAL = "optimal"
    """What is served, the preferences kept and the cost are proven best (the number of nodes and change only break
    ties)."""
    FEASIBLE = "feasible"
    """A plan with an honest gap."""
    INFEASIBLE = "infeasible"
    """There are pods, and it is proven that none can be placed."""


@dataclass(frozen=True, slots=True)
class NodeGroupIncrease:
    """`delta` new nodes of one group; a plan's increments are applied all or nothing."""

    node_group: str
    delta: int


@dataclass(frozen=True, slots=True)
class PlannedNodes:
    """`count` new nodes of a group, each with the same pods: class index -> pods per node."""

    node_group: str
    count: int
    pods: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class PlacedOnNode:
    """Pods planned onto a node that stands already: class index -> pods."""

    node: str
    pods: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class PodClass:
    """Pods that no plan distinguishes. `index` is what plans refer to."""

    index: int
    spec: PodSpec
    count: int
    example: str
    priority: int = 0
    gang: str | None = None
    placeholder: bool = False


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Pods of a class that the plan does not serve, with the reasons, most telling first."""

    pod_class: int
    count: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Relaxed:
    """Pods of a class that are served without some of their preferences."""

    pod_class: int
    count: int
    preferences: tuple[str, ...]
    """What was given up, for people: one text per preference, in the order of `docs/reference/constraints.md`."""
    reason: str = ""
    """Why, where that is no part of what was planned."""


@dataclass(frozen=True, slots=True)
class TierCost:
    """The cost of new nodes in one tier, and a lower bound on it among all plans that serve as much and cost as
    much in the tiers below."""

    weight: int
    cost_usd_per_hour: float
    lower_bound_usd_per_hour: float

    @property
    def least_usd_per_hour(self) -> float | None:
        """The lower bound; None where nothing is proven yet."""
        return proven(self.cost_usd_per_hour, self.lower_bound_usd_per_hour)


@dataclass(frozen=True, slots=True)
class Certificate:
    """How good the plan is, and how that is known."""

    status: Status
    cost_usd_per_hour: float
    lower_bound_usd_per_hour: float
    """No plan that serves as much costs less; 0 also where nothing is proven."""
    tiers: tuple[TierCost, ...]
    price_of_priority_usd_per_hour: float
    """Cost minus the cost of serving the same pods with all weights equal."""
    unserved_unproven: int = 0
    """Pods, and placeholders, that are left out though nothing proves that they have to be."""

    @property
    def least_usd_per_hour(self) -> float | None:
        """The lower bound, for whoever shows it; None where there is none worth showing: nothing is proven yet, or
        there is no cost because pods are left out that need not be."""
        if self.unserved_unproven and not self.lower_bound_usd_per_hour:
            return None
        return proven(self.cost_usd_per_hour, self.lower_bound_usd_per_hour)

    @property
    def gap(self) -> float | None:
        """(cost - lower bound) / cost, a fraction. None where that would say too much: no bound is proven yet, or a
        plan that serves more is not ruled out, which may cost more."""
        return None if self.unserved_unproven else gap(self.cost_usd_per_hour, self.lower_bound_usd_per_hour)


@dataclass(frozen=True, slots=True)
class Plan:
    pod_classes: tuple[PodClass, ...]
    increments: tuple[NodeGroupIncrease, ...]
    nodes: tuple[PlannedNodes, ...]
    existing: tuple[PlacedOnNode, ...]
    unplaced: tuple[Unplaced, ...]
    certificate: Certificate
    elapsed_seconds: float
    objective: tuple[StageValue, ...] = ()
    """What is minimised, the most important stage first, with what is proven of each."""
    relaxed: tuple[Relaxed, ...] = ()
    candidates: tuple[PlannedNodes, ...] = field(default=(), repr=False, compare=False)
    """Other ways to fill nodes that were worth considering; their counts mean nothing. With them, planning on from this
    plan (`Problem.previous`) starts where this one ended."""

    @property
    def vector(self) -> tuple[float, ...]:
        """The values of the objective's stages: of two plans of one problem, the smaller vector is the better plan."""
        return tuple(each.value for each in self.objective)

    @property
    def proves_some_unservable(self) -> bool:
        """Whether it is proven that no plan serves all real pods of the highest priority."""
        return any(each.stage.goal is Goal.UNSERVED and each.lower_bound > 0 for each in self.objective[:1])
