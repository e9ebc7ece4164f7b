"""Metrics of the process as a whole: its version, whether it is ready and leads, and what the operating system knows of
it. Those of its parts are beside what they measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector


class ServerMetrics(Collector):
    """Collects them for one server."""

    def __init__(self, ready: Callable[[], bool], leads: Callable[[], bool]) -> None:
        self._ready = ready
        self._leads = leads
        self._version = _version()
        self._process = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("cagrpc_build", "The version of cagrpc.", value={"version": self._version})
        yield GaugeMetricFamily("cagrpc_ready", "1 while `/readyz` answers 200.", value=self._ready())
        yield GaugeMetricFamily(
            "cagrpc_leader", "1 for the leader; without a Lease every server leads.", value=self._leads()
        )
        yield from self._process.collect()


def _version() -> str:
    try:
        return version("cagrpc")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
