"""The values of the slack in a cluster: its settings and its state. The arithmetic is in `solver.slack`; what acts on
them is in `controller` and `carriers`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cagrpc.cluster.exclusion import Exclusion
from cagrpc.cluster.node_info import PlaceholderOwner, Reservation, Reservations
from cagrpc.runtime.schedules import Schedule
from solver.model import PodSet
from solver.slack.model import Base, Copies, Placement, SlackDemand, SlackShape, SlackTarget, Version

MIRRORS = "mirrors"
"""The target of mirrors that no configured target covers."""


class Carrier(StrEnum):
    """How capacity for placeholders is provided."""

    VIRTUAL = "virtual"
    """By the planner alone; there are no objects in the cluster."""
    BUFFER = "buffer"
    """By the cluster-autoscaler, from CapacityBuffers with our provisioning strategy: it only simulates the pods."""
    PODS = "pods"
    """By pause pods of low priority, for older cluster-autoscalers."""


@dataclass(frozen=True, slots=True)
class Window:
    """While it is open, its rate replaces the target's, and its fixed sizes replace those of the same name."""

    schedule: Schedule
    rate: float | None = None
    fixed: tuple[Copies, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """One target as configured."""

    name: str
    rate: float = 0.0
    fixed: tuple[Copies, ...] = ()
    version: Version = Version.BIGGEST
    base: Base = Base.REQUESTED
    granularity: int = 5
    node_selector: tuple[tuple[str, str], ...] = ()
    """Labels of the provisioner's nodes; empty for all nodes."""
    namespace: str = ""
    windows: tuple[Window, ...] = ()

    def at(self, now_seconds: float, mirrors: tuple[Copies, ...] = ()) -> SlackTarget:
        """Return the target at a time (since the epoch): of several open windows the highest rate, and the largest
        count of a fixed size."""
        open_now = [each for each in self.windows if each.schedule.open_at(now_seconds)]
        rates = [each.rate for each in open_now if each.rate is not None]
        fixed = {each.name: each for each in self.fixed}
        by_window: dict[str, Copies] = {}
        for copies in (copies for window in open_now for copies in window.fixed):
            known = by_window.get(copies.name)
            by_window[copies.name] = copies if known is None else max(known, copies, key=lambda each: each.count)
        return SlackTarget(
            name=self.name,
            rate=max(rates, default=self.rate),
            version=self.version,
            base=self.base,
            granularity=self.granularity,
            fixed=tuple({**fixed, **by_window}.values()),
            mirrors=mirrors,
            node_selector=self.node_selector,
            namespace=self.namespace,
        )


@dataclass(frozen=True, slots=True)
class SlackSettings:
    """The slack as configured."""

    carrier: Carrier | None = None
    """None for the default: `virtual` where the planner drives, `buffer` where the cluster serves CapacityBuffers, else
    `pods`."""
    targets: tuple[TargetSettings, ...] = ()
    exclude: Exclusion = field(default_factory=Exclusion)
    mirrors_per_namespace: int = 200
    """Pods."""
    pause_image: str = "registry.k8s.io/pause:3.10"
    """Image of the pause pods."""


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


def no_slack() -> SlackState:
    """Return the state without any slack."""
    return _NONE


def target_of(shape: str) -> str:
    """Return the name of the target that a shape (`SlackShape.name`) belongs to."""
    return shape.partition("/")[0]


_NONE = SlackState(0.0)
