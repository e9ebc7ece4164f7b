"""The placeholders of the resource slack, and where each is: what their controller found last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from cagrpc.cluster.node_info import PlaceholderOwner, Reservation, Reservations
from solver.model import PodSet
from solver.slack.model import Placement, SlackDemand, SlackShape


@dataclass(frozen=True, slots=True)
class SlackState:
    """The slack at one time. Immutable; each change is published as a new one."""

    at_seconds: float
    """Since the epoch: when it changed last."""
    wanted: tuple[SlackDemand, ...] = ()
    """By target in configured order, then the mirrors that no target covers."""
    placement: Placement = field(default_factory=dict)
    """Name of the shape -> node -> placeholders on it."""
    pushed_out: Mapping[str, int] = field(default_factory=dict)
    """Name of the shape -> how many of those left over were on a node until pods preempted them."""
    left_over: Mapping[str, int] = field(default_factory=dict)
    """Name of the shape -> placeholders that fit on no existing node."""
    cost_usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    """By target: the share of their nodes' price for what its placeholders occupy."""
    warnings: tuple[str, ...] = ()
    """What cannot be held and why, one sentence each."""

    @property
    def shapes(self) -> tuple[SlackShape, ...]:
        """The shapes of all targets, hardest to place first within each."""
        return tuple(shape for wanted in self.wanted for shape in wanted.shapes)

    def pod_sets(self) -> tuple[PodSet, ...]:
        """Return all wanted placeholders as pod sets for the planner."""
        return tuple(shape.pod_set(shape.count) for shape in self.shapes if shape.count)

    def left_over_sets(self) -> tuple[PodSet, ...]:
        """Return the placeholders left over as pod sets for the planner."""
        counts = ((shape, self.left_over.get(shape.name, 0)) for shape in self.shapes)
        return tuple(shape.pod_set(count) for shape, count in counts if count)

    def reservations(self) -> Reservations:
        """Return the reservations of placeholders, by node."""
        specs = {shape.name: shape.spec for shape in self.shapes}
        found: dict[str, list[Reservation]] = {}
        for shape, by_node in self.placement.items():
            for node, count in by_node.items():
                found.setdefault(node, []).append(Reservation(PlaceholderOwner(shape), specs[shape], count))
        return found

    def by_target(self) -> Mapping[str, Counts]:
        """Return the counts by name of the target."""
        held = {name: sum(by_node.values()) for name, by_node in self.placement.items()}
        found: dict[str, Counter[str]] = {}
        for shape in self.shapes:
            counts = found.setdefault(target_of(shape.name), Counter())
            counts["wanted"] += shape.count
            for what, of in (("held", held), ("pushed_out", self.pushed_out), ("left_over", self.left_over)):
                counts[what] += of.get(shape.name, 0)
        return {
            name: Counts(**counts, cost_usd_per_hour=self.cost_usd_per_hour.get(name, 0.0))
            for name, counts in found.items()
        }


@dataclass(frozen=True, slots=True)
class Counts:
    """How many placeholders of one target there are in each state."""

    wanted: int = 0
    held: int = 0
    pushed_out: int = 0
    """Among those left over."""
    left_over: int = 0
    cost_usd_per_hour: float = 0.0


def target_of(shape: str) -> str:
    """Return the name of the target that a shape (`SlackShape.name`) belongs to."""
    return shape.partition("/")[0]


NO_SLACK = SlackState(0.0)
"""The state without any slack."""
