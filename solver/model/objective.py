"""The stages of the lexicographic objective, by name. `solver.reduction.objective` orders and computes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Goal(StrEnum):
    UNSERVED = "unserved"
    """Real pods of one priority without a place."""
    WAITING = "waiting"
    """Seconds that these have waited together."""
    PLACEHOLDERS = "placeholders"
    """Placeholders without a place."""
    PREFERENCES = "preferences"
    """Preferences given up, over all pods."""
    SPREAD = "spread"
    """Topology domains that pods are in beyond the first, of those that prefer to be in one (`PreferredDomain`)."""
    COST = "cost"
    """Of new nodes of one weight, $/h."""
    SPREAD_AFTER_COST = "spread after cost"
    """The same of those that prefer it only where it costs nothing."""
    DOMAINS = "domains"
    """Domains without a node that gangs begin which ask for one domain each: what is left whole for larger ones."""
    NODES = "nodes"
    """New nodes."""
    CHANGE = "change"
    """Nodes more or fewer than in the previous plan, over all groups."""


@dataclass(frozen=True, slots=True)
class ObjectiveStage:
    """`key` is the priority of UNSERVED and WAITING, the weight of COST, else 0."""

    goal: Goal
    key: int = 0

    def __str__(self) -> str:
        match self.goal:
            case Goal.UNSERVED | Goal.WAITING:
                return f"{self.goal} at priority {self.key}"
            case Goal.COST:
                return f"cost of weight {self.key}"
            case _:
                return str(self.goal)

    def node_cost(self, price_micros: int, weight: int) -> int:
        """Return what one new node counts in the stage: millionths of $/h, or nodes."""
        match self.goal:
            case Goal.COST:
                return price_micros if weight == self.key else 0
            case Goal.NODES:
                return 1
            case _:
                return 0


@dataclass(frozen=True, slots=True)
class StageValue:
    """What a plan reaches in one stage; smaller is better. No plan that is as good in the stages before has less than
    `lower_bound`."""

    stage: ObjectiveStage
    value: float
    lower_bound: float
