"""The cluster that a planner is tested with: nodes register some time after their machine runs, and a plain scheduler
binds one pod after the other (gangs at once, as KEP-4671 does; nominations as kube-scheduler honours them). It answers
what cluster state and API server would. The harness that moves its time is in `planner`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from cagrpc import errors
from cagrpc.api.core.nodes import HOSTNAME, START_UP_TAINT, group_labels
from cagrpc.api.provisioning.objects import TemplatePod
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.cluster.state import (
    Arrivals,
    ClusterNode,
    ClusterState,
    IncompleteGang,
    Mirror,
    PendingPod,
    PlannedTemplate,
    PodRef,
    SlackSeen,
    WaitingPods,
)
from cagrpc.fleet.model import ExpectedPod, InstanceState, PodKey
from cagrpc.kube.client.client import PatchKind
from solver.model import PODS, Node, NodeGroup, PodSet, PodSpec, RunningPods
from solver.model.eligibility import why_not_eligible
from solver.slack.model import Placement, PodCount
from tests.support.fleet import FakeClock

REGISTER_SECONDS = 5.0


@dataclass
class SimPod:
    ref: PodRef
    spec: PodSpec
    seen_at: float
    priority: int = 0
    gang: str | None = None
    node: str | None = None
    """The node that it is bound to."""
    nominated: str = ""
    by_us: bool = False
    """Whether cagrpc nominated it."""
    was_expected: bool = False
    seen: int = 1
    cleared: int = 0

    def pending(self) -> PendingPod:
        return PendingPod(self.ref, self.nominated, self.by_us, self.seen, cleared=self.cleared)


@dataclass
class FakeCluster:
    """Nodes and pods as the API server would have them, read as cluster state and as `ReadyNodes`."""

    clock: FakeClock
    backend: SimulatedBackend
    groups: dict[str, NodeGroup]
    problem: str | None = None
    pods: dict[str, SimPod] = field(default_factory=dict)
    daemon_sets: tuple[PodSpec, ...] = ()
    extra_nodes: list[Node] = field(default_factory=list)
    """Nodes of no configured node group."""
    lifted: set[str] = field(default_factory=set)
    """Instances whose Node no longer has the start-up taint."""
    changed: Callable[[str, PendingPod | None], object] = lambda _uid, _pod: None
    running_since: dict[str, float] = field(default_factory=dict)
    to_come: dict[str, tuple[PodSpec, int]] = field(default_factory=dict)
    """Pods that workloads (`kind/namespace/name`) have yet to create."""
    wanted_at: float | None = None
    """When a workload was last scaled up."""
    templates: dict[TemplatePod, PlannedTemplate] = field(default_factory=dict)
    drivers: frozenset[str] = frozenset()
    """Of CSI, that attach volumes."""
    gangs: dict[str, int] = field(default_factory=dict)
    """Minimum count by gang; a gang without an entry needs as many pods as it has."""
    scheduling: bool = True
    tells_ages: bool = False
    """Whether nodes say when they were created."""
    daemons_come: bool = True
    """Whether DaemonSets' pods run on nodes from the start; otherwise they are always late."""
    mirrors: tuple[Mirror, ...] = ()
    pause_pods: Placement = field(default_factory=dict)
    state_reads: int = 0
    after_state: Callable[[], object] | None = None
    """Called once after the next read of the state: what happens while a round is planned."""

    # Read by the planner and the fleet.

    def arrivals(self) -> Arrivals:
        seen = [pod.seen_at for pod in self.unbound()]
        news = [pod.seen_at for pod in self.unbound() if not pod.was_expected]
        news += [self.wanted_at] if self.wanted_at is not None else []
        latest = {"default": max(news)} if news else {}
        return Arrivals(len(seen), min(seen, default=self.wanted_at), latest, len(self.expected()))

    def state(self, *, without: AbstractSet[PodKey] = frozenset()) -> ClusterState:
        self.state_reads += 1
        state = self.read(without)
        happens, self.after_state = self.after_state, None
        if happens is not None:
            happens()
        return state

    def expected(self) -> list[SimPod]:
        now = self.clock()
        return [
            SimPod(PodRef(ExpectedPod(of, number), "ns", f"{of}-{number:05d}", int(now), of), spec, now)
            for of, (spec, count) in self.to_come.items()
            for number in range(count)
        ]

    def read(self, without: AbstractSet[PodKey] = frozenset()) -> ClusterState:
        sets: defaultdict[Any, list[SimPod]] = defaultdict(list)
        incomplete = {gang.name for gang in self._incomplete()}
        for pod in [*self.unbound(), *self.expected()]:
            if pod.ref.key in without or pod.gang in incomplete:
                continue
            sets[pod.spec, pod.priority, pod.gang].append(pod)
        waiting = []
        for (spec, priority, gang), pods in sets.items():
            pods.sort(key=lambda pod: pod.ref.created_at_seconds)
            waited = int(self.clock() - pods[0].seen_at)
            pod_set = PodSet(f"ns/{pods[0].ref.name}", spec, len(pods), priority, waited, gang)
            waiting.append(WaitingPods(pod_set, tuple(pod.ref for pod in pods)))
        return ClusterState(
            tuple(waiting),
            tuple(self.nodes()),
            self.daemon_sets,
            tuple(self._incomplete()),
            slack=SlackSeen(self._counts(), self.mirrors, self.pause_pods),
            templates=self.templates,
            drivers=self.drivers,
            expected=frozenset(pod.ref.key for pod in self.expected() if isinstance(pod.ref.key, ExpectedPod)),
        )

    def _counts(self) -> tuple[PodCount, ...]:
        counts = Counter((pod.spec, pod.ref.namespace) for pod in self.pods.values())
        return tuple(PodCount(spec, count, namespace) for (spec, namespace), count in counts.items())

    def _incomplete(self) -> Iterator[IncompleteGang]:
        for gang, needed in self.gangs.items():
            there = sum(pod.gang == gang for pod in self.pods.values())
            if there < needed:
                yield IncompleteGang(gang, there, needed, tuple(pod.ref for pod in self.unbound() if pod.gang == gang))

    def pod_of(self, key: PodKey) -> PodRef | None:
        if isinstance(key, ExpectedPod):
            return next((pod.ref for pod in self.expected() if pod.ref.key == key), None)
        pod = self.pods.get(key)
        return pod.ref if pod is not None and pod.node is None else None

    def lacking_labels(self, _wanted: Mapping[str, AbstractSet[str]], /) -> AbstractSet[str]:
        return frozenset()

    def ready_instances(self) -> AbstractSet[str]:
        if self.problem is not None:
            raise errors.Unavailable(self.problem)
        return {node.provider_id for node in self.nodes() if node.ready}

    # Read by the placement controller.

    def tell(self, changed: Callable[[str, PendingPod | None], object], bound: Callable[[str, float], object]) -> None:
        self.changed, self.bound = changed, bound

    def in_use(self, name: str) -> bool:
        return any(pod.node == name for pod in self.pods.values())

    def pending(self, uids: Iterable[str]) -> dict[str, PendingPod]:
        found = ((uid, self.pods.get(uid)) for uid in uids)
        return {uid: pod.pending() for uid, pod in found if pod is not None and pod.node is None}

    def nominated_by_us(self) -> dict[str, PendingPod]:
        return {uid: pod.pending() for uid, pod in self.pods.items() if pod.node is None and pod.by_us}

    def nodes_of(self, uids: Iterable[str]) -> dict[str, str]:
        found = ((uid, self.pods.get(uid)) for uid in uids)
        return {uid: pod.node for uid, pod in found if pod is not None and pod.node is not None}

    def held_nodes(self) -> dict[str, str]:
        if self.problem is not None:
            raise errors.Unavailable(self.problem)
        return {each.provider_id: each.node.name for each in self.nodes() if each.held}

    def held_at(self, name: str) -> int:
        return 0 if f"simulated://{name}" not in self.lifted else -1

    def dedicated_nodes(self) -> frozenset[str]:
        return frozenset()

    def node_names(self) -> dict[str, str]:
        return {each.provider_id: each.node.name for each in self.nodes()}

    # Changes.

    def nominate(self, pod: SimPod, node: str, *, by_us: bool = False) -> None:
        pod.cleared += pod.by_us and not node
        pod.nominated, pod.by_us, pod.seen = node, by_us and bool(node), pod.seen + 1
        self.changed(pod.ref.uid, pod.pending())

    def unbound(self) -> list[SimPod]:
        return [pod for pod in self.pods.values() if pod.node is None]

    def nodes(self) -> list[ClusterNode]:
        found = [ClusterNode(self._with_pods(node), "", ready=True, held=False) for node in self.extra_nodes]
        now, running = self.clock(), {}
        for machine in self.backend.list_instances().instances:
            if machine.state is InstanceState.RUNNING and machine.error is None:
                running[machine.id] = self.running_since.get(machine.id, now)
                group = self.groups[machine.node_group]
                name = machine.id.removeprefix("simulated://")
                daemons = [spec for spec in self.daemon_sets if self.daemons_come and _eligible(spec, group)]
                free = _less(group.allocatable, daemons)
                labels = {**group_labels(group), HOSTNAME: name}
                node = Node(name, free, labels, group.taints, allocatable=group.allocatable)
                ready = now >= running[machine.id] + REGISTER_SECONDS
                held, since = machine.id not in self.lifted, int(running[machine.id]) if self.tells_ages else 0
                found.append(ClusterNode(self._with_pods(node), machine.id, ready, held, created_at_seconds=since))
        self.running_since = running
        return found

    def _with_pods(self, node: Node) -> Node:
        bound = [pod.spec for pod in self.pods.values() if pod.node == node.name]
        return replace(
            node,
            free=_less(node.free, bound),
            running=(*node.running, *(RunningPods(spec, count) for spec, count in Counter(bound).items())),
        )

    def schedule(self) -> None:
        """Bind pods as kube-scheduler would, by priority and age: to the nominated node, else to the first with room
        beside the pods nominated there; gangs whole or not at all. A pod without room loses its nomination."""
        done = {gang.name for gang in self._incomplete()}
        for pod in sorted(self.unbound(), key=lambda pod: (-pod.priority, pod.ref.created_at_seconds)):
            if pod.gang is None:
                self._bind([pod])
            elif pod.gang not in done:
                done.add(pod.gang)
                self._bind([each for each in self.unbound() if each.gang == pod.gang])

    def _bind(self, pods: Sequence[SimPod]) -> None:
        for pod in pods:
            first = sorted(self.nodes(), key=lambda each: each.node.name != pod.nominated)
            pod.node = next((each.node.name for each in first if self._takes(each, pod)), None)
        if all(pod.node is not None for pod in pods):
            for pod in pods:
                self.changed(pod.ref.uid, None)
                self.bound(pod.ref.uid, 0.0)
            return
        for pod in pods:
            pod.node = None
            if pod.nominated:
                self.nominate(pod, "")

    def _takes(self, each: ClusterNode, pod: SimPod) -> bool:
        if not each.ready or each.held or why_not_eligible(pod.spec, each.node.labels, each.node.taints) is not None:
            return False
        others = [
            other.spec
            for other in self.unbound()
            if other is not pod and other.nominated == each.node.name and other.priority >= pod.priority
        ]
        free = _less(each.node.free, others)
        return all(free.get(name, 0) >= amount for name, amount in (*pod.spec.requests, (PODS, 1)))

    def drop_lost_pods(self) -> list[SimPod]:
        """Delete the pods of nodes that are gone, and return them."""
        names = {node.node.name for node in self.nodes()}
        lost = [pod for pod in self.pods.values() if pod.node is not None and pod.node not in names]
        for pod in lost:
            del self.pods[pod.ref.uid]
        return lost


