"""The planner's question and its answer: a problem, and a plan, which says which groups open how many nodes, where
every pod goes, and how good that is proven to be. Beside them what is compared by ranking (single scale-ups, each with
the objective of the whole after it), and how far planning is, for whoever waits for a plan.

What is proven of a cost is shown by everybody as it is here, as numbers and as words. A bound that is merely not proven
yet is none, and never shown as zero; nor is a gap, where pods are left out, without those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from solver.model.money import hourly
from solver.model.objective import Goal, StageValue
from solver.model.objects import Limit, Node, NodeGroup, PodSet, PodSpec, PossibleGroups
from solver.model.quantities import pluralize

_SHOWN_AS_NONE = 0.00005


def proven(cost: float, lower_bound: float) -> float | None:
    """Return the bound; None where there is a cost, and no bound on it yet."""
    return None if cost and not lower_bound else lower_bound


def gap(cost: float, lower_bound: float) -> float | None:
    """Return the part of the cost that is not proven to be necessary, 0 where nothing costs anything; None where no
    bound is proven yet."""
    if not cost:
        return 0.0
    return (cost - lower_bound) / cost if lower_bound else None


def gap_words(found: float | None, unserved: int) -> str:
    """Return a gap for people, of a plan that leaves so many pods out."""
    if found is None:
        return "not proven"
    if not unserved:
        return f"{found:.2%}"
    return f"{'none' if found < _SHOWN_AS_NONE else f'{found:.2%}'} for those served"


def proof_words(no_plan: str, least: str | None, found: float | None, unserved: int, unserved_unproven: int) -> str:
    """Return what is proven of a plan: that `no_plan` ("no plan that serves as much") costs less than `least`, which is
    None where nothing is proven; with the gap, of a plan that leaves so many pods out, and how many of them nothing
    proves to be left out in any plan."""
    gap_known = "" if found is None else f" (gap {gap_words(found, unserved)})"
    words = "no bound on the cost is proven yet" if least is None else f"{no_plan} costs less than {least}{gap_known}"
    if least is not None and found is not None and found < _SHOWN_AS_NONE:
        words = f"{no_plan} costs less"
    if unserved_unproven:
        words += f"; leaving out {pluralize(unserved_unproven, 'pod')} is not proven to be necessary"
    return words


def at_least_words(least_usd_per_hour: float | None) -> str:
    """Return a bound for people."""
    return "not proven" if least_usd_per_hour is None else hourly(least_usd_per_hour)


class Status(StrEnum):
    OPTIMAL = "optimal"
    """What is served, the preferences kept and the cost are proven best (the number of nodes and change only break
    ties), and no order of binding was found in which a planned pod gets stuck."""
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
    domain: str = ""
    """Which domain of their own (`NodeGroup.new_domain_keys`): all nodes of the group with this one share it, and it
    is another one than any other's. Empty where no pod of theirs asks for one."""


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

    @property
    def unit(self) -> int | str:
        """What is placed whole or not at all: its gang, or else the class itself."""
        return self.index if self.gang is None else self.gang


ClassKey = tuple[PodSpec, int, str | None, bool]
"""What pods of one class have in common: spec, priority, gang, and whether they are placeholders."""


def class_key(pods: PodSet | PodClass) -> ClassKey:
    """Return the key of the class that these pods belong to."""
    return pods.spec, pods.priority, pods.gang, pods.placeholder


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
class MayGetStuck:
    """Pods of a class that have a place, and that are left without a node if the scheduler binds others first."""

    pod_class: int
    count: int
    reason: str


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
    may_get_stuck: tuple[MayGetStuck, ...] = ()
    """Found in some orders of binding; empty where there are none, or where the plan is too large to look for them."""
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


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything a plan depends on."""

    pod_sets: tuple[PodSet, ...]
    node_groups: tuple[NodeGroup, ...] = ()
    nodes: tuple[Node, ...] = ()
    limits: tuple[Limit, ...] = ()
    daemon_sets: tuple[PodSpec, ...] = ()
    """Pods that every new node they are eligible for runs one of; their requests are not available to others."""
    previous: Plan | None = None
    """The plan before, not yet applied: planning starts from it, and of plans that are equally good the one that
    changes least is taken (disruption, the last objective)."""
    possible: tuple[PossibleGroups, ...] = ()
    """Node groups that could be there. No plan depends on them, only what is said of pods that it does not serve."""


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """The best plan so far, before it is checked, and what is proven of all plans."""

    unserved: int
    """Pods without a place."""
    cost_usd_per_hour: float
    lower_bound_usd_per_hour: float
    """No plan that serves as much costs less; 0 as long as nothing is proven."""

    @property
    def gap(self) -> float | None:
        """The relative gap, as in a certificate: None as long as pods have no place, or nothing is proven."""
        return None if self.unserved else gap(self.cost_usd_per_hour, self.lower_bound_usd_per_hour)


TellProgress = Callable[[PlanProgress], None]
"""Called from whichever thread of the planner has found something; what it does is no part of the plan."""


@dataclass(frozen=True, slots=True)
class ScaleUpCandidate:
    """`node_count` new nodes of one group for some of the pods: index of `Problem.pod_sets` -> pods."""

    node_group: str
    node_count: int
    pod_counts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Score:
    """The objective of the whole when a candidate is taken first. Smaller vectors are better."""

    candidate: ScaleUpCandidate
    vector: tuple[float, ...]
    """The objective's stages, most important first, candidate included; costs in $/h."""
    cost_usd_per_hour: float
    """Of the candidate's own nodes."""
    rest_cost_usd_per_hour: float
    """Of serving the pods it leaves."""
    unserved: int
    """Real pods that then cannot be served at all."""
    reason: str

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key, best first: the vector, then more pods at once, then the id, so that the order is total."""
        return (*self.vector, -sum(self.candidate.pod_counts.values()), self.candidate.node_group)
