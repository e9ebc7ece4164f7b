"""Keeps the ledger of episodes for a cluster: tells it what is seen, plans what has ended, and keeps and shows it. It
reads, and writes nothing in the cluster but what it keeps."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from prometheus_client import Counter
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from cagrpc.cluster.state import ClusterState
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.autoscaler import GroupSize
from cagrpc.controllers.episodes.events import ScaleUpEvents
from cagrpc.controllers.episodes.ledger import ClosedEpisode, ClusterMoment, EpisodeLedger
from cagrpc.controllers.episodes.log import EpisodeLog, as_json, kept
from cagrpc.controllers.episodes.model import Episode, KnownGroups, Outcome, sentences
from cagrpc.controllers.episodes.planning import finished
from cagrpc.controllers.kept import Keeping
from cagrpc.controllers.runtime import Runtime
from cagrpc.fleet.prices import NodePrices
from cagrpc.kube.client.client import Client
from cagrpc.runtime.controller import Controller, Json, JsonList, JsonPage
from cagrpc.runtime.health import SyncedResource
from cagrpc.runtime.metrics import AtScrape, gauge
from solver.model import Budget
from solver.model.errors import NotCompiledError

log = logging.getLogger(__name__)

CONFIG_MAP = "cagrpc-episodes"
KEY = "episodes"
"""Of the ConfigMap."""
FILE = "episodes.json"
_MOST_ENDED = 10
PLAN_SECONDS = 20.0
"""The budget of an episode's plans, all together. Nobody waits for them."""


class GroupSource(Protocol):
    """Which node groups there are: a boundary with an implementation for each way to know them."""

    def known(self, state: ClusterState, since_seconds: float) -> KnownGroups:
        """Return those that are known of a state of the cluster, or were told of since then."""
        ...


class EpisodeController(Controller):
    """Compares what the autoscaler did with what planning would have done."""

    name = "comparing with the autoscaler"
    every_seconds = 2.0
    patience_seconds = 300.0

    def __init__(
        self,
        client: Client,
        view: ClusterView,
        groups: GroupSource,
        sizes: Callable[[], Mapping[str, GroupSize]],
        keeping: Keeping,
        prices: NodePrices,
        runtime: Runtime,
    ) -> None:
        """`sizes` returns what the autoscaler's status says."""
        self._view = view
        self._groups = groups
        self._sizes = sizes
        self._keeping = keeping
        self._now = runtime.now
        self._budget = runtime.budget or Budget(PLAN_SECONDS)
        self._ledger = EpisodeLedger(prices)
        self._events = ScaleUpEvents()
        self._informers = (self._events.informer(client),)
        self._restored = False
        self._unwritten = False
        self._ended: deque[ClosedEpisode] = deque(maxlen=_MOST_ENDED)
        """What is still to be planned."""
        self.log = EpisodeLog()
        self.on_end: Callable[[Episode], object] = lambda _: None
        """Called with each episode that ends."""
        self._counter = Counter(
            "cagrpc_episodes",
            "In shadow mode episodes, by who was better: `autoscaler`, `plan`, `equal` or `unknown`.",
            ("better",),
            registry=None,
        )

    def step(self) -> None:
        if not self._restored:
            self.log.restore(self._keeping.read())
            self._restored = True
        if unknown := self._view.still_to_come():
            self.waits_for = unknown
            return
        self.waits_for = ""
        self._look()
        self._finish()
        self._write()

    def _look(self) -> None:
        """Tell the ledger what is seen."""
        opened, arrivals = self._ledger.opened_at_seconds, self._view.arrivals()
        if opened is None and not arrivals.waiting:
            return
        now, state, awaited = self._now(), self._view.state(), self._ledger.awaited
        seen = ClusterMoment(
            now,
            state,
            frozenset(self._view.pending(awaited)),
            frozenset(self._view.nodes_of(awaited)),
            self._groups.known(state, now if opened is None else opened),
            self._sizes(),
            self._events.latest(),
        )
        closed = self._ledger.see(seen)
        if closed is not None:
            self._ended.append(closed)

    def _finish(self) -> None:
        """Plan what has ended. What cannot be planned yet, as the planner is still being compiled, is planned later."""
        while self._ended:
            closed = self._ended.popleft()
            try:
                episode = finished(closed, self._budget)
            except NotCompiledError:
                self._ended.appendleft(closed)
                raise
            if episode is not None:
                self.log.add(kept(episode, closed.state))
                self._unwritten = True
                self._counter.labels(episode.better.value).inc()
                log.info("an episode has ended: %s", "; ".join(sentences(episode)), extra={"episode": as_json(episode)})
                self.on_end(episode)

    def _write(self) -> None:
        """Write what is kept, with what others have written there."""
        if self._unwritten:
            self.log.restore(self._keeping.read())
            self._keeping.write(self.log.text())
            self._unwritten = False

    def informers(self) -> tuple[SyncedResource, ...]:
        return self._informers

    def status(self) -> Json:
        kept_, opened = self.log.latest(), self._ledger.opened_at_seconds
        last = {"last_episode": list(sentences(kept_[-1].episode))} if kept_ else {}
        return {"episodes": len(kept_), **({"episode_since_seconds": opened} if opened is not None else {}), **last}

    def pages(self) -> Mapping[str, JsonPage]:
        return {"/episodes": JsonPage(lambda: JsonList(self._shown(), as_json))}

    def collectors(self) -> tuple[Collector, ...]:
        return self._counter, AtScrape(self._figures)

    def _shown(self) -> tuple[Episode, ...]:
        return tuple(each.episode for each in self.log.latest())

    def _figures(self) -> Iterator[Metric]:
        """Yield the figures of the last episode: those of several are never added up."""
        episode = self._shown()[-1] if self._shown() else None
        yield from _figures("autoscaler", "that came", None if episode is None else episode.came)
        yield from _figures("planned", "that would have been planned", None if episode is None else episode.planned)


def _figures(side: str, what: str, of: Outcome | None) -> Iterator[Metric]:
    name, waited = f"cagrpc_last_episode_{side}", f"How long pods waited on average, with the nodes {what}."
    cost = f"The cost of the nodes {what} in the last episode."
    yield gauge(f"{name}_usd_per_hour", cost, of.usd_per_hour if of else None)
    yield gauge(f"{name}_nodes", f"The nodes {what} in the last episode.", of.node_count if of else None)
    yield gauge(f"{name}_wait_seconds", waited, of.waited_seconds if of else None)
