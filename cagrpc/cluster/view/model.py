"""The cluster in memory: tables of all that planning reads, which sinks fill object by object, and the `ClusterState`
made of them. Thread-safe; no I/O: the objects come from `view`'s informers, or from anywhere."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from time import sleep
from typing import Any, TypeVar

from cagrpc.api import capacity_quotas
from cagrpc.api.capacity_quotas import CapacityQuota
from cagrpc.api.core import volumes
from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL, GangCount
from cagrpc.api.core.movability import MovingRules
from cagrpc.api.core.runtime_classes import read_runtime_class
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULERS, EXPENDABLE_BELOW
from cagrpc.api.devices.objects import Device
from cagrpc.api.encoding.json_documents import Problems
from cagrpc.api.provisioning.objects import TemplatePod
from cagrpc.cluster.exclusion import Exclusion
from cagrpc.cluster.markers import NAMESPACE
from cagrpc.cluster.quotas import quota_limits
from cagrpc.cluster.state import Arrivals, ClusterState, PendingPod, PodRef, SlackSeen
from cagrpc.cluster.view.bound import POD_DISRUPTION_BUDGETS, BoundSnapshot, DisruptionBudgets, disruption_budget
from cagrpc.cluster.view.classes import Classes, Sight
from cagrpc.cluster.view.context import (
    NAMESPACES,
    OF_RUNTIME_CLASSES,
    RUNTIME_CLASSES,
    ObservedNamespace,
    ReadingContext,
    read_namespace,
)
from cagrpc.cluster.view.devices import with_devices
from cagrpc.cluster.view.expected import ExpectedPods, PlanningTriggers
from cagrpc.cluster.view.nodes import NodeTable
from cagrpc.cluster.view.objects import Keyed, ObservedPod, PodReader, read_node, reader_of
from cagrpc.cluster.view.pods import PodTable
from cagrpc.cluster.view.references import Reference
from cagrpc.cluster.view.requirements import Requirements
from cagrpc.cluster.view.sinks import Followed, Table, Values, by_uid
from cagrpc.cluster.view.slack import SlackTable
from cagrpc.cluster.view.storage import (
    CAPACITIES,
    CLAIMS,
    CLASSES,
    DRIVERS,
    VOLUMES,
)
from cagrpc.cluster.view.templates import DaemonSetTable, TemplateTable, daemon_set
from cagrpc.cluster.view.waiting import Waiting
from cagrpc.cluster.view.workloads import (
    EVENTS,
    FAILED_CREATE,
    FailedCreates,
    Priorities,
    Workload,
    WorkloadReader,
    failed_create,
    pod_group_key,
    pod_group_of,
    priority_class,
    quota,
)
from cagrpc.fleet.model import ExpectedPod, PodKey
from cagrpc.kube.client.envelopes import Encoding, ObjectIdentity
from cagrpc.kube.informer.resource import Resource
from cagrpc.runtime.clock import EpochClock, MonotonicClock
from cagrpc.runtime.progress import DEADLINE_SECONDS
from solver.model import Labels, Limit, NodeGroup, Taint
from solver.slack.model import Placement

K = TypeVar("K", bound=Keyed)

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
DEPLOYMENTS = "/apis/apps/v1/deployments"
JOB_SETS = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
POD_GROUPS = (
    "scheduling.k8s.io/v1alpha2",
    "scheduling.k8s.io/v1alpha3",
    "scheduling.k8s.io/v1beta1",
    "scheduling.x-k8s.io/v1alpha1",
    "scheduling.volcano.sh/v1beta1",
)
"""API groups and versions of PodGroups; a cluster may serve any of them, or none."""

_MOST_WARNINGS = 20
_READ_AT_A_TIME = 200
"""How many pods, or what takes as long, are read under one hold of the lock."""
_PAUSE_SECONDS = 0.0001
"""How long the lock is free between two holds: whoever waits for it has to wake."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What is read of a cluster."""

    gang_label: str = DEFAULT_GANG_LABEL
    schedulers: AbstractSet[str] = DEFAULT_SCHEDULERS
    """Pods of other schedulers are not planned."""
    expendable_below: int = EXPENDABLE_BELOW
    """Nor are pods of a lower priority, and no node is kept for them."""
    namespace: str = NAMESPACE
    """The namespace of cagrpc's own objects."""
    slack: Exclusion | None = None
    """The exclusions of the slack; without it nothing is read for the slack."""
    expects: bool = False
    """Whether pods that workloads still have to create are among the waiting ones."""
    progress_deadline_seconds: float = DEADLINE_SECONDS
    """How long they are expected without progress of their controllers."""
    devices: Mapping[str, tuple[Device, ...]] | None = None
    """Those that DRA drivers publish of new nodes, by node group."""
    labels_of_groups: Mapping[str, Labels] | None = None
    """The labels of such nodes, which are not ready before the devices are published."""
    moving: MovingRules | None = None
    """The rules for moving pods, with which it remembers who is bound."""
    startup_taints: AbstractSet[Taint] = frozenset()
    """Those that nodes register with and lose by themselves."""
    capacity_quotas: bool = True
    """Whether CapacityQuotas are read."""


