"""What `/metrics` shows: Prometheus' text format, or OpenMetrics for a scraper that asks for it; and the metrics of
HTTP requests. Which others there are is their owners' business: each brings its own collectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

disable_created_metrics()  # type: ignore[no-untyped-call] # it has no types; a series beside each counter and histogram that nobody asks for

_SECONDS_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""From a probe, of which a kubelet waits a second, over Prometheus' 10 s for a scrape to the end of every request."""
OTHER = "other"
_METHODS = frozenset({"GET", "HEAD", "PUT"})


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


class HttpMetrics:
    """Answered requests of one process; those whose client was gone, and streams, are not among them."""

    def __init__(self) -> None:
        self._seconds = Histogram(
            "cagrpc_http_request_duration_seconds",
            "How long answers to HTTP requests took until they were sent, by page, method and code; without streams.",
            ("page", "method", "code"),
            buckets=_SECONDS_BUCKETS,
            registry=None,
        )

    def observe(self, page: str, method: str, code: int, seconds: float) -> None:
        """Count an answered request. `page` is a path that there is; whoever asks for others makes no new series."""
        method = method if method in _METHODS else OTHER
        self._seconds.labels(page or OTHER, method, str(code)).observe(seconds)

    def collectors(self) -> tuple[Collector, ...]:
        return (self._seconds,)
