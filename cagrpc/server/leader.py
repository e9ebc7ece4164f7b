"""What exists only in the leader: the fleet with its journal and backend, the two services, and the controllers.
Without a provider it is the expander alone, and every server leads. Sockets are in `server`, leader election is in
`standby`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import solver
from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.backends.plugin import BackendContext
from cagrpc.config.settings import Settings
from cagrpc.controllers import fleet as fleet_controller
from cagrpc.controllers.fleet import FleetController, IncrementMetrics
from cagrpc.controllers.kept import InConfigMap, InFile, Keeping
from cagrpc.controllers.overview import OverviewController
from cagrpc.controllers.settings import Drive, ExpanderMode
from cagrpc.fleet.backend_records import BackendRecords
from cagrpc.fleet.fleet import Fleet, FleetListeners, FleetSettings, no_quotas, show_all
from cagrpc.fleet.journal import Journal
from cagrpc.fleet.prices import NodePrices, PriceList
from cagrpc.fleet.provisioners import widened
from cagrpc.runtime.clock import EpochClock, SteadyClock
from cagrpc.runtime.controller import Controller
from cagrpc.runtime.heartbeat import Heartbeat
from cagrpc.server.found_groups import GroupFinder
from cagrpc.services.decisions import DecisionLog
from cagrpc.services.grpc import expander, provider
from cagrpc.services.grpc.failed_scale_ups import CONFIG_MAP, FILE, KEY, KeptFailures
from cagrpc.services.grpc.ready import ReadyAnswers
from cagrpc.services.grpc.template_groups import TemplateGroups
from solver.model import Budget, Problem
from solver.model.plan import ScaleUpCandidate, Score

if TYPE_CHECKING:
    from cagrpc.controllers.assume_cache.cache import AssumeCache
    from cagrpc.controllers.autoscaler import AutoscalerConfigMaps
    from cagrpc.controllers.episodes.controller import EpisodeController
    from cagrpc.server.cluster import ClusterConnection

FLEET_PATIENCE_SECONDS = 600.0
"""For one call of the backend, which may have no timeout, or one write to the journal."""


class Leader:
    """The parts that change the fleet and the cluster. It answers calls once built; its controllers are run by the
    server."""

    def __init__(
        self,
        settings: Settings,
        journal: Journal | None,
        decisions: DecisionLog,
        cluster: ClusterConnection | None = None,
        ready: ReadyAnswers | None = None,
    ) -> None:
        """Take the journal over: it is closed with the rest, also where this raises InvalidInput or Unavailable.
        `ready` gets the provider's answers that need no Python. There is no journal where there is no provider."""
        self._clock = now = SteadyClock()  # shared by all that compare with the fleet's times
        self.fleet: Fleet | None = None
        self.provider: provider.Provider | None = None
        self.time_can_pass = False
        """Whether everything that happens follows from the fleet's clock, so that nobody need wait."""
        self.controllers: list[Controller] = []
        self._assumed = None if cluster is None else _assume_cache(settings, cluster, now)
        with ExitStack() as undo:
            followed = _config_maps(settings, cluster)
            templates = TemplateGroups(
                settings.provisioners, settings.catalogue, settings.prices, settings.price_rule, followed
            )
            if journal is not None:
                undo.callback(journal.close)
                self._open_fleet(settings, journal, decisions, cluster, ready or ReadyAnswers(), templates, undo)
            self.expander = expander.Expander(
                self.fleet,
                _rank,
                decisions,
                expander.ExpanderSettings(
                    answers=settings.answers,
                    timing=_timing(settings.expander_budget_seconds),
                    planner_drives=settings.drive is Drive.PLAN,
                    serves_requests=settings.requests is not None,
                    gang_label=cluster.settings.gang_label if cluster is not None else DEFAULT_GANG_LABEL,
                    templates=templates,
                ),
                self._assumed,
                clock=now,
            )
            undo.callback(self.expander.close)
            if followed is not None:
                self.controllers.append(followed)
            if settings.ranks_groups_of_others:
                kept = _kept(settings, cluster, CONFIG_MAP, KEY, FILE)
                self.controllers.append(KeptFailures(self.expander.failed, kept))
            if cluster is not None and settings.answers.mode is ExpanderMode.SHADOW:
                self.controllers.append(_episodes(settings, cluster, followed, self.expander, now))
            self._undo = undo.pop_all()

    def _open_fleet(
        self,
        settings: Settings,
        journal: Journal,
        decisions: DecisionLog,
        cluster: ClusterConnection | None,
        ready: ReadyAnswers,
        templates: TemplateGroups,
        undo: ExitStack,
    ) -> None:
        now, wake = self._clock, threading.Event()
        context = BackendContext(settings.state_directory, now, changed=wake.set, records=BackendRecords(journal))
        if cluster is not None:
            context = replace(context, client=cluster.client, node_names=cluster.view.node_names)
        backend = settings.backend.open(context)
        undo.callback(backend.close)
        finder = None
        if backend.node_groups is not None:
            whole = [each for each in settings.limits if each.node_groups is None]
            finder = GroupFinder(backend.node_groups, templates, settings.provisioners, whole)
        self.time_can_pass = backend.follows_clock and cluster is None
        heartbeat = Heartbeat(fleet_controller.NAME, FLEET_PATIENCE_SECONDS)
        increments = IncrementMetrics()
        self.fleet = Fleet(
            FleetSettings(
                settings.groups,
                settings.limits,
                settings.shown if finder is None else show_all,
                finder,
                no_quotas if cluster is None else cluster.view.quota_limits,
                autoscaler_may_grow=settings.drive is not Drive.PLAN,
                increment_deadline_seconds=settings.increment_deadline_seconds,
                widen=partial(widened, settings.provisioners, settings.catalogue),
            ),
            backend.backend,
            journal,
            nodes=cluster.view if cluster is not None else None,
            clock=now,
            listeners=FleetListeners(heartbeat.beat, wake.set, increments.moved, ready.advance),
        )
        self.provider = provider.Provider(
            self.fleet,
            options=settings.options,
            gpu_label=settings.gpu_label,
            take_choice=decisions.take_choice,
            ready=ready,
        )
        view = cluster.view if cluster is not None else None
        shown = (backend.pages, wake, increments, backend.status)
        pod_of = view.pod_of if view is not None else lambda _: None
        self.controllers.append(FleetController(self.fleet, heartbeat, *shown, pod_of))
        kept = BackendRecords(journal, "overview", self.fleet.contents)
        self.controllers.append(OverviewController(self.fleet, view, kept, now))
        if cluster is not None and self._assumed is not None:
            from cagrpc.controllers.runtime import Runtime
            from cagrpc.server.controllers import cluster_controllers

            self.controllers += cluster_controllers(settings, cluster, self.fleet, backend, self._assumed, Runtime(now))

    @property
    def problem(self) -> str:
        """Return why it cannot do its work; empty where it can."""
        return self.fleet.problem or "" if self.fleet is not None else ""

    def pass_time(self, seconds: float) -> None:
        """Be so much later, and let the fleet take the step that is due by then: what a replay does where others wait.
        Raises Unavailable."""
        self._clock.pass_time(seconds)
        if self.fleet is not None:
            self.fleet.reconcile()

    def close(self) -> None:
        """Close everything, once its controllers are stopped. The fleet stays; unfinished increments are resumed from
        the journal at the next start."""
        if self.fleet is not None:
            self.fleet.close()
        self._undo.close()


