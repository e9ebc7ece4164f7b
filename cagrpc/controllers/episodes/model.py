"""An episode: from when pods begin to wait until they have nodes; what came, and what would have been planned from the
same state. Each is compared by itself: nothing is added up over episodes, since each begins with what really came.

Costs are US dollars per hour, times seconds since the epoch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from solver.model import Limit, NodeGroup, PodSet, Problem
from solver.model.money import hourly
from solver.model.quantities import pluralize

EQUAL_COST = 0.001
"""Costs that differ by no more than this fraction are the same."""
BEFORE_SECONDS = 60.0
"""How long before an episode begins the autoscaler may have seen its pods."""
_NO_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Wave:
    """Pods that were gathered at one moment of an episode."""

    at_seconds: float
    pod_sets: tuple[PodSet, ...]
    waited_seconds: float
    """How long they had waited by then, on average."""

    @property
    def pods(self) -> int:
        return sum(each.count for each in self.pod_sets)


@dataclass(frozen=True, slots=True)
class RecordedState:
    """All that the plan of an episode depends on: it can be planned again from this alone."""

    cluster: Problem
    """The cluster as it was at the first wave, without pods that wait, and with the node groups that are planned
    with."""
    waves: tuple[Wave, ...]
    """The pods, as they came."""


@dataclass(frozen=True, slots=True)
class GroupNodes:
    """New nodes of one group."""

    node_group: str
    """Of nodes that are of no group that is known, their instance type."""
    count: int
    usd_per_hour: float
    """Of all of them."""
    weight: int = 0
    estimated: bool = False
    """Whether no price of theirs is known: it is by the price rule."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What pods got, in truth or by the plan."""

    nodes: tuple[GroupNodes, ...]
    unserved: int
    """Pods that had no node in the end."""
    waited_seconds: float | None
    """From a pod's creation until it had a node, on average over those that got one; None where it is not known."""

    @property
    def usd_per_hour(self) -> float:
        """The cost of the new nodes."""
        return math.fsum(each.usd_per_hour for each in self.nodes)

    @property
    def node_count(self) -> int:
        return sum(each.count for each in self.nodes)

    @property
    def usd_per_hour_by_weight(self) -> Mapping[int, float]:
        """The cost of each weight, the highest weight first."""
        found: Counter[int] = Counter()
        for each in self.nodes:
            found[each.weight] += each.usd_per_hour  # type: ignore[assignment] # Counters have no type for fractions
        return dict(sorted(found.items(), reverse=True))


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """An increase that the cluster-autoscaler has told of, or would have been chosen."""

    at_seconds: float
    node_group: str
    nodes: int


class Ended(StrEnum):
    """Why an episode ended."""

    SERVED = "every pod has a node"
    QUIET = "nothing came any more"
    LONG = "it lasted long enough"


class Better(StrEnum):
    """Which of the two is better: who leaves fewer pods without a node, then who costs less."""

    AUTOSCALER = "autoscaler"
    PLAN = "plan"
    EQUAL = "equal"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode that has ended."""

    id: str
    opened_at_seconds: float
    closed_at_seconds: float
    ended: Ended
    pods: int
    waves: int
    """In how many waves the pods came."""
    came: Outcome
    planned: Outcome | None = None
    """None where nothing could be planned."""
    least_usd_per_hour: float | None = None
    """What is proven of the plan's cost: no plan that serves as much costs less. None where nothing is, and of several
    waves."""
    scale_ups: tuple[ScaleUp, ...] = ()
    """What the autoscaler has said in its Events."""
    choices: tuple[ScaleUp, ...] = ()
    """What would have been chosen of what it asked about."""
    targets: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Target sizes before and after, by the autoscaler's status: of groups whose target changed."""
    unknown: tuple[str, ...] = ()
    """What is not known, or has to be said beside the figures."""
    node_seconds: float | None = None
    """How long a node took from its order until it was Ready; None where it is not known."""

    @property
    def better(self) -> Better:
        if self.planned is None:
            return Better.UNKNOWN
        if self.came.unserved != self.planned.unserved:
            return Better.AUTOSCALER if self.came.unserved < self.planned.unserved else Better.PLAN
        came, planned = self.came.usd_per_hour, self.planned.usd_per_hour
        if abs(came - planned) <= EQUAL_COST * max(came, planned):
            return Better.EQUAL
        return Better.AUTOSCALER if came < planned else Better.PLAN

    @property
    def saving_usd_per_hour(self) -> float | None:
        """What the plan would have cost less, negative where it would have cost more; None where the two do not leave
        as many pods without a node, or nothing was planned."""
        if self.planned is None or self.came.unserved != self.planned.unserved:
            return None
        return self.came.usd_per_hour - self.planned.usd_per_hour


@dataclass(frozen=True, slots=True)
class KnownGroups:
    """The node groups that there are to plan with, as far as they are known."""

    groups: Sequence[NodeGroup] = ()
    estimated: frozenset[str] = frozenset()
    """Those without a price that is known."""
    limits: Sequence[Limit] = ()
    choices: Sequence[ScaleUp] = ()
    """What would have been chosen lately."""
    unknown: tuple[str, ...] = ()
    """What is not known of them, for people."""


def sentences(episode: Episode) -> tuple[str, ...]:
    """Return what there is to say of the difference: first where the autoscaler was better, then where the plan would
    have been, then what is the same, then what is not known."""
    planned = episode.planned
    if planned is None:
        return ("nothing could be compared", *episode.unknown)
    better: dict[Better, list[str]] = {each: [] for each in Better}
    came = episode.came

    def compare(mine: float, other: float, tolerance: float, words: str, same: str) -> None:
        if abs(mine - other) <= tolerance:
            better[Better.EQUAL].append(same)
        else:
            better[Better.AUTOSCALER if mine < other else Better.PLAN].append(words)

    left = came.unserved, planned.unserved
    compare(*left, 0, f"{_left(left[0])}, the plan {_left(left[1])}", f"both {_left(left[0])}")
    cost = came.usd_per_hour, planned.usd_per_hour
    words = f"{hourly(cost[0])} for the nodes that came, {hourly(cost[1])} by the plan"
    compare(*cost, EQUAL_COST * max(cost), words, f"both cost {hourly(cost[0])}")
    nodes = came.node_count, planned.node_count
    compare(
        *nodes,
        0,
        f"{pluralize(nodes[0], 'node')} came, {nodes[1]:,} by the plan",
        f"both have {pluralize(nodes[0], 'node')}",
    )
    if came.waited_seconds is not None and planned.waited_seconds is not None:
        waited = came.waited_seconds, planned.waited_seconds
        words = f"pods waited {waited[0]:.0f} s on average, {waited[1]:.0f} s by the plan"
        compare(*waited, _NO_SECONDS, words, f"pods wait {waited[0]:.0f} s with both")
    found = [f"the autoscaler was better: {each}" for each in better[Better.AUTOSCALER]]
    found += [f"the plan would have been better: {each}" for each in better[Better.PLAN]]
    found += [f"the same: {each}" for each in better[Better.EQUAL]]
    if len({*came.usd_per_hour_by_weight, *planned.usd_per_hour_by_weight}) > 1:
        found.append(f"by weight: {_weights(came)} came, {_weights(planned)} by the plan")
    return (*found, *(f"not known: {each}" for each in episode.unknown))


def _left(pods: int) -> str:
    return f"left {pluralize(pods, 'pod')} without a node" if pods else "left no pod without a node"


def _weights(of: Outcome) -> str:
    return ", ".join(f"{weight}: {hourly(cost)}" for weight, cost in of.usd_per_hour_by_weight.items()) or "nothing"
