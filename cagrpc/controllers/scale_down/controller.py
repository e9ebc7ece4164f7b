"""The scale-down controller: sets and clears CA's `scale-down-disabled` annotation on nodes of the fleet, so that
scale-down follows the order of weights. Which nodes have to stay is `choice`'s: all of them, where cagrpc consolidates.

A second annotation with the reason marks the first as ours. One that somebody else has set, to any value, is never
touched. Without cagrpc the annotations stay as they are: fewer nodes are scaled down, never more.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from cagrpc.cluster.markers import SCALE_DOWN_DISABLED
from cagrpc.cluster.markers import SCALE_DOWN_DISABLED_BY_US as OURS
from cagrpc.cluster.state import ClusterState
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.scale_down.choice import (
    BOOKED,
    BUDGET,
    ReviewedNodes,
    Rules,
    Verdicts,
    all_stay,
    booked_for,
    choose,
)
from cagrpc.errors import Conflict
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.kube.client.client import Client
from cagrpc.kube.nodes import change
from cagrpc.runtime.clock import MonotonicClock, MonotonicSeconds, monotonic
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


class ScaleDownController(Controller):
    """Annotates nodes. For one thread."""

    name = "what the autoscaler may scale down"
    every_seconds = STEP_SECONDS

    def __init__(
        self,
        cluster: ClusterView,
        fleet: Fleet,
        client: Client,
        assumed: AssumeCache,
        rules: Rules,
        clock: MonotonicClock = monotonic,
        *,
        consolidates: bool = False,
    ) -> None:
        """`consolidates` is whether cagrpc alone takes nodes away: then nothing is evaluated, and all have to stay."""
        self._cluster = cluster
        self._fleet = fleet
        self._client = client
        self._clock = clock
        self._assumed = assumed
        self._rules = rules
        self._known = ReviewedNodes(self._rules.utilisation)
        self._consolidates = consolidates
        self._verdicts: Verdicts | None = None
        self._lately: AbstractSet[str] = frozenset()
        self._written: dict[str, str] = {}  # node -> the reason in its annotation, where known
        self._to_write: deque[tuple[str, str]] = deque()
        """Node and reason, of the last review."""
        self._next_review = float("-inf")
        self._under_way: _Review | None = None
        self._meanwhile: dict[str, str] = {}
        """What was written since the last review began: `known` is older."""

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
        """Begin to review all nodes when that is due; otherwise annotate those that were booked since, go on with the
        review, and with what the last one is to write. Raises as `review` does."""
        if self._under_way is None and self._clock() >= self._next_review:
            self.review()
            return
        if not self._consolidates:
            self._annotate_booked()
        if self._under_way is not None:
            self._go_on(self._under_way)
        self._write()

    def _annotate_booked(self) -> None:
        new = {name: whose for name, whose in self._assumed.requests.nodes.items() if not self._written.get(name)}
        if new:
            groups = self._fleet.snapshot.group_of_instance
            ours = [each.node.name for each in self._cluster.state().nodes if each.provider_id in groups]
            for name in islice((name for name in ours if name in new), MOST_WRITES):
                self._annotate(name, booked_for(new[name]))

    def review(self) -> None:
        """Choose anew which nodes have to stay, and annotate those for which that has changed, `MOST_WRITES` at most;
        what takes longer than `Rules.step_seconds`, and then `WRITING_SECONDS`, is left to the next steps. Raises
        Unavailable while the cluster is unknown or out of reach; the next review writes the rest."""
        began, snapshot = self._clock(), self._fleet.snapshot
        state = self._cluster.state(without=snapshot.in_flight_pods)
        for name in self._known.update(state.nodes, snapshot):
            self._written.pop(name, None)
        self._meanwhile.clear()
        if self._consolidates:
            self._decide(all_stay(self._known))
        else:
            self._go_on(_Review(partial(self._choose, state, snapshot), self._clock))
        self._next_review = began + REVIEW_SECONDS
        self._write()

    def _choose(
        self, state: ClusterState, snapshot: FleetSnapshot, clock: MonotonicClock
    ) -> Generator[Verdicts, None, Verdicts]:
        # After a start the nodes without annotation are those that may go.
        before = (
            {name for name, each in self._known.of.items() if not each.scale_down_disabled}
            if self._verdicts is None
            else frozenset(self._verdicts.go)
        )
        taken, undrainable = self._assumed.snapshot(snapshot, state), self._cluster.undrainable
        return choose(self._known, taken, before, self._lately, self._rules, clock, undrainable)

    def _go_on(self, review: _Review) -> None:
        begins, self._under_way = self._under_way is None, None
        verdicts, done = review.go_on(self._rules.step_seconds)
        if done:
            self._decide(verdicts)
            return
        self._under_way = review
        if begins:  # those that CA might take, and that have to stay in any case, do not wait for the others
            urgent = {name: verdicts.stay[name] for name in verdicts.low if name in verdicts.stay}
            self._plan_writes(replace(verdicts, stay=urgent))

    def _decide(self, verdicts: Verdicts) -> None:
        self._verdicts = verdicts
        self._lately = frozenset() if verdicts.swept else verdicts.refused
        self._plan_writes(verdicts)

    def _plan_writes(self, verdicts: Verdicts) -> None:
        news = _news(verdicts, self._known.marked, self._written, unread=self._consolidates)
        left = (each for each in news if self._meanwhile.get(each[0]) != each[1])
        self._to_write = deque(islice(left, MOST_WRITES - len(self._meanwhile)))

    def _write(self) -> None:
        until, booked = self._clock() + WRITING_SECONDS, self._assumed.requests.nodes
        while self._to_write and self._clock() < until:
            name, reason = self._to_write.popleft()
            if reason or name not in booked:  # booked since it was found that it may go
                self._annotate(name, reason)
                self._meanwhile[name] = reason

    def _annotate(self, name: str, reason: str) -> None:
        """Set both annotations, or clear them where the reason is empty; somebody else's are never overwritten, even
        where the view is behind."""

        def wanted(node: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]] | None:
            annotations = node["metadata"].get("annotations") or {}
            if annotations.get(SCALE_DOWN_DISABLED) is not None and annotations.get(OURS) is None:
                return None  # by somebody else
            both = {SCALE_DOWN_DISABLED: "true" if reason else None, OURS: reason or None}
            is_written = all(annotations.get(key) == value for key, value in both.items())
            return None if is_written else {"metadata": {"annotations": both}}

        try:
            if change(self._client, name, "its annotations", wanted, _TRIES):
                self._written[name] = reason
        except Conflict as error:
            log.info("%s; it is tried again", error)


class _Review:
    """A review under way, which takes several steps where there is much to evaluate. Its clock stands still between
    them."""

    def __init__(
        self, choose: Callable[[MonotonicClock], Generator[Verdicts, None, Verdicts]], clock: MonotonicClock
    ) -> None:
        self._clock = clock
        self._paused_at = clock()
        self._idle_seconds = 0.0
        self._parts = choose(lambda: MonotonicSeconds(clock() - self._idle_seconds))

    def go_on(self, seconds: float) -> tuple[Verdicts, bool]:
        """Work for so long. Return the verdicts on all nodes, or as far as they are known, and whether they are on
        all."""
        now = self._clock()
        self._idle_seconds += now - self._paused_at
        try:
            while True:
                so_far = next(self._parts)
                self._paused_at = self._clock()
                if self._paused_at >= now + seconds:
                    return so_far, False
        except StopIteration as end:
            verdicts: Verdicts = end.value
            return verdicts, True


def _news(
    verdicts: Verdicts, marked: AbstractSet[str], written: Mapping[str, str], *, unread: bool
) -> Iterator[tuple[str, str]]:
    """Yield node and reason (empty: it may go) where the annotations differ, the most urgent first: nodes that CA might
    remove, nodes that may go, others; changed reasons come last. `marked` are the nodes with our annotations. `unread`
    is whether reasons count as changed that an earlier process wrote."""
    unmarked = sorted(verdicts.stay.keys() - marked)
    yield from ((name, verdicts.stay[name]) for name in unmarked if name in verdicts.low)
    yield from ((name, "") for name in verdicts.go if name in marked)
    yield from ((name, verdicts.stay[name]) for name in unmarked if name not in verdicts.low)
    known = verdicts.stay if unread else written
    changed = (name for name in known if name in marked and verdicts.stay.get(name, "") != written.get(name, ""))
    yield from ((name, verdicts.stay[name]) for name in sorted(changed) if name in verdicts.stay)
