"""Metrics of consolidation: what the cluster costs and could cost, which nodes stay, and what became of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cagrpc.controllers.consolidation.status import Shown, by_kind
from cagrpc.fleet.model import Disruption

_SECONDS_BUCKETS = (5.0, 15.0, 30.0, 60.0, 120.0, 180.0, 300.0, 450.0, 600.0, 900.0, 1800.0, 3600.0)
"""From empty nodes to new ones that come and pods that take long to end."""


class CountsEvictions(Protocol):
    """Who evicts pods."""

    @property
    def evicted(self) -> int: ...

    @property
    def refused(self) -> int: ...


class ConsolidationMetrics:
    """Steps that ended since the start, and what is shown now."""

    def __init__(self, shown: Callable[[], Shown], evictions: CountsEvictions) -> None:
        self._now = _ConsolidationNow(shown, evictions)
        self._steps = Counter(
            "cagrpc_consolidation_steps",
            "Steps of consolidation that ended, by reason and outcome: done or undone.",
            ("reason", "outcome"),
            registry=None,
        )
        self._seconds = Histogram(
            "cagrpc_consolidation_step_duration_seconds",
            "How long steps of consolidation took, from being journalled until their end, by outcome.",
            ("outcome",),
            buckets=_SECONDS_BUCKETS,
            registry=None,
        )
        self._known: frozenset[str] | None = None

    def learn(self, disruptions: Sequence[Disruption]) -> bool:
        """Count those that have ended since the last call; return whether there are any. What had ended before the
        first call was another process's."""
        ended = {each.id: each for each in disruptions if not each.phase.under_way}
        before, self._known = self._known, frozenset(ended)
        new = [] if before is None else [each for name, each in ended.items() if name not in before]
        for each in new:
            self._steps.labels(each.reason, each.phase.value).inc()
            seconds = (each.finished_at_seconds or each.created_at_seconds) - each.created_at_seconds
            self._seconds.labels(each.phase.value).observe(max(0.0, seconds))
        return bool(new)

    def collectors(self) -> tuple[Collector, ...]:
        """Return them for a registry."""
        return self._now, self._steps, self._seconds


class _ConsolidationNow(Collector):
    def __init__(self, shown: Callable[[], Shown], evictions: CountsEvictions) -> None:
        self._shown = shown
        self._evictions = evictions

    def collect(self) -> Iterator[Metric]:
        shown = self._shown()
        cost = GaugeMetricFamily(
            "cagrpc_consolidation_cost_usd_per_hour",
            "Cost of the fleet's nodes: now, after the latest plan, the least that any consolidation could leave"
            " (proven), and the least if everything could be moved (proven).",
            labels=("state",),
        )
        kept = GaugeMetricFamily(
            "cagrpc_consolidation_nodes_kept",
            "Nodes that cost more than their pods are worth and stay, by reason.",
            labels=("reason",),
        )
        if shown.published is not None:
            plan = shown.published.plan
            cost.add_metric(("now",), plan.cost_before_usd_per_hour)
            cost.add_metric(("planned",), plan.cost_after_usd_per_hour)
            cost.add_metric(("least",), plan.least_usd_per_hour)
            cost.add_metric(("least_if_all_moved",), plan.least_if_all_moved_usd_per_hour)
            for kind, nodes in by_kind(plan.stays).items():
                kept.add_metric((kind,), len(nodes))
        yield cost
        yield kept
        yield GaugeMetricFamily(
            "cagrpc_consolidation_paused",
            "Whether no step is begun for a while after one that was undone.",
            value=shown.pause is not None,
        )
        yield CounterMetricFamily(
            "cagrpc_consolidation_pods_moved", "Pods evicted by steps of consolidation.", value=self._evictions.evicted
        )
        yield CounterMetricFamily(
            "cagrpc_consolidation_evictions_refused",
            "Evictions refused for now, by PodDisruptionBudgets or an API server that is busy; they are tried again.",
            value=self._evictions.refused,
        )