class ClusterModel:
    """All that is known of a cluster. Who fills it puts objects into the sinks of `followed`."""

    def __init__(self, settings: ModelSettings, clock: MonotonicClock, now: EpochClock) -> None:
        gang_label, schedulers, namespace = settings.gang_label, settings.schedulers, settings.namespace
        slack, expects, moving = settings.slack, settings.expects, settings.moving
        self._moving = moving
        self._lock = Lock()
        self._expected_templates: Callable[[], frozenset[TemplatePod]] = frozenset
        self._now = now
        self._nodes = NodeTable(settings.startup_taints, settings.expendable_below)
        self._expendable_below = settings.expendable_below
        self._slack = None if slack is None else SlackTable(slack)
        classes = Classes()
        self._triggers = PlanningTriggers(clock)
        requirements = Requirements(clock, settings.devices, settings.labels_of_groups)
        self._references = requirements.references
        self._storage, self._devices = requirements.storage, requirements.devices
        self._context = ReadingContext(self._references)
        # Each reader is for one thread: this one is used under the lock.
        pods = partial(PodReader, gang_label, schedulers, namespace, expendable_below=settings.expendable_below)
        again = pods(self._context.namespaces, evictions=moving is not None)
        self._reader, self._workload_reader = again, WorkloadReader(again, self._context)
        self._expected = (
            ExpectedPods(classes, clock, now, self._triggers, requirements, settings.progress_deadline_seconds)
            if expects
            else None
        )
        self._pods = PodTable(
            self._nodes,
            classes,
            self._triggers,
            requirements,
            self._with_namespaces,
            self._slack,
            self._expected,
        )
        self._templates = TemplateTable(requirements, classes)
        self._daemon_sets = DaemonSetTable(self._context, requirements)
        self._priorities = Priorities()
        self._budgets = DisruptionBudgets()
        self._capacity_quotas: tuple[Values[CapacityQuota], ...] = tuple(Values() for _ in capacity_quotas.PATHS)
        self._quota_limits: tuple[tuple[object, ...] | None, tuple[Limit, ...]] = None, ()
        """What they were made of, and the limits."""
        self._min_count = requirements.pod_groups.min_count
        # Those of the informers know no Namespaces: whoever selects these is read once more.
        reader = pods(evictions=moving is not None)
        self.followed: tuple[Followed[Any], ...] = (
            self._fed(Resource(NODES, read_node), self._nodes),
            self._fed(Resource(PODS, reader.read), self._pods, by_uid),
            self._fed(
                Resource(NAMESPACES, read_namespace, optional=True),
                Values(self._namespace_changed),
                listed=self._context.namespaces_listed,
            ),
            self._json(RUNTIME_CLASSES, "RuntimeClass", read_runtime_class, self._context.runtime_classes),
            self._fed(Resource("/apis/apps/v1/daemonsets", daemon_set), self._daemon_sets),
            self._fed(Resource(PRIORITY_CLASSES, priority_class), self._priorities),
            self._fed(Resource(POD_DISRUPTION_BUDGETS, disruption_budget, optional=True), self._budgets),
            *self._of_storage(),
            *self._devices.followed(self._json),
            *(self._workloads(pods) if expects or slack is not None else ()),
            *(
                self._fed(
                    Resource(f"/apis/{api_version}/podgroups", pod_group_of(api_version), Encoding.JSON, optional=True),
                    requirements.pod_groups.table(),
                    pod_group_key(api_version),
                )
                for api_version in POD_GROUPS
            ),
            *(self._of_capacity_quotas() if settings.capacity_quotas else ()),
        )
        """All resources to watch; a cluster may not serve the optional ones."""

    def put_copies(self, key: str, copies: Iterable[tuple[PodRef, str]]) -> None:
        """Put more pods like one that is there, which differ from it in nothing that planning reads but their nodes,
        and never change. The node of one that waits is empty."""
        with self._lock:
            self._pods.put_copies(key, copies)

    def arrivals(self) -> Arrivals:
        """Return counts of pending pods, in constant time."""
        self._read_due()
        with self._lock:
            waiting, expected = self._pods.waiting, 0
            if self._expected is not None:
                self._expected.expire()
                expected = len(self._expected.refs)
            news = self._triggers.latest()
            first = next(iter(waiting.values())) if waiting else max(news.values(), default=None)
            return Arrivals(len(waiting), first, news, expected)

    def shares(self) -> tuple[Mapping[str, float], int]:
        """Return, by kind, how much of its share the namespace uses that uses most; and how many pods are left out
        because their namespace has used it up."""
        with self._lock:
            of_constraints = self._pods.classes.shares
            of_selectors, beyond = self._devices.shares()
            used = {"constraints": of_constraints.most_used, "device_selectors": of_selectors}
            if self._expected is not None:
                used["expected_pods"] = self._expected.most_used
            return used, of_constraints.left_out + beyond

    def pod_of(self, key: PodKey) -> PodRef | None:
        """Return a waiting or expected pod."""
        with self._lock:
            if isinstance(key, ExpectedPod):
                return None if self._expected is None else self._expected.ref(key)
            return self._pods.waiting_ref(key)

    def subscribe(
        self, changed: Callable[[str, PendingPod | None], object], bound: Callable[[str, float], object]
    ) -> None:
        """From now on, `changed` of each change of a pending pod: its UID, and None where it is pending no longer;
        `bound` of each that is bound: its UID, and the seconds since it was seen first. What is called must be quick,
        and ask nothing of the view."""
        with self._lock:
            self._pods.pending.changed, self._pods.pending.bound = changed, bound

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
            return self._gang(name) if name in self._pods.classes.gangs else None

    def _gang(self, name: str) -> GangCount:
        found = self._pods.classes.gangs[name]
        said = self._min_count(name)
        min_count, to_come = found.annotated() if said is None else said, 0
        if min_count is None and self._expected is not None:
            makers = {ref.workload for each in found.classes for ref in each.waiting.values()}
            to_come = sum(map(self._expected.to_come, makers))
        pending = sum(len(each.waiting) for each in found.classes)
        return GangCount(pending, found.bound, found.held_back + to_come, min_count)

    def pause_pods(self) -> Placement:
        """Return where the slack's pause pods are that the scheduler has bound. They give way: neither is their room
        taken from what is free, nor are they among any pods."""
        with self._lock:
            return {} if self._slack is None else self._slack.pause_pods()

    def ready_instances(self) -> AbstractSet[str]:
        with self._lock:
            ready, unpublished = self._nodes.ready(), self._nodes.held_where(self._devices.is_unpublished)
            return ready - unpublished if unpublished else ready

    def labels(self, wanted: Mapping[str, AbstractSet[str]]) -> Mapping[str, Mapping[str, str]]:
        """See `cagrpc.fleet.backend.ReadyNodes`."""
        with self._lock:
            return self._nodes.labels(wanted)

    def held_nodes(self) -> Mapping[str, str]:
        with self._lock:
            return self._nodes.held()

    def held_at(self, name: str) -> int:
        """Return the index of our start-up taint in this node's taints; -1 without it."""
        with self._lock:
            return self._nodes.held_at(name)

    def is_cordoned(self, name: str) -> bool:
        """Return whether a node is known and takes no further pods."""
        with self._lock:
            return self._nodes.is_cordoned(name)

    def in_use(self, name: str) -> bool:
        """Return whether pods are bound to this node that would have to go elsewhere if it went."""
        with self._lock:
            return any(pods for _, pods in self._nodes.movable([name]))

    def dedicated_nodes(self) -> frozenset[str]:
        """Return the names of nodes whose start-up taint has a value, which the pods planned there tolerate."""
        with self._lock:
            return self._nodes.dedicated()

    def node_names(self) -> Mapping[str, str]:
        """Return provider ids and names of all nodes."""
        with self._lock:
            return self._nodes.names()

    def quota_limits(
        self, groups: Mapping[str, NodeGroup], counted: Callable[[], AbstractSet[str]]
    ) -> tuple[Limit, ...]:
        """Return CapacityQuotas as limits of these node groups. `counted` returns the provider ids of nodes that the
        groups' target sizes count; the others count by themselves."""
        with self._lock:
            quotas = self._known_quotas()
            nodes = self._nodes.bare() if quotas else ()
        if not quotas:
            return ()
        asked, (before, found) = (quotas, groups, nodes, counted()), self._quota_limits
        if before is None or before[1] is not groups or before[2] is not nodes or before != asked:
            beside = (each for each in nodes if each.provider_id not in asked[3])
            found = quota_limits(quotas, groups.values(), beside)
            self._quota_limits = asked, found
        return found

    def undrainable(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return which of these nodes cannot be drained now, each with the reason."""
        with self._lock:
            return self._budgets.undrainable(self._nodes.movable(names))

    def expect(self, templates: Callable[[], frozenset[TemplatePod]]) -> None:
        """Read the pods of templates too that do not exist yet and are planned all the same: what their volumes and
        claims come to, and what their constraints select on nodes. `templates` is called by each `state`, on any
        thread."""
        self._expected_templates = templates

    def state(self, without: AbstractSet[PodKey] = frozenset(), *, with_bound: bool = False) -> ClusterState:
        """Return one consistent state, without these pending pods, which are served already. With `with_bound` it says
        who is bound, and why it may not be moved, of a model with rules for moving pods; with 100,000 pods that takes
        a second."""
        templates = self._expected_templates()
        with self._lock:
            self._templates.keep(templates)
        self._read_due()
        self._devices.read_expressions()  # of the pods that were read until now
        with self._lock:
            self._devices.expressions_changed()
        self._read_due(known=True)
        with self._lock:
            for owner in self._devices.unread():
                self._triggers.record(owner)
            if self._expected is not None:
                self._expected.expire()
            classes = self._pods.classes
            expected = self._templates.specs()
            if self._slack is not None:
                expected |= self._slack.expected()
            seen = classes.seen(expected)
            waiting = Waiting(
                classes,
                seen,
                self._priorities,
                self._gang,
                now_seconds=self._now(),
                without=without,
                expendable_below=self._expendable_below,
            )
            pods = waiting.pods()
            makers = {pod.workload for each in pods for pod in each.pods} if self._expected is not None else ()
            nodes = self._nodes.shown(Sight(seen, classes.sight()), self._storage.drivers, classes.differing)
            found = ClusterState(
                waiting=pods,
                nodes=nodes,
                devices=self._devices.matching(nodes),
                devices_of_types=self._devices.of_types(),
                devices_configured=self._devices.configured,
                daemon_sets=tuple(self._daemon_sets.specs()),
                incomplete_gangs=waiting.incomplete,
                warnings=self._warnings(),
                consumers=self._pods.consumers.shown(),
                consumers_missing_annotation=self._pods.consumers.missing_annotation(),
                slack=self._slack.shown(seen) if self._slack is not None else SlackSeen(),
                roots=self._expected.roots(makers) if self._expected is not None else {},
                expected=frozenset(self._expected.refs) if self._expected is not None else frozenset(),
                templates=self._templates.shown(),
                drivers=self._storage.drivers,
                attach_limits=self._nodes.limits_of_types(),
                capacity_quotas=self._known_quotas(),
            )
            bound = None
            if with_bound:
                tables = self._pods, self._nodes, self._budgets, self._devices
                bound = BoundSnapshot(*tables, classes.sight(), self._now())
        # Evaluating selectors, and laying out 100,000 pods, takes its time: what is watched goes on meanwhile.
        if bound is not None and self._moving is not None:
            found = replace(found, bound=bound.shown(self._moving))
        return replace(found, nodes=with_devices(nodes, found.devices)) if found.devices.any else found

    def _read_due(self, *, known: bool = False) -> None:
        """Read again whom changes concern: a few at a time, between which what is watched goes on. What is still due
        when all might have been read four times, because others change all the while, is for the next time. What is
        `known` of a state that is being made is no news."""
        most = self._references.read + 4 * self._references.readers
        while True:
            with self._lock, self._triggers.known(known):
                if self._storage.read_again(_READ_AT_A_TIME) or self._references.read > most:
                    return
            sleep(_PAUSE_SECONDS)

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
        return Followed(resource, table, self._lock, key, listed)

    def _json(
        self,
        path: str,
        kind: str,
        read: Callable[[Mapping[str, Any], Problems], Any],
        table: Values[Any],
        listed: Callable[[], object] = lambda: None,
    ) -> Followed[Any]:
        """Follow a kind that is read from JSON; a cluster may not serve it."""
        return self._fed(Resource(path, reader_of(kind, read), Encoding.JSON, optional=True), table, listed=listed)

    def _of_storage(self) -> Iterator[Followed[Any]]:
        """What the volumes of pods depend on. Where it may not be listed, volumes are not planned, and a warning says
        so."""
        storage, room, nodes = self._storage, self._storage.room, self._nodes
        limits = Values[dict[str, int]](lambda name, _, limits: nodes.put_limits(name, limits))
        csi = "/apis/storage.k8s.io/v1"
        storage.volume_changed = nodes.put_volume
        for path, kind, read, table, listed in (
            (CLASSES, "StorageClass", volumes.storage_class, storage.classes, storage.listed),
            (VOLUMES, "PersistentVolume", volumes.volume, storage.volumes, storage.listed),
            (CLAIMS, "PersistentVolumeClaim", volumes.claim, storage.claims, storage.listed),
            (CAPACITIES, "CSIStorageCapacity", volumes.storage_capacity, room.capacities, room.listed),
            (DRIVERS, "CSIDriver", volumes.keeps_count, room.drivers, room.listed),
            (f"{csi}/csinodes", "CSINode", volumes.attach_limits, limits, str),
            (f"{csi}/volumeattachments", "VolumeAttachment", volumes.attachment, Values(nodes.put_attachment), str),
        ):
            yield self._json(path, kind, read, table, partial(listed, path))

    def _of_capacity_quotas(self) -> Iterator[Followed[Any]]:
        for path, table in zip(capacity_quotas.PATHS, self._capacity_quotas, strict=True):
            yield self._json(path, "CapacityQuota", capacity_quotas.read_capacity_quota, table)

    def _known_quotas(self) -> dict[str, CapacityQuota]:
        return dict(ChainMap(*(table.of for table in self._capacity_quotas)))

    def _workloads(self, pods: Callable[[], PodReader]) -> Iterator[Followed[Any]]:
        def fed(path: str, kind: str) -> Followed[Any]:
            read = partial(WorkloadReader(pods(), self._context).read, kind)  # each is for one informer's thread
            optional = path == JOB_SETS
            encoding = Encoding.JSON if optional else Encoding.PROTOBUF
            return self._fed(Resource(path, read, encoding, optional=optional), Values(self._changed))

        yield fed(DEPLOYMENTS, "deployment")
        yield fed("/apis/apps/v1/replicasets", "replica_set")
        yield fed("/apis/apps/v1/statefulsets", "stateful_set")
        yield fed("/apis/batch/v1/jobs", "job")
        if self._expected is not None:
            yield fed(JOB_SETS, "job_set")
            yield self._json("/api/v1/resourcequotas", "ResourceQuota", quota, Values(self._expected.put_quota))
            events = reader_of("Event", failed_create)
            failed = Resource(EVENTS, events, Encoding.JSON, {"fieldSelector": FAILED_CREATE}, optional=True)
            yield self._fed(failed, FailedCreates(self._expected.refuse))

    def _namespace_changed(self, name: str, _: ObservedNamespace | None, after: ObservedNamespace | None) -> None:
        self._context.put_namespace(name, after)
        if self._expected is not None:
            self._expected.put_ending(name, ends=after is not None and after.ends)

    def _with_namespaces(self, seen: ObservedPod) -> tuple[ObservedPod, Iterable[Reference]]:
        """Read a pod again that selects Namespaces by their labels, as these are now; return what it was read with."""
        read = seen if seen.source is None else self._reader.read(seen.source)
        return read, map(self._context.follow, read.pod.namespace_selectors)

    def _changed(self, key: str, before: Workload | None, after: Workload | None) -> None:
        source = after
        for each in (before, after):
            if each is not None:
                self._references.drop(("workload", each.key))
        if source is not None and source.source is not None:
            after = self._workload_reader.read(*source.source).value
            of = [OF_RUNTIME_CLASSES, *map(self._context.follow, after.namespace_selectors)]
            self._references.put(("workload", source.key), of, lambda: self._changed(key, source, source))
        if self._expected is not None:
            self._expected.put_workload(before, after)
        if self._slack is not None:
            self._slack.put_workload(before, after)
