"""Metrics of gRPC calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from cagrpc.runtime import tracing
from cagrpc.services.grpc.ready import ReadyCalls

SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0)
"""From an answer that is ready to the 5 s after which CA gives a call up."""


class CallMetrics:
    """Calls of one process, by method and code."""

    def __init__(self, ready: Callable[[], Iterable[ReadyCalls]] = lambda: ()) -> None:
        """`ready` returns those that were answered without Python, which count with the others."""
        self._ready = ready
        self._calls = Counter(
            "cagrpc_rpc", "Finished gRPC calls by method and code.", ("method", "code"), registry=None
        )
        self._seconds = Histogram(
            "cagrpc_rpc_duration_seconds",
            "How long finished gRPC calls took, by method and code.",
            ("method", "code"),
            buckets=SECONDS_BUCKETS,
            registry=None,
        )

    def observe(self, method: str, code: str, seconds: float, increments: Sequence[str] = ()) -> None:
        """Count a finished call: for `RpcServer(observe=...)`. `increments` are ids of those that it made."""
        self._calls.labels(method, code).inc()
        exemplar = tracing.exemplar(increments[0]) if increments else None
        self._seconds.labels(method, code).observe(seconds, exemplar)

    def collectors(self) -> tuple[Collector, ...]:
        return (_Together(self._calls, self._seconds, self._ready),)


class _Together(Collector):
    """What was counted here and what was counted by a front, in the same series."""

    def __init__(self, calls: Counter, seconds: Histogram, ready: Callable[[], Iterable[ReadyCalls]]) -> None:
        self._calls = calls
        self._seconds = seconds
        self._ready = ready

    def collect(self) -> Iterator[Metric]:
        more: dict[tuple[str, str, str, str], float] = {}
        for each in self._ready():
            labels = each.method, "OK"
            self._calls.labels(*labels)  # the series, where there is none yet
            self._seconds.labels(*labels)
            calls = sum(each.by_bucket)
            more["cagrpc_rpc_total", *labels, ""] = calls
            more["cagrpc_rpc_duration_seconds_count", *labels, ""] = calls
            more["cagrpc_rpc_duration_seconds_sum", *labels, ""] = each.seconds
            for bound, up_to in zip((*SECONDS_BUCKETS, float("inf")), accumulate(each.by_bucket), strict=True):
                at = floatToGoString(bound)  # type: ignore[no-untyped-call] # it has no types
                more["cagrpc_rpc_duration_seconds_bucket", *labels, at] = up_to
        for metric in (*self._calls.collect(), *self._seconds.collect()):
            metric.samples = [
                each._replace(
                    value=each.value
                    + more.get((each.name, each.labels["method"], each.labels["code"], each.labels.get("le", "")), 0)
                )
                for each in metric.samples
            ]
            yield metric
