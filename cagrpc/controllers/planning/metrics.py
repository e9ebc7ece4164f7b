"""Metrics of planning rounds: how long they take, and what the latest one came to. What a round is, is in `records`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cagrpc.controllers.planning.records import PlanRecord, Rounds
from cagrpc.runtime import tracing

_SECONDS_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0)
"""From a round for a few pods, over `planner.budget` (5 s by default) and what comes on top of it, to the minutes that
plans of the largest clusters take."""


class RoundMetrics:
    """Rounds that had something to plan."""

    def __init__(self, rounds: Rounds) -> None:
        self._latest = _LatestRound(rounds)
        self._seconds = Histogram(
            "cagrpc_planning_round_duration_seconds",
            "How long planning rounds took until their increments were ordered, by the status of their plan.",
            ("status",),
            buckets=_SECONDS_BUCKETS,
            registry=None,
        )

    def observe(self, record: PlanRecord, seconds: float) -> None:
        """Count a round that is over."""
        ordered = next((each.id for each in record.increments if each.id), None)
        exemplar = tracing.exemplar(ordered) if ordered is not None else None
        self._seconds.labels(record.status).observe(seconds, exemplar)

    def collectors(self) -> tuple[Collector, ...]:
        """Return them for a registry."""
        return self._seconds, self._latest


class _LatestRound(Collector):
    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def collect(self) -> Iterator[Metric]:
        unplaced = GaugeMetricFamily("cagrpc_plan_unplaced_pods", "Pods that the latest planning round did not place.")
        cost = GaugeMetricFamily("cagrpc_plan_cost_usd_per_hour", "Cost of the latest plan's new nodes.")
        least = GaugeMetricFamily(
            "cagrpc_plan_lower_bound_usd_per_hour", "The least that any plan for the same pods costs, proven."
        )
        gap = GaugeMetricFamily("cagrpc_plan_gap_ratio", "The most that the latest plan is above that, of its cost.")
        record = next((each for each in reversed(self._rounds.latest()) if each.pods or each.placeholders), None)
        if record is not None:
            unplaced.add_metric((), sum(each.count for each in record.unplaced))
            cost.add_metric((), record.planned_cost_per_hour)
            for family, proven in ((least, record.lower_bound_per_hour), (gap, record.gap)):
                if proven is not None:
                    family.add_metric((), proven)
        yield from (unplaced, cost, least, gap)
