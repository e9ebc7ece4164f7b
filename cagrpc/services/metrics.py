"""What `/metrics` shows, in Prometheus' format. Which metrics there are is their owners' business: each brings its own
collectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All that is collected in one process. Several can be in one, as in tests: nothing is global."""

    def __init__(self, collectors: Callable[[], Iterable[Collector]]) -> None:
        """`collectors` is asked at each scrape: those of a leader come once it leads."""
        self._collectors = collectors

    def text(self) -> bytes:
        """Return everything as it is now."""
        registry = CollectorRegistry()
        for each in self._collectors():
            registry.register(each)
        return generate_latest(registry)
