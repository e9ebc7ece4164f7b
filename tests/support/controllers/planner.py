"""What the planner works on: a real fleet over a real simulated backend, and a cluster that is played: nodes
register some time after their machine runs, a plain scheduler binds one pod after the other (gangs at once, as KEP-4671
does; nominations as kube-scheduler honours them), and the placement controller nominates pods and releases nodes. Time
is moved by hand.

    world = PlannerHarness(groups=[group("a", cpu=4000)])
    world.add(3, cpu=2000)
    world.run(60)
    assert not world.pending()
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cagrpc import errors
from cagrpc.api.core.nodes import HOSTNAME, group_labels
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.cluster.markers import START_UP_TAINT
from cagrpc.cluster.node_info import Reservations
from cagrpc.cluster.state import (
    Arrivals,
    ClusterNode,
    ClusterState,
    IncompleteGang,
    Mirror,
    PendingPod,
    PodRef,
    SlackSeen,
    WaitingPods,
)
from cagrpc.controllers.events import Note
from cagrpc.controllers.placement.controller import PlacementController
from cagrpc.controllers.placement.places import Places
from cagrpc.controllers.placement.release import ReleaseController
from cagrpc.controllers.planning import PlanningController
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.controllers.slack.carriers.carrier import Carrying, Virtual
from cagrpc.controllers.slack.controller import SlackController
from cagrpc.controllers.slack.model import SlackSettings, SlackState
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.journal import Journal
from cagrpc.fleet.model import ExpectedPod, IncrementStatus, InstanceState, Phase, PodKey
from cagrpc.kube.client.client import PatchKind
from cagrpc.runtime.runner import Steps
from solver.model import PODS, Budget, Limit, Node, NodeGroup, PodSet, PodSpec, RunningPods
from solver.model.eligibility import why_not_eligible
from solver.slack.model import Placement, PodCount
from tests.support.fleet import FakeClock, MemoryJournal, run_inline

BOOT_SECONDS = 20.0
REGISTER_SECONDS = 5.0


@dataclass
class SimPod:
    ref: PodRef
    spec: PodSpec
    seen_at: float
    priority: int = 0
    gang: str | None = None
    node: str | None = None
    """Where it is bound."""
    nominated: str = ""
    by_us: bool = False
    """Whether it was us who nominated it."""
    was_expected: bool = False
    seen: int = 1
    cleared: int = 0

    def pending(self) -> PendingPod:
        return PendingPod(self.ref, self.nominated, self.by_us, self.seen, cleared=self.cleared)


@dataclass
class PlayedCluster:
    """Nodes and pods as the API server would have them. A view of it, and `ReadyNodes`."""

    clock: FakeClock
    backend: SimulatedBackend
    groups: dict[str, NodeGroup]
    problem: str | None = None
    pods: dict[str, SimPod] = field(default_factory=dict)
    daemon_sets: tuple[PodSpec, ...] = ()
    extra_nodes: list[Node] = field(default_factory=list)
    """Of nobody's node group."""
    lifted: set[str] = field(default_factory=set)
    """Instances whose Node has our taint no more."""
    changed: Callable[[str, PendingPod | None], object] = lambda _uid, _pod: None
    running_since: dict[str, float] = field(default_factory=dict)
    to_come: dict[str, tuple[PodSpec, int]] = field(default_factory=dict)
    """Pods that workloads (`kind/namespace/name`) still have to create."""
    wanted_at: float | None = None
    """When a workload wanted more of them."""
    gangs: dict[str, int] = field(default_factory=dict)
    """How many pods there must be of a gang; without an entry, as many as there are."""
    scheduling: bool = True
    daemons_come: bool = True
    """Whether DaemonSets' pods run on nodes from the start; otherwise they are always late."""
    mirrors: tuple[Mirror, ...] = ()
    pause_pods: Placement = field(default_factory=dict)
    looks: int = 0
    after_state: Callable[[], object] | None = None
    """Called once after the next look: what happens while a round is planned."""

    # What planner and fleet ask.

    def arrivals(self) -> Arrivals:
        seen = [pod.seen_at for pod in self.unbound()]
        news = [pod.seen_at for pod in self.unbound() if not pod.was_expected]
        news += [self.wanted_at] if self.wanted_at is not None else []
        latest = {"default": max(news)} if news else {}
        return Arrivals(len(seen), min(seen, default=self.wanted_at), latest, len(self.expected()))

    def state(self, *, without: AbstractSet[PodKey] = frozenset()) -> ClusterState:
        self.looks += 1
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

    def ready_instances(self) -> AbstractSet[str]:
        if self.problem is not None:
            raise errors.Unavailable(self.problem)
        return {node.provider_id for node in self.nodes() if node.ready}

    # What the placement controller asks.

    def tell(self, changed: Callable[[str, PendingPod | None], object]) -> None:
        self.changed = changed

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

    def node_names(self) -> dict[str, str]:
        return {each.provider_id: each.node.name for each in self.nodes()}

    # What happens in it.

    def nominate(self, pod: SimPod, node: str, *, by_us: bool = False) -> None:
        pod.cleared += pod.by_us and not node
        pod.nominated, pod.by_us, pod.seen = node, by_us and bool(node), pod.seen + 1
        self.changed(pod.ref.uid, pod.pending())

    def unbound(self) -> list[SimPod]:
        return [pod for pod in self.pods.values() if pod.node is None]

    def nodes(self) -> list[ClusterNode]:
        found = [ClusterNode(self._with_pods(node), "", ready=True, held=False) for node in self.extra_nodes]
        now, running = self.clock(), {}
        for machine in self.backend.list_instances():
            if machine.state is InstanceState.RUNNING and machine.error is None:
                running[machine.id] = self.running_since.get(machine.id, now)
                group = self.groups[machine.node_group]
                name = machine.id.removeprefix("simulated://")
                daemons = [spec for spec in self.daemon_sets if self.daemons_come and _eligible(spec, group)]
                free = _less(group.allocatable, daemons)
                labels = {**group_labels(group), HOSTNAME: name}
                node = Node(name, free, labels, group.taints, allocatable=group.allocatable)
                ready = now >= running[machine.id] + REGISTER_SECONDS
                found.append(ClusterNode(self._with_pods(node), machine.id, ready, held=machine.id not in self.lifted))
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
        """The scheduler: by priority and age, onto the node that it is nominated to, else onto the first with room
        beside the pods that are nominated there; a gang whole or not at all. Who finds no room loses a nomination."""
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
        """Pods of nodes that are gone go too."""
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