def _rank(problem: Problem, candidates: Sequence[ScaleUpCandidate], budget: Budget) -> Sequence[Score]:
    """Rank by the planner, which `solver` imports at its first use: the server is ready before that."""
    return solver.rank(problem, candidates, budget)


def _assume_cache(settings: Settings, cluster: ClusterConnection, now: EpochClock) -> AssumeCache:
    from cagrpc.controllers.runtime import Runtime
    from cagrpc.server.controllers import assume_cache

    return assume_cache(settings, cluster, Runtime(now))


def _config_maps(settings: Settings, cluster: ClusterConnection | None) -> AutoscalerConfigMaps | None:
    if settings.config_maps is None or cluster is None:
        return None
    from cagrpc.controllers.autoscaler import AutoscalerConfigMaps

    return AutoscalerConfigMaps(cluster.client, settings.config_maps)


def _episodes(
    settings: Settings,
    cluster: ClusterConnection,
    followed: AutoscalerConfigMaps | None,
    asked: expander.Expander,
    now: EpochClock,
) -> EpisodeController:
    """Return what compares the autoscaler with what would have been planned."""
    from cagrpc.controllers.episodes import controller
    from cagrpc.controllers.runtime import Runtime

    return controller.EpisodeController(
        cluster.client,
        cluster.view,
        asked.asked,
        lambda: followed.sizes if followed is not None else {},
        _kept(settings, cluster, controller.CONFIG_MAP, controller.KEY, controller.FILE),
        NodePrices(settings.prices or PriceList(settings.catalogue), settings.price_rule),
        Runtime(now),
    )


def _kept(settings: Settings, cluster: ClusterConnection | None, config_map: str, key: str, file: str) -> Keeping:
    if cluster is not None:
        return InConfigMap(cluster.client, cluster.settings.namespace, config_map, key)
    return InFile(settings.state_directory / file)


def _timing(budget_seconds: float) -> expander.Timing:
    """Return the shares of the configured time for an answer."""
    return expander.Timing(
        answer_seconds=budget_seconds, decode_seconds=0.4 * budget_seconds, rank_seconds=0.6 * budget_seconds
    )
