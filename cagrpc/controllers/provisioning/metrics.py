"""Metrics of ProvisioningRequests."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.registry import Collector

from cagrpc.controllers.provisioning.writing import Outcome

_SECONDS_BUCKETS = (1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 86400.0)
"""From capacity that stands to a day in the queue."""


class RequestMetrics:
    """Counters of outcomes, and the number of bookings at the time of the scrape."""

    def __init__(self, bookings: Callable[[], int]) -> None:
        """`bookings` returns the number of requests with a reservation."""
        self._outcomes = Counter(
            "cagrpc_provisioning_requests",
            "What became of ProvisioningRequests, by class and outcome.",
            ("class", "outcome"),
            registry=None,
        )
        self._seconds = Histogram(
            "cagrpc_provisioning_request_duration_seconds",
            "How long it took from the creation of a ProvisioningRequest until it was provisioned, by class.",
            ("class",),
            buckets=_SECONDS_BUCKETS,
            registry=None,
        )
        self._bookings = Gauge("cagrpc_bookings", "ProvisioningRequests with reserved capacity.", registry=None)
        self._bookings.set_function(bookings)

    def observe(self, outcome: Outcome) -> None:
        """Count what became of a request."""
        self._outcomes.labels(outcome.class_name, outcome.outcome).inc()
        if outcome.outcome == "provisioned":
            self._seconds.labels(outcome.class_name).observe(outcome.seconds)

    def collectors(self) -> tuple[Collector, ...]:
        """Return them for a registry."""
        return self._outcomes, self._seconds, self._bookings
