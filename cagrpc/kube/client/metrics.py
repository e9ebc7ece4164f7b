"""Metrics of requests to the API server."""

from __future__ import annotations

from prometheus_client import Histogram
from prometheus_client.registry import Collector

from cagrpc.kube.client.failures import RequestInfo

_SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""From a read out of the API server's cache to the time limit of an answer. Kubernetes' own objective is 1 s for
requests about one object, and 30 s for those about a whole cluster."""
UNREACHABLE = "unreachable"


class ApiRequestMetrics:
    """Requests of one process."""

    def __init__(self) -> None:
        self._seconds = Histogram(
            "cagrpc_kubernetes_request_duration_seconds",
            "Requests to the API server, each attempt; of a watch until it begins. `unreachable` had no answer.",
            ("verb", "resource", "code"),
            buckets=_SECONDS_BUCKETS,
            registry=None,
        )

    def observe(self, request: RequestInfo, code: int | None, seconds: float) -> None:
        """Count an attempt; `code` is None where no answer came."""
        answered = UNREACHABLE if code is None else str(code)
        self._seconds.labels(request.verb, request.resource, answered).observe(seconds)

    def collectors(self) -> tuple[Collector, ...]:
        return (self._seconds,)
