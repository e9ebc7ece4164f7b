"""The vocabulary of the slack in a cluster: what can be told of it (settings), and what there is of it (state). Values
only; the arithmetic is `solver.slack`'s, what is done with them `loop`'s and the carriers'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cagrpc.cluster.exclusion import Exclusion
from cagrpc.cluster.node_info import PlaceholderOwner, Reservation, Reservations
from cagrpc.controllers.slack.schedules import Schedule
from solver.model import PodSet
from solver.slack.model import Base, Copies, Placement, SlackDemand, SlackShape, SlackTarget, Version

MIRRORS = "mirrors"
"""The target of mirrors that no configured one takes."""


class Carrier(StrEnum):
    """Who makes room for placeholders."""

    VIRTUAL = "virtual"
    """The planner alone; nothing of them is in the cluster."""
    BUFFER = "buffer"
    """The cluster-autoscaler, by CapacityBuffers of a strategy of our own: pods that live only inside it."""
    PODS = "pods"
    """Pause pods that give way, for older cluster-autoscalers."""


@dataclass(frozen=True, slots=True)
class Window:
    """While it is open, its rate takes the place of the target's, and its fixed sizes that of those of that name."""

    schedule: Schedule
    rate: float | None = None
    fixed: tuple[Copies, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """One target, as it is configured."""

    name: str
    rate: float = 0.0
    fixed: tuple[Copies, ...] = ()
    version: Version = Version.BIGGEST
    base: Base = Base.REQUESTED
    granularity: int = 5
    node_selector: tuple[tuple[str, str], ...] = ()
    """Of the provisioner's nodes; empty for all nodes."""
    namespace: str = ""
    windows: tuple[Window, ...] = ()

    def at(self, now_seconds: float, mirrors: tuple[Copies, ...] = ()) -> SlackTarget:
        """What it asks for at a time (since the epoch): of several open windows the highest rate, and the most of a
        fixed size."""
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
    carrier: Carrier | None = None
    """None: what the way of driving and the cluster offer (`virtual` where the planner drives, `buffer` where
    CapacityBuffers are served, else `pods`)."""
    targets: tuple[TargetSettings, ...] = ()
    exclude: Exclusion = field(default_factory=Exclusion)
    mirrors_per_namespace: int = 200
    """Pods."""
    pause_image: str = "registry.k8s.io/pause:3.10"
    """Of the carrier `pods`."""


@dataclass(frozen=True, slots=True)
class SlackState:
    """The slack at one time. Immutable; a new one is published where anything has changed."""

    at_seconds: float
    """Since the epoch: when it became so."""
    wanted: tuple[SlackDemand, ...] = ()
    """By target, in the order in which they are configured; that of workloads that no target takes last."""
    placement: Placement = field(default_factory=dict)
    """Where placeholders are held."""
    pushed_out: Mapping[str, int] = field(default_factory=dict)
    """Name of the shape -> how many of those left over have had a place, until real pods took it."""
    left_over: Mapping[str, int] = field(default_factory=dict)
    """Name of the shape -> placeholders that have no room on nodes that stand."""
    cost_usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    """By target: the share of their nodes' price that its placeholders take."""
    warnings: tuple[str, ...] = ()
    """For people: what cannot be held, and why."""

    @property
    def shapes(self) -> tuple[SlackShape, ...]:
        """Of all targets, hardest to place first within each."""
        return tuple(shape for wanted in self.wanted for shape in wanted.shapes)

    def pod_sets(self) -> tuple[PodSet, ...]:
        """All that is wanted, as the planner takes placeholders."""
        return tuple(shape.pod_set(shape.count) for shape in self.shapes if shape.count)

    def left_over_sets(self) -> tuple[PodSet, ...]:
        """The same of those left over."""
        counts = ((shape, self.left_over.get(shape.name, 0)) for shape in self.shapes)
        return tuple(shape.pod_set(count) for shape, count in counts if count)

    def reservations(self) -> Reservations:
        """Return room for placeholders on the nodes that they are on."""
        specs = {shape.name: shape.spec for shape in self.shapes}
        found: dict[str, list[Reservation]] = {}
        for shape, there in self.placement.items():
            for node, count in there.items():
                found.setdefault(node, []).append(Reservation(PlaceholderOwner(shape), specs[shape], count))
        return found

    def by_target(self) -> Mapping[str, Counts]:
        """For people, by name of the target."""
        held = {name: sum(there.values()) for name, there in self.placement.items()}
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
    """Placeholders of one target, in numbers."""

    wanted: int = 0
    held: int = 0
    pushed_out: int = 0
    """Among those left over."""
    left_over: int = 0
    cost_usd_per_hour: float = 0.0


def no_slack() -> SlackState:
    return _NONE


def target_of(shape: str) -> str:
    """The name of the target that a shape (`SlackShape.name`) is of."""
    return shape.partition("/")[0]


_NONE = SlackState(0.0)
