"""The settings of the slack in a cluster. The arithmetic is in `solver.slack`; what acts on them is in `controller` and
`carriers`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from cagrpc.cluster.exclusion import Exclusion
from cagrpc.errors import shown
from cagrpc.fleet.fields import DnsLabel, Requests, Tolerations
from cagrpc.forms import Form, NotWritten, ReadAs, Section
from cagrpc.runtime.schedules import Schedule
from solver.model import PodSpec
from solver.slack.model import Base, Copies, SlackTarget, Version

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


_Name = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
_Rate = Annotated[float, Field(ge=0, le=10)]


class Fixed(Form):
    """Placeholders of one size, whatever pods there are."""

    name: _Name
    count: Annotated[int, Field(ge=0, le=100_000)] = 1
    requests: Requests
    """What one placeholder requests: cpu, memory, and any other resource, as Kubernetes quantities."""
    tolerations: Tolerations = ()

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if "pods" in self.requests:
            raise ValueError("requests.pods: each placeholder is one pod; set how many with count")
        if not any(self.requests.values()):
            raise ValueError("requests: ask for nothing; expected an amount above 0")
        return self

    def copies(self) -> Copies:
        """Return the solver's value."""
        asked = tuple(sorted((name, amount) for name, amount in self.requests.items() if amount))
        return Copies(self.name, PodSpec(asked, tolerations=self.tolerations), self.count)


_Fixed = tuple[Annotated[Copies, ReadAs(Fixed, Fixed.copies)], ...]


@dataclass(frozen=True, slots=True)
class Window(Schedule):
    """A window that opens again and again, for peaks that are known. While it is open, its rate takes the place of the
    target's, and its fixed sizes that of those of the same name; of several open ones the most."""

    rate: _Rate | None = None
    fixed: _Fixed = ()

    def __post_init__(self) -> None:
        if self.rate is None and not self.fixed:
            raise ValueError("changes nothing; expected a rate or fixed sizes")
        _refuse_repeated("fixed", self.fixed)


@dataclass(frozen=True, slots=True)
class TargetSettings(Section):
    """What is held in reserve: a rate, fixed sizes, or both."""

    name: _Name
    rate: _Rate = 0.0
    """The least that is held, as a fraction: 0.1 is a tenth of `base`. Mirrors and fixed sizes count towards it."""
    fixed: _Fixed = ()
    version: Version = Version.BIGGEST
    """Which placeholders a rate makes. With `1` they are even parts. With `2-incomplete` there is room for the pods
    with the most of each resource, and even parts. With `2` there is room for a pod with the most of every resource,
    and even parts."""
    base: Base = Base.REQUESTED
    """What the rate is of: what pods request together, or what nodes have."""
    granularity: Annotated[int, Field(ge=1, le=100)] = 5
    """The number of placeholders for each node: the more there are, the smaller they are."""
    provisioner: str | None = None
    """The provisioner whose nodes, and the pods that may run there, count. The default is all nodes."""
    node_selector: Annotated[tuple[tuple[str, str], ...], NotWritten()] = ()
    """Labels of the provisioner's nodes; empty for all nodes."""
    namespace: DnsLabel | None = None
    """The namespace whose pods count. The default is all namespaces."""
    schedules: tuple[Window, ...] = ()

    def __post_init__(self) -> None:
        highest = max(self.rate, *(each.rate or 0.0 for each in self.schedules), 0.0)
        if not (highest or self.fixed or any(each.fixed for each in self.schedules)):
            raise ValueError("asks for nothing; expected a rate above 0, fixed sizes or schedules")
        if self.base is Base.ALLOCATABLE and self.namespace:
            raise ValueError("base: a namespace has no allocatable capacity; expected requested")
        if self.base is Base.ALLOCATABLE and highest >= 1:
            raise ValueError(
                f"rate: found {highest:g}, expected less than 1 with base: allocatable, since nodes that are opened "
                "for the slack count too, and there would be no end of it"
            )
        _refuse_repeated("fixed", self.fixed)

    def at(self, now_seconds: float, mirrors: tuple[Copies, ...] = ()) -> SlackTarget:
        """Return the target at a time (since the epoch): of several open windows the highest rate, and the largest
        count of a fixed size."""
        open_now = [each for each in self.schedules if each.open_at(now_seconds)]
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
            namespace=self.namespace or "",
        )


@dataclass(frozen=True, slots=True)
class SlackSettings(Section):
    """The resource slack: room that is held for expected pods. Without targets only marked workloads are mirrored
    (annotation slack.cagrpc.io/mirror)."""

    carrier: Carrier | None = None
    """Who makes room. With `virtual` the planner does alone (which takes `drive: plan`), with `buffer` the
    cluster-autoscaler, by CapacityBuffers, and with `pods` pause pods that give way. The default is virtual with
    `drive: plan`, otherwise buffer where the cluster serves CapacityBuffers, otherwise pods."""
    targets: tuple[TargetSettings, ...] = ()
    exclude: Exclusion = field(default_factory=Exclusion)
    mirrors_per_namespace: Annotated[int, Field(ge=0)] = 200
    """How many pods of one namespace are mirrored at most, whatever its workloads ask for by annotation."""
    pause_image: Annotated[str, Field(min_length=1)] = "registry.k8s.io/pause:3.10"
    """The image of pause pods."""

    def __post_init__(self) -> None:
        _refuse_repeated("targets", self.targets)
        if any(each.name == MIRRORS for each in self.targets):
            raise ValueError(f'targets: the name "{MIRRORS}" is that of mirrors which no target takes; choose another')


def _refuse_repeated(what: str, named: Iterable[TargetSettings | Copies]) -> None:
    repeated = [name for name, count in Counter(each.name for each in named).items() if count > 1]
    if repeated:
        raise ValueError(f"{what}: the name {shown(repeated[0])} is used twice; each needs its own")
