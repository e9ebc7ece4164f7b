"""The new nodes of a disruption, from the order to the moment in which pods may go there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cagrpc.controllers.assume_cache.placements import Placements
from cagrpc.fleet.model import DisruptedNode, Disruption, IncrementStatus, Phase, SnapshotSource
from cagrpc.runtime.clock import MonotonicClock
from cagrpc.runtime.progress import DEADLINE_SECONDS, Turn


class NodeNames(Protocol):
    """The part of `cagrpc.cluster.view.view.ClusterView` that is needed here."""

    def node_names(self) -> Mapping[str, str]:
        """Return provider ids and names of all nodes."""
        ...


@dataclass(frozen=True, slots=True)
class Coming:
    """What has become of them."""

    lost: str = ""
    """Why they do not come; empty where they may."""
    waits_for: str = ""
    """Empty once all are ready."""
    nodes: Mapping[str, DisruptedNode] = field(default_factory=dict)
    """All of them, by `IncrementNode.name`, once they are ready."""


class NewNodes:
    """Of the disruption under way. For one thread, but for `status`."""

    def __init__(
        self,
        fleet: SnapshotSource,
        cluster: NodeNames,
        placements: Placements,
        clock: MonotonicClock,
        minimum_node_age_seconds: float = 0.0,
    ) -> None:
        self._fleet = fleet
        self._minimum_node_age_seconds = minimum_node_age_seconds
        self._cluster = cluster
        self._placements = placements
        self._clock = clock
        self._turn: Turn | None = None
        """Of the pods that are planned for other nodes, since these here are ready."""

    def forget(self) -> None:
        """Forget since when they are ready: another disruption begins."""
        self._turn = None

    def status(self, under_way: Disruption) -> IncrementStatus | None:
        """Return their increment; None without one, or where it is not known any more."""
        found = (each for each in self._fleet.snapshot.increments if each.id == under_way.increment_id)
        return next(found, None)

    def may_be_withdrawn(self, status: IncrementStatus) -> bool:
        """Return whether no node of it is there yet: one that is stays for the minimum age, as any other."""
        known = self._cluster.node_names() if self._minimum_node_age_seconds else {}
        return not any(each.instance_id in known for each in status.nodes)

    def coming(self, under_way: Disruption) -> Coming:
        """Return what has become of them."""
        status = self.status(under_way)
        if not under_way.increment_id:
            return Coming()
        if status is None or status.phase in (Phase.DONE, Phase.ROLLING_BACK, Phase.ROLLED_BACK):
            return Coming(f"its new nodes did not come: {status.message if status else 'nothing is known of them'}")
        if status.phase is not Phase.READY:
            return Coming(waits_for=f"new nodes: {status.message}")
        if len(status.held) < sum(status.increment.deltas.values()):
            return Coming("a new node is gone")
        return self._ready(status)

    def _ready(self, status: IncrementStatus) -> Coming:
        known, now = self._cluster.node_names(), self._clock()
        if any(each.instance_id not in known for each in status.held):
            return Coming(waits_for="new nodes to be seen")
        planned = self._fleet.snapshot.in_flight_pods | self._placements.nodes().keys()
        self._turn = self._turn or Turn(now, self._placements.scheduler.served)
        self._turn.before = max(self._turn.before, len(planned))
        # The scheduler would bind those here.
        if planned and not self._turn.is_over(self._placements.scheduler, DEADLINE_SECONDS, now):
            return Coming(waits_for="pods that are planned for other nodes to be bound")
        return Coming(
            nodes={
                each.name: DisruptedNode(known[each.instance_id], each.instance_id, each.node_group)
                for each in status.held
            }
        )
