"""The cluster in memory: tables of all that planning reads, which sinks fill object by object, and the `ClusterState`
made of them. Thread-safe; no I/O: the objects come from `view`'s reflectors, or from anywhere."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

from cagrpc.api.core.gangs import GangCount
from cagrpc.cluster.exclusion import Exclusion
from cagrpc.cluster.state import Arrivals, ClusterState, PendingPod, PodRef, SlackSeen
from cagrpc.cluster.view.budgets import POD_DISRUPTION_BUDGETS, DisruptionBudgets, disruption_budget
from cagrpc.cluster.view.classes import Classes
from cagrpc.cluster.view.expected import ExpectedPods
from cagrpc.cluster.view.nodes import NodeTable
from cagrpc.cluster.view.objects import Keyed, Named, PodReader, read_node
from cagrpc.cluster.view.planning_triggers import PlanningTriggers
from cagrpc.cluster.view.pods import PodTable
from cagrpc.cluster.view.references import References
from cagrpc.cluster.view.slack import SlackTable
from cagrpc.cluster.view.storage import (
    CLAIMS,
    CLASSES,
    VOLUMES,
    CsiNodes,
    Storage,
    csi_node,
    read_attachment,
    read_claim,
    read_class,
    read_volume,
)
from cagrpc.cluster.view.waiting import Waiting
from cagrpc.cluster.view.workloads import (
    Priorities,
    Values,
    Workload,
    WorkloadReader,
    daemon_set,
    ending,
    pod_group_key,
    pod_group_of,
    priority_class,
    quota,
)
from cagrpc.fleet.model import ExpectedPod, PodKey
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.envelopes import Encoding, ObjectIdentity
from cagrpc.kube.informer.informers import Informer
from cagrpc.kube.informer.reflector import Reflector, Resource
from cagrpc.kube.informer.unreadable import UnreadableObjects
from cagrpc.runtime.clock import EpochClock, MonotonicClock
from solver.model import PodSpec
from solver.slack.model import Placement

K = TypeVar("K", bound=Keyed)
K_contra = TypeVar("K_contra", bound=Keyed, contravariant=True)

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
DEPLOYMENTS = "/apis/apps/v1/deployments"
JOB_SETS = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
POD_GROUPS = ("scheduling.k8s.io/v1alpha2", "scheduling.x-k8s.io/v1alpha1", "scheduling.volcano.sh/v1beta1")
"""API groups and versions of PodGroups; a cluster may serve any of them, or none."""

_MOST_WARNINGS = 20


class Table(Protocol[K_contra]):
    def keys(self) -> Iterable[str]: ...

    def put(self, obj: K_contra, /) -> None: ...

    def drop(self, key: str, /) -> None: ...


class TableSink(Generic[K]):
    """Feeds a table from a reflector, under a lock that is held for one object at a time. An object that the table
    rejects is not in it, and affects no other."""

    def __init__(
        self,
        table: Table[K],
        lock: Lock,
        kind: str,
        key: Callable[[ObjectIdentity], str] = str,
        listed: Callable[[], object] = lambda: None,
    ) -> None:
        """`kind` is for the log; `key` gives the table's key of a deleted object; `listed` is called, under the lock,
        whenever the table has all objects."""
        self._listed = listed
        self._table = table
        self._lock = lock
        self._key = key
        self.left_out: UnreadableObjects[str] = UnreadableObjects(kind)

    def replaced(self, objects: Iterable[K]) -> None:
        there: set[str] = set()
        left_out: set[str] = set()
        for obj in objects:
            (there if self._put(obj) else left_out).add(obj.key)
        with self._lock:
            for key in set(self._table.keys()) - there:
                self._drop(key)
            self._listed()
        self.left_out.only(left_out)

    def applied(self, obj: K) -> None:
        self._put(obj)

    def deleted(self, of: ObjectIdentity) -> None:
        key = self._key(of)
        self.left_out.discard(key)
        with self._lock:
            self._drop(key)

    def _put(self, obj: K) -> bool:
        """Put the object; return whether the table has it now."""
        with self._lock:
            try:
                self._table.put(obj)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this object's alone
                self.left_out.add(obj.key, error)
                self._drop(obj.key)
                return False
        self.left_out.discard(obj.key)
        return True

    def _drop(self, key: str) -> None:
        try:
            self._table.drop(key)
        except Exception as error:  # noqa: BLE001 - the same
            self.left_out.add(key, error)


@dataclass(frozen=True, slots=True)
class Followed(Generic[K]):
    """A resource, and the sink that it feeds."""

    resource: Resource[K]
    sink: TableSink[K]

    def informer(self, client: Client, *, needed: bool = True) -> Informer:
        """Return its informer, which feeds the sink once it is started."""
        return Informer(Reflector(client, self.resource, self.sink), needed, self.sink.left_out)


def by_uid(of: ObjectIdentity) -> str:
    """Return the key of a pod."""
    return of.uid or str(of)


class ClusterModel:
    def __init__(
        self,
        *,
        gang_label: str,
        schedulers: AbstractSet[str],
        clock: MonotonicClock,
        now: EpochClock,
        namespace: str,
        slack: Exclusion | None = None,
        expects: bool = False,
    ) -> None:
        """`clock` gives monotonic seconds, `now` seconds since the epoch. Pods of other schedulers are not planned.
        `namespace` is cagrpc's own. `slack` has the exclusions of the slack; without it nothing is read for the slack.
        With `expects` pods that workloads still have to create are among the waiting ones."""
        self._lock = Lock()
        self._now = now
        self._nodes = NodeTable()
        self._slack = None if slack is None else SlackTable(slack)
        classes = Classes()
        self._triggers = PlanningTriggers(clock)
        self._references = References()
        self._storage = Storage(self._references)
        self._expected = (
            ExpectedPods(classes, clock, now, self._triggers, self._storage, self._references) if expects else None
        )
        self._pods = PodTable(
            self._nodes, clock, classes, self._triggers, self._slack, self._expected, self._storage, self._references
        )
        self._priorities = Priorities()
        self._daemon_sets: Values[PodSpec] = Values()
        self._budgets = DisruptionBudgets()
        self._pod_groups: tuple[Values[int | None], ...] = tuple(Values() for _ in POD_GROUPS)
        reader = PodReader(gang_label, schedulers, namespace)
        self.followed: tuple[Followed[Any], ...] = (
            self._fed(Resource(NODES, read_node), self._nodes),
            self._fed(Resource(PODS, reader.read), self._pods, by_uid),
            self._fed(Resource("/apis/apps/v1/daemonsets", daemon_set), self._daemon_sets),
            self._fed(Resource(PRIORITY_CLASSES, priority_class), self._priorities),
            self._fed(Resource(POD_DISRUPTION_BUDGETS, disruption_budget, optional=True), self._budgets),
            *self._of_storage(),
            *(self._workloads(gang_label, schedulers, namespace) if expects or slack is not None else ()),
            *(
                self._fed(
                    Resource(f"/apis/{api_version}/podgroups", pod_group_of(api_version), Encoding.JSON, optional=True),
                    table,
                    pod_group_key(api_version),
                )
                for api_version, table in zip(POD_GROUPS, self._pod_groups, strict=True)
            ),
        )
        """All resources to watch; a cluster may not serve the optional ones."""

    def arrivals(self) -> Arrivals:
        with self._lock:
            self._references.read_again()
            waiting, expected = self._pods.waiting, 0
            if self._expected is not None:
                self._expected.expire()
                expected = len(self._expected.refs)
            news = self._triggers.latest()
            first = next(iter(waiting.values())).since if waiting else max(news.values(), default=None)
            return Arrivals(len(waiting), first, news, expected)

    def pod_of(self, key: PodKey) -> PodRef | None:
        """Return a waiting or expected pod."""
        with self._lock:
            if isinstance(key, ExpectedPod):
                return None if self._expected is None else self._expected.refs.get(key)
            known = self._pods.waiting.get(key)
            return known.ref if known else None

    def tell(self, changed: Callable[[str, PendingPod | None], object]) -> None:
        """From now on, of each change of a pending pod: its UID, and None where it is pending no longer. What is called
        must be quick, and ask nothing of the view."""
        with self._lock:
            self._pods.pending.changed = changed

    def pending(self, uids: Iterable[str]) -> dict[str, PendingPod]:
        """Return those of them that are not bound."""
        with self._lock:
            of = self._pods.pending.of
            return {uid: of[uid] for uid in uids if uid in of}

    def nodes_of(self, uids: Iterable[str]) -> dict[str, str]:
        """Return the nodes of those of them that are bound."""
        with self._lock:
            return self._pods.nodes_of(uids)

    def nominated_by_us(self) -> dict[str, PendingPod]:
        """Return pending pods that we have nominated."""
        with self._lock:
            of = self._pods.pending.of
            return {uid: of[uid] for uid in self._pods.pending.ours}

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

    def lacking_labels(self, wanted: Mapping[str, AbstractSet[str]]) -> AbstractSet[str]:
        with self._lock:
            return self._nodes.lacking_labels(wanted)

    def held_nodes(self) -> Mapping[str, str]:
        with self._lock:
            return self._nodes.held()

    def held_at(self, name: str) -> int:
        with self._lock:
            return self._nodes.held_at(name)

    def node_names(self) -> Mapping[str, str]:
        with self._lock:
            return self._nodes.names()

    def undrainable(self) -> Mapping[str, str]:
        """Return the nodes that cannot be drained now, each with the reason."""
        with self._lock:
            return self._budgets.undrainable(self._nodes.movable())

    def state(self, without: AbstractSet[PodKey], expected: frozenset[PodSpec] = frozenset()) -> ClusterState:
        with self._lock:
            self._references.read_again()
            if self._expected is not None:
                self._expected.expire()
            classes = self._pods.classes
            if self._slack is not None:
                expected |= self._slack.expected()
            seen = classes.seen(expected)
            waiting = Waiting(
                classes,
                seen,
                self._priorities,
                self._min_counts(),
                now_seconds=self._now(),
                without=without,
            )
            pods = waiting.pods()
            makers = {pod.workload for each in pods for pod in each.pods} if self._expected is not None else ()
            return ClusterState(
                waiting=pods,
                nodes=self._nodes.shown(seen, classes.sight(), self._storage.drivers),
                daemon_sets=tuple(spec for _, spec in sorted(self._daemon_sets.of.items(), key=lambda each: each[0])),
                incomplete_gangs=waiting.incomplete,
                warnings=self._warnings(),
                consumers=self._pods.consumers.shown(),
                half_consumers=self._pods.consumers.half(),
                slack=self._slack.shown(seen) if self._slack is not None else SlackSeen(),
                roots=self._expected.roots(makers) if self._expected is not None else {},
                expected=frozenset(self._expected.refs) if self._expected is not None else frozenset(),
                drivers=self._storage.drivers,
                attach_limits=self._nodes.limits_of_types(),
            )

    def _min_counts(self) -> Mapping[str, int | None]:
        """Return the minimum counts of PodGroups, by gang."""
        return ChainMap(*(table.of for table in self._pod_groups))

    def _warnings(self) -> tuple[str, ...]:
        found = sorted(self._pods.warnings.values())
        more = len(found) - _MOST_WARNINGS
        rest = [f"and {more} more such pods"] if more > 0 else []
        return (*found[:_MOST_WARNINGS], *rest, *self._storage.warnings)

    def _fed(
        self,
        resource: Resource[K],
        table: Table[K],
        key: Callable[[ObjectIdentity], str] = str,
        listed: Callable[[], object] = lambda: None,
    ) -> Followed[K]:
        return Followed(resource, TableSink(table, self._lock, resource.name, key, listed))

    def _of_storage(self) -> Iterator[Followed[Any]]:
        """What the volumes of pods depend on. Where it may not be listed, volumes are not planned, and a warning says
        so."""
        storage = self._storage
        of_pods: tuple[tuple[str, Callable[[dict[str, Any]], Named[Any]], Callable[[Any, Any], None]], ...] = (
            (CLASSES, read_class, storage.put_class),
            (VOLUMES, read_volume, storage.put_volume),
            (CLAIMS, read_claim, storage.put_claim),
        )
        for path, read, put in of_pods:
            yield self._fed(
                Resource(path, read, Encoding.JSON, optional=True), Values(put), listed=partial(storage.listed, path)
            )
        limits = Resource("/apis/storage.k8s.io/v1/csinodes", csi_node, Encoding.JSON, optional=True)
        yield self._fed(limits, CsiNodes(self._nodes))
        attachments = Resource(
            "/apis/storage.k8s.io/v1/volumeattachments", read_attachment, Encoding.JSON, optional=True
        )
        yield self._fed(attachments, Values(self._nodes.put_attachment))

    def _workloads(self, gang_label: str, schedulers: AbstractSet[str], namespace: str) -> Iterator[Followed[Any]]:
        def fed(path: str, read: Callable[[WorkloadReader], Callable[[Any], Named[Workload]]]) -> Followed[Any]:
            reader = WorkloadReader(PodReader(gang_label, schedulers, namespace))  # each is for one reflector's thread
            optional = path == JOB_SETS
            encoding = Encoding.JSON if optional else Encoding.PROTOBUF
            return self._fed(Resource(path, read(reader), encoding, optional=optional), Values(self._changed))

        yield fed(DEPLOYMENTS, lambda reader: reader.deployment)
        yield fed("/apis/apps/v1/replicasets", lambda reader: reader.replica_set)
        yield fed("/apis/apps/v1/statefulsets", lambda reader: reader.stateful_set)
        yield fed("/apis/batch/v1/jobs", lambda reader: reader.job)
        if self._expected is not None:
            yield fed(JOB_SETS, lambda reader: reader.job_set)
            namespaces = Values(self._expected.put_ending)
            yield self._fed(Resource("/api/v1/namespaces", ending, optional=True), namespaces)
            quotas = Values(self._expected.put_quota)
            yield self._fed(Resource("/api/v1/resourcequotas", quota, Encoding.JSON, optional=True), quotas)

    def _changed(self, before: Workload | None, after: Workload | None) -> None:
        if self._expected is not None:
            self._expected.put_workload(before, after)
        if self._slack is not None:
            self._slack.put_workload(before, after)
