"""What `/metrics` shows, in Prometheus' format: calls, decisions, and the fleet as its snapshot is when asked."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cagrpc.fleet.model import FleetSnapshot, Phase
from cagrpc.runtime.heartbeat import Heartbeat
from cagrpc.services.decisions import Decision

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0)
_REQUEST_SECONDS_BUCKETS = (1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 86400.0)


class Metrics:
    """A registry of its own, so that several servers can live in one process (and one test)."""

    def __init__(
        self,
        snapshot: Callable[[], FleetSnapshot],
        bookings: Callable[[], int] = lambda: 0,
        checks: Callable[[], Mapping[str, int]] = dict,
        slack: Callable[[], Mapping[str, Any]] = dict,
        left_out: Callable[[], Mapping[str, int]] = dict,
        loops: Callable[[], Iterable[Heartbeat]] = tuple,
    ) -> None:
        """`bookings` is the number of ProvisioningRequests that room is kept for, `checks` counts what was done for
        Kueue's AdmissionChecks, `slack` is what `/slack` says, `left_out` counts unreadable objects by resource,
        `loops` are those of the one writer."""
        self._registry = CollectorRegistry()
        self._calls = Counter(
            "cagrpc_rpc", "Finished gRPC calls by method and code.", ("method", "code"), registry=self._registry
        )
        self._seconds = Histogram(
            "cagrpc_rpc_seconds",
            "Seconds that gRPC calls took, by method and code.",
            ("method", "code"),
            buckets=_SECONDS_BUCKETS,
            registry=self._registry,
        )
        self._decisions = Counter(
            "cagrpc_decisions",
            "BestOptions calls by outcome (chosen, veto) and by what they were ranked by.",
            ("outcome", "ranked_by"),
            registry=self._registry,
        )
        self._requests = Counter(
            "cagrpc_provisioning_requests",
            "What became of ProvisioningRequests, by class and outcome.",
            ("class", "outcome"),
            registry=self._registry,
        )
        self._request_seconds = Histogram(
            "cagrpc_provisioning_request_seconds",
            "Seconds from the creation of a ProvisioningRequest until it was provisioned, by class.",
            ("class",),
            buckets=_REQUEST_SECONDS_BUCKETS,
            registry=self._registry,
        )
        Gauge("cagrpc_bookings", "ProvisioningRequests with a reservation.", registry=self._registry).set_function(
            bookings
        )
        self._registry.register(_Fleet(snapshot))
        self._registry.register(_Checks(checks))
        self._registry.register(_Slack(slack))
        self._registry.register(_LeftOut(left_out))
        self._registry.register(_Loops(loops))

    def observe_call(self, method: str, code: str, seconds: float) -> None:
        """For `status.generic_handler`."""
        self._calls.labels(method, code).inc()
        self._seconds.labels(method, code).observe(seconds)

    def observe_decision(self, decision: Decision) -> None:
        """For `Decisions`."""
        self._decisions.labels("chosen" if decision.chosen else "veto", decision.ranked_by).inc()

    def observe_request(self, class_name: str, outcome: str, seconds: float) -> None:
        """What became of a ProvisioningRequest, `seconds` after it was created."""
        self._requests.labels(class_name, outcome).inc()
        if outcome == "provisioned":
            self._request_seconds.labels(class_name).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Checks(Collector):
    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        done = CounterMetricFamily("cagrpc_kueue", "What was done for Kueue's AdmissionChecks.", labels=("what",))
        for what, count in sorted(self._counts().items()):
            done.add_metric((what,), count)
        yield done


class _Slack(Collector):
    def __init__(self, slack: Callable[[], Mapping[str, Any]]) -> None:
        self._slack = slack

    def collect(self) -> Iterator[Metric]:
        placeholders = GaugeMetricFamily(
            "cagrpc_slack_placeholders",
            "Placeholders by target and state: wanted, held, left_over, and pushed_out of those left over.",
            labels=("target", "state"),
        )
        cost = GaugeMetricFamily(
            "cagrpc_slack_cost_usd_per_hour", "What the nodes' share that placeholders take costs.", labels=("target",)
        )
        for each in self._slack().get("targets", ()):
            for state in ("wanted", "held", "pushed_out", "left_over"):
                placeholders.add_metric((each["target"], state), each[state])
            cost.add_metric((each["target"],), each["cost_usd_per_hour"])
        yield placeholders
        yield cost


class _LeftOut(Collector):
    def __init__(self, left_out: Callable[[], Mapping[str, int]]) -> None:
        self._left_out = left_out

    def collect(self) -> Iterator[Metric]:
        found = GaugeMetricFamily(
            "cagrpc_unreadable_objects",
            "Objects of the cluster that cannot be read and are left out, by resource.",
            labels=("resource",),
        )
        for resource, count in sorted(self._left_out().items()):
            found.add_metric((resource,), count)
        yield found


class _Loops(Collector):
    def __init__(self, loops: Callable[[], Iterable[Heartbeat]]) -> None:
        self._loops = loops

    def collect(self) -> Iterator[Metric]:
        since = GaugeMetricFamily(
            "cagrpc_loop_seconds_since_step", "Seconds since a loop finished its last step.", labels=("loop",)
        )
        failed = CounterMetricFamily("cagrpc_loop_failed_steps", "Steps of loops that failed.", labels=("loop",))
        for each in self._loops():
            since.add_metric((each.name,), each.seconds_since_step)
            failed.add_metric((each.name,), each.failed_steps)
        yield since
        yield failed


class _Fleet(Collector):
    def __init__(self, snapshot: Callable[[], FleetSnapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        targets = GaugeMetricFamily("cagrpc_target_size", "Target size by node group.", labels=("node_group",))
        listed = GaugeMetricFamily(
            "cagrpc_instances", "Listed instances by node group and state.", labels=("node_group", "state")
        )
        for group_id, state in snapshot.groups.items():
            targets.add_metric((group_id,), state.target_size)
            states = Count("failed" if i.error else i.state.value for i in state.instances)
            for name, count in states.items():
                listed.add_metric((group_id, name), count)
        increments = GaugeMetricFamily(
            "cagrpc_increments", "Increments in flight, and the most recent finished ones, by phase.", labels=("phase",)
        )
        phases = Count(status.phase for status in snapshot.increments)
        for phase in Phase:
            increments.add_metric((phase.value,), phases[phase])
        in_flight = sum(phases[phase] for phase in Phase if phase.in_flight)
        yield targets
        yield listed
        yield increments
        yield GaugeMetricFamily("cagrpc_increments_in_flight", "Increments that are not finished.", value=in_flight)
        yield GaugeMetricFamily(
            "cagrpc_pods_in_flight", "Pods that increments in flight are for.", value=len(snapshot.in_flight_pods)
        )
