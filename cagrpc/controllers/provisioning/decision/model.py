"""What requests are decided in, and what is decided: plain values. `planning` makes the decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from solver.model import Limit, Node, NodeGroup, PodSpec, Resources


@dataclass(frozen=True, slots=True)
class Scenario:
    """Where there is room, and where room can be made."""

    nodes: tuple[Node, ...] = ()
    """With what is free on them, less what is kept for other requests and for pods that are planned already. They have
    their booking labels."""
    groups: tuple[NodeGroup, ...] = ()
    """All that may grow, with their target sizes, and labels as their Nodes will have them."""
    limits: tuple[Limit, ...] = ()
    daemon_sets: tuple[PodSpec, ...] = ()
    short: frozenset[str] = frozenset()
    """Ids of groups that are left out for now, after a shortage."""
    foreign: frozenset[str] = frozenset()
    """Names of nodes that belong to no node group: they are there whatever is asked of the groups."""
    returning: Mapping[str, Resources] | None = None
    """By node, what requests have there that will be free again: kept for them, or taken by their consumers. None
    where it is not known: then everything is taken to be free one day."""
    coming: Mapping[str, int] = field(default_factory=dict)
    """Node group -> new nodes on their way for other requests. They count as full, and will be given back, too."""


@dataclass(frozen=True, slots=True)
class RequestPart:
    """New nodes that must come together, as one increment: no other part has a request in common with it."""

    uids: tuple[str, ...]
    """Requests, in the order in which they are served."""
    deltas: Mapping[str, int]
    """Node group -> new nodes."""
    placements: tuple[tuple[str, tuple[str, ...]], ...]
    """Of each new node the group, and the requests that have pods there."""
    cost_usd_per_hour: float
    lower_bound_usd_per_hour: float
    """No other nodes beside those of the other parts serve these requests for less."""
    gap: float
    """(cost - lower bound) / cost."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """What becomes of candidates. Each is in one of `served`, `left` and `infeasible`, but for those that were too many
    to be looked at."""

    parts: tuple[RequestPart, ...] = ()
    on_nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of requests that are served, the nodes that stand and hold some of their pods; sorted."""
    served: frozenset[str] = frozenset()
    left: Mapping[str, str] = field(default_factory=dict)
    """Why not now, in a sentence, and what would help."""
    overtaken: frozenset[str] = frozenset()
    """Of those left: ones that could have been served in the end had younger ones, served now, been held back."""
    infeasible: Mapping[str, str] = field(default_factory=dict)
    """Why never, even with all node groups empty and no limit used."""
    kept_for: tuple[str, ...] = ()
    """Keys of requests that were overtaken too often: what they need was kept from others."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Whether there is room for a request now."""

    fits: bool
    message: str
    """`16 of 16 pods fit`, or `12 of 16 pods fit: cpu short by 14 in zone b`."""
    nodes: tuple[str, ...] = ()
    """That hold its pods where all fit; sorted."""
