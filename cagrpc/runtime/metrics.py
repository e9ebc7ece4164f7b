"""Metrics whose values are read at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class AtScrape(Collector):
    """Metrics that are made anew for each scrape."""

    def __init__(self, make: Callable[[], Iterable[Metric]]) -> None:
        self._make = make

    def collect(self) -> Iterable[Metric]:
        return self._make()


def gauge(name: str, meaning: str, value: float | None) -> Metric:
    """Return a gauge; absent where the value is None."""
    return GaugeMetricFamily(name, meaning, value=value)


def gauges(name: str, meaning: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Metric:
    """Return a gauge with labels, by their values."""
    found = GaugeMetricFamily(name, meaning, labels=labels)
    for of, value in values.items():
        found.add_metric(of, value)
    return found
