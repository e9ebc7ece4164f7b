"""What ranking compares, and what it answers: single scale-ups, each with the objective of the whole after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
