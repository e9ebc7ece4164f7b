"""The controller of the fleet: its steps, the page of increments, metrics of sizes. What a step does is in
`cagrpc.fleet`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import IncrementStatus, Phase
from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.controller import Controller, Json, JsonList, JsonPage
from cagrpc.runtime.heartbeat import Heartbeat

NAME = "a step of the fleet"
STEP_SECONDS = 1.0
_MOST_ORPHANS = 100
"""Named in the status; the metric counts all."""


class FleetController(Controller):
    """Reconciles increments with the backend, and shows them."""

    name = NAME
    every_seconds = STEP_SECONDS
    back_off = BackOff(STEP_SECONDS, STEP_SECONDS)  # deadlines of increments pass meanwhile

    def __init__(
        self,
        fleet: Fleet,
        heartbeat: Heartbeat,
        backend_pages: Mapping[str, JsonPage] = MappingProxyType({}),
        wake: threading.Event | None = None,
    ) -> None:
        """`heartbeat` is beaten by the fleet at each call of the backend, `wake` set where a step has something to do;
        `backend_pages` are the backend's."""
        self._fleet = fleet
        self._backend_pages = backend_pages
        self.heartbeat = heartbeat
        self.wake = wake

    def step(self) -> None:
        """Reconcile the journal with the backend."""
        self._fleet.reconcile()

    def status(self) -> Json:
        """Return the number of increments in flight, why the backend would create nothing, and its orphans."""
        return {
            "increments_in_flight": sum(each.phase.in_flight for each in self._fleet.snapshot.increments),
            "backend_problem": self._fleet.backend_problem,
            "orphans": {each.id: each.node_group for each in self._fleet.snapshot.orphans[:_MOST_ORPHANS]},
        }

    def pages(self) -> Mapping[str, JsonPage]:
        """Return `/increments`, and the backend's pages."""
        increments = JsonPage(lambda: JsonList(self._fleet.snapshot.increments, increment_as_json))
        return {"/increments": increments, **self._backend_pages}

    def collectors(self) -> Iterable[Collector]:
        """Return sizes, instances and increments."""
        return (_FleetMetrics(self._fleet),)


class _FleetMetrics(Collector):
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        snapshot = self._fleet.snapshot
        targets = GaugeMetricFamily("cagrpc_target_size", "Target size by node group.", labels=("node_group",))
        listed = GaugeMetricFamily(
            "cagrpc_instances", "Listed instances by node group and state.", labels=("node_group", "state")
        )
        for group_id, state in snapshot.groups.items():
            targets.add_metric((group_id,), state.target_size)
            states = Counter("failed" if i.error else i.state.value for i in state.instances)
            for name, count in states.items():
                listed.add_metric((group_id, name), count)
        increments = GaugeMetricFamily(
            "cagrpc_increments", "Increments in flight, and the most recent finished ones, by phase.", labels=("phase",)
        )
        phases = Counter(status.phase for status in snapshot.increments)
        for phase in Phase:
            increments.add_metric((phase.value,), phases[phase])
        in_flight = sum(phases[phase] for phase in Phase if phase.in_flight)
        orphans = GaugeMetricFamily(
            "cagrpc_orphaned_instances", "Instances of node groups that are not served.", labels=("node_group",)
        )
        for name, count in Counter(each.node_group for each in snapshot.orphans).items():
            orphans.add_metric((name,), count)
        yield orphans
        yield targets
        yield listed
        yield increments
        yield GaugeMetricFamily("cagrpc_increments_in_flight", "Increments that are not finished.", value=in_flight)
        yield GaugeMetricFamily(
            "cagrpc_pods_in_flight", "Pods that increments in flight are for.", value=len(snapshot.in_flight_pods)
        )


def increment_as_json(status: IncrementStatus) -> dict[str, Any]:
    """Return an increment as `/increments` shows it."""
    return {
        "id": status.id,
        "phase": status.phase.value,
        "deltas": dict(status.increment.deltas),
        "origin": status.increment.origin.value,
        "pods": len(status.increment.pods),
        "requests": sorted(status.increment.requests),
        "reason": status.increment.reason,
        "plan": status.increment.plan,
        "cost_usd_per_hour": status.increment.cost_usd_per_hour,
        "gap": status.increment.gap,
        "message": status.message,
        "short_groups": list(status.short_groups),
        "held": [
            {
                "instance": node.instance_id,
                "node_group": node.node_group,
                "pods": len(node.pods),
            }
            for node in status.held
        ],
        "created_at_seconds": status.created_at_seconds,
        "deadline_at_seconds": status.deadline_at_seconds,
    }