def _eligible(spec: PodSpec, group: NodeGroup) -> bool:
    return why_not_eligible(spec, group_labels(group), group.taints) is None


def _less(amounts: Any, specs: Iterable[PodSpec]) -> dict[str, int]:
    left = dict(amounts)
    for spec in specs:
        for name, amount in (*spec.requests, (PODS, 1)):
            left[name] = left.get(name, 0) - amount
    return left


class UncountedReads:
    """The cluster as other controllers read it: without counting in `state_reads`, which are the planner's."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def state(self, *, without: AbstractSet[PodKey] = frozenset()) -> ClusterState:
        return self._cluster.read(without)


class ClusterApi:
    """The part of the API server that the placement controller writes to."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster

    def get(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        if name not in self.cluster.node_names().values():
            raise errors.NotFound(path)
        taints = [{"key": START_UP_TAINT}] if self.cluster.held_at(name) >= 0 else []
        return {"metadata": {"resourceVersion": "1"}, "spec": {"taints": taints}}

    def patch(self, path: str, body: Any, _kind: PatchKind = PatchKind.MERGE, **_more: str) -> dict[str, Any]:
        name = path.removesuffix("/status").rpartition("/")[2]
        if "/pods/" in path:
            self._nominate(name, body)
        elif isinstance(body, list) or "taints" in body.get("spec", {}):
            self.cluster.lifted.add(f"simulated://{name}")
        return {}

    def _nominate(self, name: str, operations: Sequence[Any]) -> None:
        uid, before, change = operations
        pod = self.cluster.pods.get(uid["value"])
        if pod is None or pod.ref.name != name:
            raise errors.NotFound(f"pod {name}")
        if pod.node is not None or (before["value"] or "") != pod.nominated:
            raise errors.InvalidInput("a test failed")
        self.cluster.nominate(pod, change.get("value", ""), by_us=True)