class Unnoticed:
    """The cluster, for whoever's looks are not the planner's."""

    def __init__(self, cluster: PlayedCluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def state(self, *, without: AbstractSet[PodKey] = frozenset()) -> ClusterState:
        return self._cluster.read(without)


class ClusterApi:
    """The API server, as the placement controller writes to it."""

    def __init__(self, cluster: PlayedCluster) -> None:
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


@dataclass
class MemoryBook:
    """What is written of the slack, in memory."""

    kept: SlackState = field(default_factory=lambda: SlackState(0.0))

    def placements(self) -> Placement:
        return self.kept.placement

    def write(self, state: SlackState) -> None:
        self.kept = state


class PlannerHarness:
    """All of it. `restart` makes a new process over the same journal, backend and cluster."""

    def __init__(
        self,
        groups: Sequence[NodeGroup],
        limits: Sequence[Limit] = (),
        *,
        settings: PlannerSettings | None = None,
        daemon_sets: Sequence[PodSpec] = (),
        slack: SlackSettings | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.directory = tempfile.TemporaryDirectory()
        self.backend = SimulatedBackend(Path(self.directory.name) / "simulated.sqlite", clock=self.clock)
        self.backend.set_behaviour("*", Behaviour(boot_seconds=BOOT_SECONDS))
        self.groups, self.limits = groups, limits
        self.cluster = PlayedCluster(self.clock, self.backend, {each.id: each for each in groups})
        self.cluster.daemon_sets = tuple(daemon_sets)
        self.settings = settings or PlannerSettings()
        self.slack_settings = slack
        self.book = MemoryBook()
        self.carrier: Carrying = Virtual()
        self.journal: Journal = MemoryJournal()
        self.notes: list[Note] = []
        self.turn: Any = threading.Lock()
        self.reserved: Reservations = {}
        """Room that is kept for others, by node."""
        self.releases = True
        """Whether nodes are released."""
        self.made = 0
        self._start()

    def _start(self) -> None:
        self.fleet = Fleet(
            self.groups,
            self.limits,
            self.backend,
            self.journal,
            submit=run_inline,
            clock=self.clock,
            nodes=self.cluster,
        )
        self.slack = (
            None
            if self.slack_settings is None
            else SlackController(
                self.cluster,
                self.fleet,
                self.slack_settings,
                self.carrier,
                self.book,
                now=self.clock,
                clock=self.clock,
                reservations=self.reservations,
            )
        )
        self.places = Places()
        self.placement = self._placement()
        client: Any = self.cluster_api()
        self.release = ReleaseController(
            client, self.fleet, self.cluster, self.placement, self.places, clock=self.clock
        )
        self.loop = PlanningController(
            self.fleet,
            self.cluster,
            self.settings,
            record=self.notes.append,
            clock=self.clock,
            now=self.clock,
            budget=Budget(deterministic_seconds=1.0),
            reservations=self.reservations,
            turn=self.turn,
            slack=self.slack_state,
            places=self.places,
            lost=lambda: self.placement.news,
        )
        self.planning = Steps(self.loop, self.clock)

    def cluster_api(self) -> Any:
        return ClusterApi(self.cluster)

    def _placement(self) -> PlacementController:
        cluster: Any = Unnoticed(self.cluster)
        return PlacementController(
            self.cluster_api(), self.fleet, cluster, self.places, reservations=self.reservations, clock=self.clock
        )

    def slack_state(self) -> SlackState:
        return SlackState(0.0) if self.slack is None else self.slack.state

    def reservations(self, state: ClusterState) -> Reservations:
        """Those of nodes that are there."""
        return {
            each.node.name: self.reserved[each.node.name] for each in state.nodes if each.node.name in self.reserved
        }

    def restart(self) -> None:
        self.fleet.close()
        assert isinstance(self.journal, MemoryJournal)
        self.journal = MemoryJournal(self.journal.shelf)
        self._start()

    def close(self) -> None:
        self.fleet.close()
        self.backend.close()
        self.directory.cleanup()

    def add(
        self, count: int = 1, *, cpu: int = 1000, priority: int = 0, gang: str | None = None, **more: Any
    ) -> list[str]:
        """Pods come now. Their UIDs."""
        spec = PodSpec((("cpu", cpu),), **more)
        return [self._make(spec, priority, gang) for _ in range(count)]

    def _make(self, spec: PodSpec, priority: int, gang: str | None, workload: str = "") -> str:
        self.made += 1
        ref = PodRef(f"uid-{self.made}", "ns", f"pod-{self.made}", int(self.clock()), workload)
        pod = SimPod(ref, spec, self.clock(), priority, gang, was_expected=bool(workload))
        self.cluster.pods[ref.uid] = pod
        return ref.uid

    def want(self, workload: str, count: int, *, cpu: int = 1000) -> None:
        """A workload wants so many pods more, and has created none of them."""
        self.cluster.to_come[workload] = PodSpec((("cpu", cpu),)), count
        self.cluster.wanted_at = self.clock()

    def create(self, workload: str, count: int = 1) -> list[str]:
        """It creates some of them. Their UIDs."""
        spec, left = self.cluster.to_come[workload]
        self.cluster.to_come[workload] = spec, left - count
        return [self._make(spec, 0, None, workload) for _ in range(count)]

    def replace(self, pod: SimPod) -> str:
        """A workload makes a new pod for one that is gone. Its UID."""
        self.cluster.pods.pop(pod.ref.uid, None)
        return self._make(pod.spec, pod.priority, pod.gang)

    def step(self) -> None:
        """Everybody does what there is to do now."""
        with suppress(errors.Unavailable):
            self.fleet.reconcile()
        self.place()
        for pod in self.cluster.drop_lost_pods():  # their workloads make new ones
            self.replace(pod)
        if self.cluster.scheduling:
            self.cluster.schedule()
        if self.slack is not None:
            self.slack.step()
        self.planning.take()

    def place(self) -> None:
        """The placement controller: pods are nominated, and nodes released."""
        with suppress(errors.Unavailable):
            self.placement.step()
            self.placement.queue.run_due()
            if self.releases:
                self.release.step()
                self.release.queue.run_due()
                self.release.step()

    def run(self, seconds: float, step: float = 1.0) -> None:
        """Time passes."""
        until = self.clock() + seconds
        while self.clock() < until:
            self.step()
            self.clock.advance(min(step, until - self.clock()))
        self.step()

    def pending(self) -> list[str]:
        return [pod.ref.uid for pod in self.cluster.unbound()]

    def increments(self, *phases: Phase) -> list[IncrementStatus]:
        return [each for each in self.fleet.snapshot.increments if not phases or each.phase in phases]

    def targets(self) -> dict[str, int]:
        return {name: each.target_size for name, each in self.fleet.snapshot.groups.items() if each.target_size}


Make = Callable[..., PlannerHarness]
"""`make(*groups, **more)`, closed at the end of the test: the fixture of tests/controllers/planning."""
