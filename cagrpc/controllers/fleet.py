"""The controller of the fleet: its steps, the pages of node groups and increments, metrics of both. What a step does
is in `cagrpc.fleet`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from prometheus_client import Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from cagrpc.api.capacity_quotas import LIMIT_PREFIX
from cagrpc.cluster.quotas import quota_words, quotas_among
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import GroupState, IncrementStatus, InstanceState, Phase, PodKey
from cagrpc.fleet.records import IncrementRecord
from cagrpc.runtime import tracing
from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.controller import Controller, Json, JsonList, JsonPage
from cagrpc.runtime.heartbeat import Heartbeat
from cagrpc.runtime.metrics import AtScrape, gauge, gauges
from solver.model.objects import UNLIMITED_SIZE

if TYPE_CHECKING:  # not needed without a cluster
    from cagrpc.cluster.state import PodRef

NAME = "a step of the fleet"
STEP_SECONDS = 1.0
_MOST_PODS = 5
"""Named of each increment in flight."""
_MOST_ORPHANS = 100
"""Named in the status; the metric counts all."""
_SECONDS_BUCKETS = (1.0, 5.0, 15.0, 30.0, 60.0, 90.0, 120.0, 180.0, 240.0, 300.0, 420.0, 600.0, 900.0)
"""From a simulated machine to CA's 15 minutes, before which every deadline lies; most clouds take 1 to 4."""
_REACHED = {Phase.READY, Phase.DONE, Phase.ROLLING_BACK, Phase.ROLLED_BACK}


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
        increments: IncrementMetrics | None = None,
        backend_status: Callable[[], Mapping[str, str]] = dict,
        pod_of: Callable[[PodKey], PodRef | None] = lambda _: None,
    ) -> None:
        """`heartbeat` is beaten by the fleet at each call of the backend, `wake` set where a step has something to do;
        `backend_pages` and `backend_status` are the backend's. The fleet reports phases to `increments`. `pod_of`
        knows the pods that wait."""
        self._pod_of = pod_of
        self._fleet = fleet
        self._phases = increments or IncrementMetrics()
        self._backend_pages = backend_pages
        self._backend_status = backend_status
        self.heartbeat = heartbeat
        self.wake = wake

    def step(self) -> None:
        self._fleet.reconcile()

    def status(self) -> Json:
        """Return the number of increments in flight, why the backend would create nothing, what it says itself, its
        orphans, and how much of the cluster's CapacityQuotas is used."""
        return {
            "increments_in_flight": sum(each.phase.in_flight for each in self._fleet.snapshot.increments),
            "backend_problem": self._fleet.backend_problem,
            "backend": dict(self._backend_status()),
            "orphans": {each.id: each.node_group for each in self._fleet.snapshot.orphans[:_MOST_ORPHANS]},
            "capacity_quotas": {
                each.name.removeprefix(LIMIT_PREFIX): quota_words(each)
                for each in quotas_among(self._fleet.snapshot.limits)
            },
        }

    def pages(self) -> Mapping[str, JsonPage]:
        return {
            "/nodegroups": JsonPage(lambda: JsonList([*self._fleet.snapshot.groups.values()], group_as_json)),
            "/increments": JsonPage(self._increments),
            **self._backend_pages,
        }

    def _increments(self) -> JsonList:
        snapshot = self._fleet.snapshot
        running = frozenset(
            instance.id
            for state in snapshot.groups.values()
            for instance in state.instances
            if instance.state is InstanceState.RUNNING
        )
        return JsonList(
            snapshot.increments, lambda each: {**increment_as_json(each, running), "pods_like": self._examples(each)}
        )

    def _examples(self, status: IncrementStatus) -> list[str]:
        """Return some of the pods that wait for an increment in flight, `namespace/name`."""
        if not status.phase.in_flight:
            return []
        found = (self._pod_of(each) for each in islice(status.increment.pods, _MOST_PODS))
        return sorted(f"{each.namespace}/{each.name}" for each in found if each is not None)

    def collectors(self) -> Iterable[Collector]:
        """Return sizes, instances and increments, and what is out of reach."""
        return AtScrape(lambda: _metrics(self._fleet)), *self._phases.collectors()


