"""Plain values: the scenario that requests are decided in, and the decisions. `planning` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cagrpc.cluster.shortages import Shortage
from solver.model import Limit, Node, NodeGroup, PodSpec, Resources


@dataclass(frozen=True, slots=True)
class Scenario:
    """Where there is room, and where room can be made."""

    nodes: tuple[Node, ...] = ()
    """With what is free on them, less what is reserved for other requests and planned pods. They have their booking
    labels."""
    groups: tuple[NodeGroup, ...] = ()
    """All that may grow, with their target sizes, and labels as their Nodes will have them."""
    limits: tuple[Limit, ...] = ()
    daemon_sets: tuple[PodSpec, ...] = ()
    short: Mapping[str, Shortage] = field(default_factory=dict)
    """The groups that are left out for now, by id, and why."""
    foreign: frozenset[str] = frozenset()
    """Names of nodes that belong to no node group: they exist whatever the sizes of groups."""
    returning: Mapping[str, Resources] | None = None
    """By node, what requests have there that will be free again: reserved for them, or used by their consumers. None
    where it is unknown: then everything counts as free one day."""
    coming: Mapping[str, int] = field(default_factory=dict)
    """Node group -> nodes in flight for other requests. They count as full, and will be free again, too."""


@dataclass(frozen=True, slots=True)
class RequestPart:
    """New nodes of one increment: no other part has a request in common with it."""

    uids: tuple[str, ...]
    """Requests, in the order in which they are served."""
    deltas: Mapping[str, int]
    """Node group -> new nodes."""
    placements: tuple[tuple[str, tuple[str, ...]], ...]
    """The group of each new node, and the requests with pods there."""
    cost_usd_per_hour: float
    lower_bound_usd_per_hour: float
    """No other nodes beside those of the other parts serve these requests for less."""
    gap: float | None
    """(cost - lower bound) / cost; None where nothing is proven."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions about candidates. Each is in one of `served`, `left` and `infeasible`, except those that there was
    no time for."""

    parts: tuple[RequestPart, ...] = ()
    on_nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of requests that are served, the existing nodes that some of their pods go to; sorted."""
    served: frozenset[str] = frozenset()
    left: Mapping[str, str] = field(default_factory=dict)
    """Why not now, in a sentence, and what would help."""
    until: Mapping[str, float] = field(default_factory=dict)
    """Of those left, the ones that nothing could be tried for: with the offerings that are left out after a shortage
    they would be served; and when the first of these is tried again, in seconds since the epoch."""
    overtaken: frozenset[str] = frozenset()
    """Of those left, the bypassed: they could be served one day if younger ones, served now, were not."""
    infeasible: Mapping[str, str] = field(default_factory=dict)
    """Why they can never be served, even with all node groups empty and no limit used."""
    kept_for: tuple[str, ...] = ()
    """Keys of requests that were bypassed too often: what they need is reserved for them."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Whether there is room for a request now."""

    fits: bool
    message: str
    """`16 of 16 pods fit`, or `12 of 16 pods fit: cpu short by 14 in zone b`."""
    nodes: tuple[str, ...] = ()
    """The nodes of its pods where all fit; sorted."""
