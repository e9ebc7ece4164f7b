"""Metrics of gRPC calls."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector

from cagrpc.runtime import tracing

_SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0)
"""From an answer that is ready to the 5 s after which CA gives a call up."""


class CallMetrics:
    """Calls of one process, by method and code."""

    def __init__(self) -> None:
        self._calls = Counter(
            "cagrpc_rpc", "Finished gRPC calls by method and code.", ("method", "code"), registry=None
        )
        self._seconds = Histogram(
            "cagrpc_rpc_duration_seconds",
            "How long finished gRPC calls took, by method and code.",
            ("method", "code"),
            buckets=_SECONDS_BUCKETS,
            registry=None,
        )

    def observe(self, method: str, code: str, seconds: float, increments: Sequence[str] = ()) -> None:
        """Count a finished call: for `RpcServer(observe=...)`. `increments` are ids of those that it made."""
        self._calls.labels(method, code).inc()
        exemplar = tracing.exemplar(increments[0]) if increments else None
        self._seconds.labels(method, code).observe(seconds, exemplar)

    def collectors(self) -> tuple[Collector, ...]:
        """Return them for a registry."""
        return self._calls, self._seconds
