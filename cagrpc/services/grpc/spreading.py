"""Shares scale-ups out over node groups that are as good as each other: of one weight, for the same pods, at about the
same price. A dozen spot pools are then used together, instead of one until it has no more machines, and then the next.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from cagrpc.fleet.group_ids import GroupPattern
from cagrpc.runtime.clock import EpochClock
from cagrpc.services.grpc.gangs import OptionDemand
from solver.model import NodeGroup

if TYPE_CHECKING:  # not needed without a cluster
    from cagrpc.controllers.autoscaler import GroupSize

TOLERANCE = 0.05
"""Which part of the price of the best option another may cost more."""
_HALF_LIFE_SECONDS = 3600.0
"""Of nodes that were chosen, where the sizes of groups are not known."""
_NOT_SEEN_YET_SECONDS = 30.0
"""The same where they are: the autoscaler writes them once a loop."""
_MOST_CHOICES = 256

Shares = Sequence[tuple[GroupPattern, float]]
"""Of the groups whose ids match; the first that does counts."""


@dataclass(frozen=True, slots=True)
class _ChosenNodes:
    group: str
    nodes: int
    at_seconds: float


class Spreading:
    """Chooses among groups that are as good as each other. Thread-safe."""

    def __init__(self, shares: Shares, clock: EpochClock) -> None:
        self._shares = shares
        self._clock = clock
        self._chosen: deque[_ChosenNodes] = deque(maxlen=_MOST_CHOICES)
        self._lock = Lock()

    def chosen(self, group: str, nodes: int) -> None:
        """Note a choice."""
        with self._lock:
            self._chosen.append(_ChosenNodes(group, nodes, self._clock()))

    def peers(self, best: OptionDemand, offers: Sequence[OptionDemand], groups: Mapping[str, NodeGroup]) -> list[int]:
        """Return the positions of the options that are as good as the best one, among them its own; fewer than two
        where it is not shared out."""
        own = groups[best.option.node_group]
        most = own.price_usd_per_hour * best.option.node_count * (1 + TOLERANCE)

        def is_peer(offer: OptionDemand) -> bool:
            group = groups[offer.option.node_group]
            return (
                group.weight == own.weight
                and group.price_usd_per_hour * offer.option.node_count <= most
                and offer.wanted == best.wanted
                and self._share(group.id) > 0
            )

        return [position for position, offer in enumerate(offers) if is_peer(offer)] if self._share(own.id) else []

    def least_used(self, peers: Sequence[int], offers: Sequence[OptionDemand], sizes: Mapping[str, GroupSize]) -> int:
        """Return the peer whose group has the fewest nodes for its share; of equal ones the first."""
        now = self._clock()
        with self._lock:
            chosen = list(self._chosen)

        def used(position: int) -> float:
            group = offers[position].option.node_group
            size = sizes.get(group)
            half_life = _HALF_LIFE_SECONDS if size is None else _NOT_SEEN_YET_SECONDS
            ages = ((each.nodes, now - each.at_seconds) for each in chosen if each.group == group)
            lately = sum(nodes * math.exp2(-age / half_life) for nodes, age in ages)
            return (lately + (size.target_size if size is not None else 0)) / self._share(group)

        return min(peers, key=used)

    def _share(self, group: str) -> float:
        return next((share for pattern, share in self._shares if pattern.matches(group)), 0.0)
