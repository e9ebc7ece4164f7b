"""Metrics of HTTP requests."""

from __future__ import annotations

from prometheus_client import Histogram
from prometheus_client.registry import Collector

_SECONDS_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""From a probe, of which a kubelet waits a second, over Prometheus' 10 s for a scrape to the end of every request."""
OTHER = "other"
_METHODS = frozenset({"GET", "HEAD", "PUT"})


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
        """Return them for a registry."""
        return (self._seconds,)
