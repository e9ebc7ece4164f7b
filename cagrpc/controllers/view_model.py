"""The cluster in numbers: tables of all that planning reads, which sinks fill object by object, and what is made of
them. Thread-safe; no I/O: the objects come from `view`'s reflectors, or from anywhere."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

from cagrpc.controllers.slack.model import Exclusion
from cagrpc.controllers.state import Arrivals, ClusterState, PodRef, SlackSeen
from cagrpc.controllers.view_nodes import Nodes
from cagrpc.controllers.view_objects import Keyed, PodReader, read_node
from cagrpc.controllers.view_pods import Pods
from cagrpc.controllers.view_slack import SlackTable
from cagrpc.controllers.view_waiting import Waiting
from cagrpc.controllers.view_workloads import (
    Values,
    Workload,
    daemon_set,
    deployment,
    job,
    pod_group_of,
    priority_class,
    replica_set,
    stateful_set,
)
from cagrpc.kube.envelopes import Encoding
from cagrpc.kube.reflector import Resource, Sink
from cagrpc.wire.gangs import GangCount
from solver.model import PodSpec
from solver.slack_model import Placement

K = TypeVar("K", bound=Keyed)
K_contra = TypeVar("K_contra", bound=Keyed, contravariant=True)

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
DEPLOYMENTS = "/apis/apps/v1/deployments"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
POD_GROUPS = ("scheduling.k8s.io/v1alpha2", "scheduling.x-k8s.io/v1alpha1", "scheduling.volcano.sh/v1beta1")
"""API groups and versions of PodGroups; a cluster may know any of them, or none."""

_MOST_WARNINGS = 20


@dataclass(frozen=True, slots=True)
class Followed(Generic[K]):
    """A resource, and what is to be fed with it."""

    resource: Resource[K]
    sink: Sink[K]


class _Table(Protocol[K_contra]):
    def keys(self) -> Iterable[str]: ...

    def put(self, obj: K_contra, /) -> None: ...

    def drop(self, key: str, /) -> None: ...


class TableSink(Generic[K]):
    """A table that a reflector fills, under a lock that is held for one object at a time."""

    def __init__(self, table: _Table[K], lock: Lock) -> None:
        self._table = table
        self._lock = lock

    def replaced(self, objects: Iterable[K]) -> None:
        there = set()
        for obj in objects:
            self.applied(obj)
            there.add(obj.key)
        with self._lock:
            for key in set(self._table.keys()) - there:
                self._table.drop(key)

    def applied(self, obj: K) -> None:
        with self._lock:
            self._table.put(obj)

    def deleted(self, obj: K) -> None:
        with self._lock:
            self._table.drop(obj.key)


class ClusterModel:
    def __init__(
        self,
        *,
        gang_label: str,
        schedulers: AbstractSet[str],
        clock: Callable[[], float],
        now: Callable[[], float],
        slack: Exclusion | None = None,
    ) -> None:
        """`clock` gives seconds that only grow, `now` those since the epoch. Pods for other schedulers are not
        planned. `slack` is for whom it holds no room; without it nothing is learnt for the slack."""
        self._lock = Lock()
        self._now = now
        self._nodes = Nodes()
        self._slack = None if slack is None else SlackTable(slack)
        self._pods = Pods(self._nodes, clock, self._slack)
        self._to_come = 0
        self._priorities: Values[int] = Values()
        self._daemon_sets: Values[PodSpec] = Values()
        self._pod_groups: tuple[Values[int | None], ...] = tuple(Values() for _ in POD_GROUPS)
        deployments = [] if slack is None else [DEPLOYMENTS]  # their ReplicaSets say the rest
        reader = PodReader(gang_label, schedulers)
        self.followed: tuple[Followed[Any], ...] = (
            self._fed(Resource(NODES, read_node), self._nodes),
            self._fed(Resource(PODS, reader.read), self._pods),
            self._fed(Resource("/apis/apps/v1/daemonsets", daemon_set), self._daemon_sets),
            self._fed(Resource(PRIORITY_CLASSES, priority_class), self._priorities),
            self._fed(Resource("/apis/apps/v1/replicasets", replica_set), Values(self._changed)),
            self._fed(Resource("/apis/apps/v1/statefulsets", stateful_set), Values(self._changed)),
            self._fed(Resource("/apis/batch/v1/jobs", job), Values(self._changed)),
            *(self._fed(Resource(path, deployment), Values(self._changed)) for path in deployments),
            *(
                self._fed(
                    Resource(f"/apis/{api_version}/podgroups", pod_group_of(api_version), Encoding.JSON, optional=True),
                    table,
                )
                for api_version, table in zip(POD_GROUPS, self._pod_groups, strict=True)
            ),
        )
        """All that is to be followed; a cluster may not know what is optional."""

    def arrivals(self) -> Arrivals:
        with self._lock:
            waiting = self._pods.waiting
            first = next(iter(waiting.values())).since if waiting else None
            last = next(reversed(waiting.values())).since if waiting else None
            return Arrivals(len(waiting), first, last, self._to_come)

    def pod_of(self, uid: str) -> PodRef | None:
        """A pod that waits."""
        with self._lock:
            known = self._pods.waiting.get(uid)
            return known.ref if known else None

    def news_of(self, uid: str) -> int | None:
        """How often a pod that waits was seen; None where it does not wait."""
        with self._lock:
            known = self._pods.waiting.get(uid)
            return known.news if known else None

    def gang(self, name: str) -> GangCount | None:
        with self._lock:
            found = self._pods.classes.gangs.get(name)
            if found is None:
                return None
            said = self._min_counts().get(name)
            return GangCount(
                pending=sum(len(each.waiting) for each in found.classes),
                bound=found.bound,
                held_back=found.held_back,
                min_count=found.annotated() if said is None else said,
            )

    def pause_pods(self) -> Placement:
        with self._lock:
            return {} if self._slack is None else self._slack.pause_pods()

    def ready_instances(self) -> AbstractSet[str]:
        with self._lock:
            return self._nodes.ready()

    def held_nodes(self) -> Mapping[str, str]:
        with self._lock:
            return self._nodes.held()

    def node_names(self) -> Mapping[str, str]:
        with self._lock:
            return self._nodes.names()

    def state(self, without: AbstractSet[str], expected: frozenset[PodSpec] = frozenset()) -> ClusterState:
        with self._lock:
            classes = self._pods.classes
            if self._slack is not None:
                expected |= self._slack.expected()
            seen = classes.seen(expected)
            waiting = Waiting(
                classes,
                seen,
                self._priorities.of,
                self._min_counts(),
                now_seconds=self._now(),
                without=without,
            )
            return ClusterState(
                waiting=waiting.pods(),
                nodes=self._nodes.shown(seen, classes.sight()),
                daemon_sets=tuple(spec for _, spec in sorted(self._daemon_sets.of.items(), key=lambda each: each[0])),
                incomplete_gangs=waiting.incomplete,
                warnings=self._warnings(),
                consumers=self._pods.consumers.shown(),
                half_consumers=self._pods.consumers.half(),
                slack=self._slack.shown(seen) if self._slack is not None else SlackSeen(),
            )

    def _min_counts(self) -> Mapping[str, int | None]:
        """Of the PodGroups, by the name of their gang."""
        return ChainMap(*(table.of for table in self._pod_groups))

    def _warnings(self) -> tuple[str, ...]:
        found = sorted(self._pods.warnings.values())
        more = len(found) - _MOST_WARNINGS
        return (*found[:_MOST_WARNINGS], *([f"and {more} more such pods"] if more > 0 else []))

    def _fed(self, resource: Resource[K], table: _Table[K]) -> Followed[K]:
        return Followed(resource, TableSink(table, self._lock))

    def _changed(self, before: Workload | None, after: Workload | None) -> None:
        self._to_come += (after.to_come if after else 0) - (before.to_come if before else 0)
        if self._slack is not None:
            self._slack.put_workload(before, after)
