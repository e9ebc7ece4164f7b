"""The scale-down controller: sets and clears CA's `scale-down-disabled` annotation on nodes of the fleet, so that
scale-down follows the order of weights. Which nodes have to stay is `choice`'s: all of them, where cagrpc consolidates.

A second annotation with the reason marks the first as ours. One that somebody else has set, to any value, is never
touched. Without cagrpc the annotations stay as they are: fewer nodes are scaled down, never more.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any, Protocol

from cagrpc.cluster.markers import SCALE_DOWN_DISABLED
from cagrpc.cluster.markers import SCALE_DOWN_DISABLED_BY_US as OURS
from cagrpc.cluster.node_info import Reservations, nothing_reserved
from cagrpc.cluster.state import ClusterNode, ClusterSource, ClusterState
from cagrpc.controllers.scale_down.choice import (
    BOOKED,
    BUDGET,
    Bookings,
    Rules,
    Verdicts,
    all_stay,
    booked_for,
    choose,
)
from cagrpc.errors import Conflict, NotFound
from cagrpc.fleet.model import FleetSnapshot, SnapshotSource
from cagrpc.kube.client.client import PatchKind
from cagrpc.runtime.clock import MonotonicClock, monotonic
from cagrpc.runtime.controller import Controller, Json

STEP_SECONDS = 1.0
"""How often to check for new bookings: they may be on nodes that have long been unneeded."""
REVIEW_SECONDS = 20.0
"""How often to review all nodes. CA removes one that has been unneeded for 10 minutes."""
MOST_WRITES = 200
WRITING_SECONDS = 0.5
"""How long one step begins to annotate further nodes: those of a large cluster take minutes to be written."""
_TRIES = 3

log = logging.getLogger(__name__)


class Nodes(Protocol):
    """The part of `kube.client.Client` that annotating needs."""

    def get(self, path: str) -> dict[str, Any]: ...

    def patch(self, path: str, body: Any, kind: PatchKind) -> dict[str, Any]: ...


class ScaleDownController(Controller):
    """Annotates nodes. For one thread."""

    name = "what the autoscaler may scale down"
    every_seconds = STEP_SECONDS

    def __init__(
        self,
        cluster: ClusterSource,
        fleet: SnapshotSource,
        nodes: Nodes,
        *,
        clock: MonotonicClock = monotonic,
        rules: Rules | None = None,
        most_writes: int = MOST_WRITES,
        reservations: Callable[[ClusterState], Reservations] = nothing_reserved,
        booked: Callable[[], Mapping[str, str]] = dict,
        slack: Callable[[], Reservations] = dict,
        undrainable: Callable[[], Mapping[str, str]] = dict,
        consolidates: bool = False,
    ) -> None:
        """`consolidates` is whether cagrpc alone takes nodes away: then nothing is evaluated, and all have to stay.
        `reservations` returns the room reserved for ProvisioningRequests, `booked` the nodes that have to stay for
        them (namespace/name), `slack` the room of placeholders, `undrainable` nodes that cannot be drained now, each
        with the reason."""
        self._cluster = cluster
        self._fleet = fleet
        self._nodes = nodes
        self._clock = clock
        self._rules = rules or Rules()
        self._most_writes = most_writes
        self._reservations = reservations
        self._booked = booked
        self._slack = slack
        self._undrainable = undrainable
        self._consolidates = consolidates
        self._verdicts: Verdicts | None = None
        self._lately: AbstractSet[str] = frozenset()
        self._written: dict[str, str] = {}  # node -> the reason in its annotation, where known
        self._to_write: deque[tuple[str, str]] = deque()
        """Node and reason, of the last review."""
        self._next_review = float("-inf")

    def status(self) -> Json:
        """Return how many nodes may go, and how many stay for which reason, as of the last review."""
        return {"scale_down": self.summary()}

    def summary(self) -> Mapping[str, int]:
        """Return the number of nodes that may go, and of those that stay by reason; empty before the first review."""
        if self._verdicts is None:
            return {}
        reasons = (
            next((kind for kind in (BOOKED, BUDGET) if why.startswith(kind)), why)
            for why in self._verdicts.stay.values()
        )
        return {"may go": len(self._verdicts.go), **Counter(reasons)}

    def step(self) -> None:
        """Review all nodes when that is due; otherwise annotate those that were booked since, and go on with those of
        the last review. Raises as `review` does."""
        if self._clock() >= self._next_review:
            self.review()
            self._next_review = self._clock() + REVIEW_SECONDS
            return
        if not self._consolidates:
            self._annotate_booked()
        self._write()

    def _annotate_booked(self) -> None:
        new = {name: whose for name, whose in self._booked().items() if not self._written.get(name)}
        if new:
            groups = self._fleet.snapshot.group_of_instance
            ours = [each.node.name for each in self._cluster.state().nodes if each.provider_id in groups]
            for name in islice((name for name in ours if name in new), self._most_writes):
                self._annotate(name, booked_for(new[name]))

    def review(self) -> None:
        """Choose anew which nodes have to stay, and annotate those for which that has changed, `most_writes` at most;
        what takes longer than `WRITING_SECONDS` is left to the next steps. Raises Unavailable while the cluster is
        unknown or out of reach; the next review writes the rest."""
        snapshot = self._fleet.snapshot
        state = self._cluster.state(without=snapshot.in_flight_pods)
        verdicts = self._verdicts = all_stay(state, snapshot) if self._consolidates else self._choose(state, snapshot)
        self._lately = frozenset() if verdicts.swept else verdicts.refused
        nodes = {each.node.name: each for each in state.nodes}
        self._written = {name: reason for name, reason in self._written.items() if name in nodes}
        news = _news(verdicts, nodes, self._written, unread=self._consolidates)
        self._to_write = deque(islice(news, self._most_writes))
        self._write()

    def _write(self) -> None:
        until, booked = self._clock() + WRITING_SECONDS, self._booked()
        while self._to_write and self._clock() < until:
            name, reason = self._to_write.popleft()
            if reason or name not in booked:  # booked since it was found that it may go
                self._annotate(name, reason)

    def _choose(self, state: ClusterState, snapshot: FleetSnapshot) -> Verdicts:
        # After a start the nodes without annotation are those that may go.
        before = (
            {each.node.name for each in state.nodes if not each.scale_down_disabled}
            if self._verdicts is None
            else frozenset(self._verdicts.go)
        )
        bookings = Bookings(self._reservations(state), self._booked(), self._slack())
        return choose(state, snapshot, before, self._lately, self._rules, self._clock, bookings, self._undrainable())

    def _annotate(self, name: str, reason: str) -> None:
        """Set both annotations, or clear them where the reason is empty. The node is read first and patched by resource
        version, so that somebody else's annotation is never overwritten even where the view is behind."""
        path = f"/api/v1/nodes/{name}"
        for _ in range(_TRIES):
            try:
                metadata = self._nodes.get(path)["metadata"]
                annotations = metadata.get("annotations") or {}
                if annotations.get(SCALE_DOWN_DISABLED) is not None and annotations.get(OURS) is None:
                    self._written[name] = reason  # by somebody else
                    return
                wanted = {SCALE_DOWN_DISABLED: "true" if reason else None, OURS: reason or None}
                if all(annotations.get(key) == value for key, value in wanted.items()):
                    self._written[name] = reason
                    return
                patch = {"resourceVersion": metadata["resourceVersion"], "annotations": wanted}
                self._nodes.patch(path, {"metadata": patch}, PatchKind.MERGE)
            except Conflict:
                continue
            except NotFound:
                return
            self._written[name] = reason
            return
        log.info("node %s changes too often to be annotated now; it is tried again", name)


def _news(
    verdicts: Verdicts, nodes: Mapping[str, ClusterNode], written: Mapping[str, str], *, unread: bool
) -> Iterator[tuple[str, str]]:
    """Yield node and reason (empty: it may go) where the annotations differ, the most urgent first: nodes that CA might
    remove, nodes that may go, others; changed reasons come last. `unread` is whether reasons count as changed that an
    earlier process wrote."""
    unmarked = {name: why for name, why in verdicts.stay.items() if not nodes[name].scale_down_disabled_by_us}
    yield from ((name, why) for name, why in unmarked.items() if name in verdicts.low)
    yield from ((name, "") for name in verdicts.go if nodes[name].scale_down_disabled_by_us)
    yield from ((name, why) for name, why in unmarked.items() if name not in verdicts.low)
    for name, why in verdicts.stay.items():
        if nodes[name].scale_down_disabled_by_us and written.get(name, "" if unread else why) != why:
            yield name, why
