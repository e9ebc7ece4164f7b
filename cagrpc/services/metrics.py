"""What `/metrics` shows: Prometheus' text format, or OpenMetrics for a scraper that asks for it. Which metrics there
are is their owners' business: each brings its own collectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

disable_created_metrics()  # type: ignore[no-untyped-call] # it has no types; a series beside each counter and histogram that nobody asks for


class Metrics:
    """All that is collected in one process. Several can be in one, as in tests: nothing is global."""

    def __init__(self, collectors: Callable[[], Iterable[Collector]]) -> None:
        """`collectors` is asked at each scrape: those of a leader come once it leads."""
        self._collectors = collectors

    def exposition(self, accept: str = "") -> tuple[str, bytes]:
        """Return everything as it is now, with its content type. `accept` is the scraper's header: with
        `application/openmetrics-text` exemplars are there, too."""
        registry = CollectorRegistry()
        for each in self._collectors():
            registry.register(each)
        encode, content_type = choose_encoder(accept)
        return content_type, encode(registry)