class IncrementMetrics:
    """How long increments took to reach their phases."""

    def __init__(self) -> None:
        self._seconds = Histogram(
            "cagrpc_increment_phase_duration_seconds",
            "From an increment's creation until it was `ready`, `done` (released), `rolling-back` and `rolled-back`;"
            " origin is `cluster-autoscaler` or `cagrpc`.",
            ("phase", "origin"),
            buckets=_SECONDS_BUCKETS,
            registry=None,
        )

    def moved(self, record: IncrementRecord, seconds: float) -> None:
        """Count an increment that has reached its phase, for `FleetListeners.moved`."""
        if record.phase in _REACHED:
            reached = self._seconds.labels(record.phase.value, record.increment.origin.value)
            reached.observe(seconds, exemplar=tracing.exemplar(record.id))

    def collectors(self) -> tuple[Collector, ...]:
        return (self._seconds,)


def _metrics(fleet: Fleet) -> Iterator[Metric]:
    snapshot = fleet.snapshot
    groups, phases = snapshot.groups.items(), Counter(each.phase for each in snapshot.increments)
    yield gauges(
        "cagrpc_node_group_target_size",
        "Target size of a node group.",
        ("node_group",),
        {(group_id,): state.target_size for group_id, state in groups},
    )
    yield gauges(
        "cagrpc_instances",
        "Listed instances: `creating`, `running`, `deleting` or `failed`.",
        ("node_group", "state"),
        {(group_id, name): count for group_id, state in groups for name, count in _instances(state).items()},
    )
    yield gauges(
        "cagrpc_orphaned_instances",
        "Instances of node groups that nobody serves.",
        ("node_group",),
        {(name,): count for name, count in Counter(each.node_group for each in snapshot.orphans).items()},
    )
    yield gauges(
        "cagrpc_increments_in_flight",
        "Increments that are not finished: `planned`, `creating`, `ready` or `rolling-back`.",
        ("phase",),
        {(phase.value,): phases[phase] for phase in Phase if phase.in_flight},
    )
    pods = len(snapshot.in_flight_pods)
    yield gauge("cagrpc_pods_in_flight", "Pods that increments in flight are for.", pods)
    yield gauges(
        "cagrpc_dependency_up",
        "1 while `journal`, `backend` and `cluster` are in reach.",
        ("dependency",),
        {(name,): problem is None for name, problem in fleet.problems.items()},
    )
    refusing = "1 while the backend answers, and would create nothing (`backend_problem` in `/status`)."
    yield gauge("cagrpc_backend_refusing", refusing, fleet.backend_problem is not None)


def _instances(state: GroupState) -> Counter[str]:
    return Counter("failed" if each.error else each.state.value for each in state.instances)


def group_as_json(state: GroupState) -> dict[str, Any]:
    """Return a node group as `/nodegroups` shows it."""
    group = state.group
    return {
        "id": group.id,
        "provisioner": group.provisioner,
        "weight": group.weight,
        "instance_type": group.instance_type,
        "zone": group.zone,
        "capacity_type": group.capacity_type,
        "price_usd_per_hour": group.price_usd_per_hour,
        "min_size": group.min_size,
        "max_size": None if group.max_size >= UNLIMITED_SIZE else group.max_size,
        "target_size": state.target_size,
        "instances": dict(_instances(state)),
    }


def increment_as_json(status: IncrementStatus, running: AbstractSet[str]) -> dict[str, Any]:
    """Return an increment as `/increments` shows it. `running` are ids of instances."""
    return {
        "id": status.id,
        "phase": status.phase.value,
        "deltas": dict(status.increment.deltas),
        "nodes": sum(status.increment.deltas.values()),
        "nodes_running": sum(node.instance_id in running for node in status.nodes) if status.phase.in_flight else None,
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
