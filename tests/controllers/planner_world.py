"""A world for the planner loop: a real fleet over a real simulated backend, and a cluster that is played: nodes
register some time after their machine runs, a plain scheduler binds one pod after the other (gangs at once, as KEP-4671
does), and what the start-up controller does is done at once. Time is moved by hand.

    world = World(groups=[group("a", cpu=4000)])
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
from cagrpc.backends.simulated import SimulatedBackend
from cagrpc.backends.simulated_behaviour import Behaviour
from cagrpc.controllers.events import Note
from cagrpc.controllers.kept import Kept
from cagrpc.controllers.planner import PlannerLoop
from cagrpc.controllers.settings import PlannerSettings, Realise
from cagrpc.controllers.slack.carriers import Carrying, Virtual
from cagrpc.controllers.slack.loop import SlackLoop
from cagrpc.controllers.slack.model import SlackSettings, SlackState
from cagrpc.controllers.state import (
    Arrivals,
    ClusterNode,
    ClusterState,
    IncompleteGang,
    Mirror,
    PodRef,
    SlackSeen,
    WaitingPods,
)
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.journal import Journal
from cagrpc.fleet.model import IncrementStatus, InstanceState, Phase
from cagrpc.wire.nodes import HOSTNAME, group_labels
from solver.eligibility import why_not_eligible
from solver.model import PODS, Budget, Limit, Node, NodeGroup, PodSet, PodSpec, RunningPods
from solver.slack_model import Placement, PodCount
from tests.fleet.support import FakeClock, MemoryJournal, run_inline

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


@dataclass
class FakeCluster:
    """Nodes and pods as the API server would have them. A view of it, and `ReadyNodes`."""

    clock: FakeClock
    backend: SimulatedBackend
    groups: dict[str, NodeGroup]
    problem: str | None = None
    pods: dict[str, SimPod] = field(default_factory=dict)
    daemon_sets: tuple[PodSpec, ...] = ()
    extra_nodes: list[Node] = field(default_factory=list)
    """Of nobody's node group."""
    held: set[str] = field(default_factory=set)
    """Instances whose Node has our taint."""
    running_since: dict[str, float] = field(default_factory=dict)
    to_come: int = 0
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
        seen = [pod.seen_at for pod in self.pending()]
        return Arrivals(len(seen), min(seen, default=None), max(seen, default=None), self.to_come)

    def state(self, *, without: AbstractSet[str] = frozenset()) -> ClusterState:
        sets: defaultdict[Any, list[SimPod]] = defaultdict(list)
        incomplete = {gang.name for gang in self._incomplete()}
        for pod in self.pending():
            if pod.ref.uid in without or pod.gang in incomplete:
                continue
            sets[pod.spec, pod.priority, pod.gang].append(pod)
        waiting = []
        for (spec, priority, gang), pods in sets.items():
            pods.sort(key=lambda pod: pod.ref.created_at_seconds)
            waited = int(self.clock() - pods[0].seen_at)
            pod_set = PodSet(f"ns/{pods[0].ref.name}", spec, len(pods), priority, waited, gang)
            waiting.append(WaitingPods(pod_set, tuple(pod.ref for pod in pods)))
        self.looks += 1
        state = ClusterState(
            tuple(waiting),
            tuple(self.nodes()),
            self.daemon_sets,
            tuple(self._incomplete()),
            slack=SlackSeen(self._counts(), self.mirrors, self.pause_pods),
        )
        happens, self.after_state = self.after_state, None
        if happens is not None:
            happens()
        return state

    def _counts(self) -> tuple[PodCount, ...]:
        counts = Counter((pod.spec, pod.ref.namespace) for pod in self.pods.values())
        return tuple(PodCount(spec, count, namespace) for (spec, namespace), count in counts.items())

    def _incomplete(self) -> Iterator[IncompleteGang]:
        for gang, needed in self.gangs.items():
            there = sum(pod.gang == gang for pod in self.pods.values())
            if there < needed:
                yield IncompleteGang(gang, there, needed, tuple(pod.ref for pod in self.pending() if pod.gang == gang))

    def pod_of(self, uid: str) -> PodRef | None:
        pod = self.pods.get(uid)
        return pod.ref if pod is not None and pod.node is None else None

    def ready_instances(self) -> AbstractSet[str]:
        if self.problem is not None:
            raise errors.Unavailable(self.problem)
        return {node.provider_id for node in self.nodes() if node.ready}

    # What happens in it.

    def pending(self) -> list[SimPod]:
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
                found.append(ClusterNode(self._with_pods(node), machine.id, ready, held=machine.id in self.held))
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
        """The scheduler: by priority and age, onto the first node with room; a gang whole or not at all."""
        done = {gang.name for gang in self._incomplete()}
        for pod in sorted(self.pending(), key=lambda pod: (-pod.priority, pod.ref.created_at_seconds)):
            if pod.gang is None:
                self._bind([pod])
            elif pod.gang not in done:
                done.add(pod.gang)
                self._bind([each for each in self.pending() if each.gang == pod.gang])

    def _bind(self, pods: Sequence[SimPod]) -> None:
        places: dict[str, str] = {}
        for pod in pods:
            for each in self.nodes():
                fits = all(each.node.free.get(name, 0) >= amount for name, amount in (*pod.spec.requests, (PODS, 1)))
                node = each.node
                if (
                    each.ready
                    and not each.held
                    and fits
                    and why_not_eligible(pod.spec, node.labels, node.taints) is None
                ):
                    pod.node = places[pod.ref.uid] = node.name
                    break
        if len(places) < len(pods):
            for pod in pods:
                pod.node = None

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


@dataclass
class MemoryBook:
    """What is written of the slack, in memory."""

    kept: SlackState = field(default_factory=lambda: SlackState(0.0))

    def placements(self) -> Placement:
        return self.kept.placement

    def write(self, state: SlackState) -> None:
        self.kept = state


class World:
    """All of it. `restart` makes a new process over the same journal, backend and cluster."""

    def __init__(
        self,
        groups: Sequence[NodeGroup],
        limits: Sequence[Limit] = (),
        *,
        settings: PlannerSettings | None = None,
        bind: bool = False,
        daemon_sets: Sequence[PodSpec] = (),
        slack: SlackSettings | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.directory = tempfile.TemporaryDirectory()
        self.backend = SimulatedBackend(Path(self.directory.name) / "simulated.sqlite", clock=self.clock)
        self.backend.set_behaviour("*", Behaviour(boot_seconds=BOOT_SECONDS))
        self.groups, self.limits = groups, limits
        self.cluster = FakeCluster(self.clock, self.backend, {each.id: each for each in groups})
        self.cluster.daemon_sets = tuple(daemon_sets)
        how = Realise.BIND if bind else Realise.SIMULATE
        self.settings = replace(settings or PlannerSettings(), realise=how)
        self.bind = bind
        self.slack_settings = slack
        self.book = MemoryBook()
        self.carrier: Carrying = Virtual()
        self.journal: Journal = MemoryJournal()
        self.notes: list[Note] = []
        self.turn: Any = threading.Lock()
        self.kept: Kept = {}
        """Room that is kept for others, by node."""
        self.lets_go = True
        """Whether the start-up controller works."""
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
            else SlackLoop(
                self.cluster,
                self.fleet,
                self.slack_settings,
                self.carrier,
                self.book,
                now=self.clock,
                clock=self.clock,
                held=self.held,
            )
        )
        self.loop = PlannerLoop(
            self.fleet,
            self.cluster,
            self.settings,
            say=self.notes.append,
            clock=self.clock,
            now=self.clock,
            budget=Budget(deterministic_seconds=1.0),
            held=self.held,
            turn=self.turn,
            slack=self.slack_state,
        )

    def slack_state(self) -> SlackState:
        return SlackState(0.0) if self.slack is None else self.slack.state

    def held(self, state: ClusterState) -> Kept:
        """What the planner is told of it."""
        return {each.node.name: self.kept[each.node.name] for each in state.nodes if each.node.name in self.kept}

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

    def _make(self, spec: PodSpec, priority: int, gang: str | None) -> str:
        self.made += 1
        ref = PodRef(f"uid-{self.made}", "ns", f"pod-{self.made}", int(self.clock()))
        self.cluster.pods[ref.uid] = SimPod(ref, spec, self.clock(), priority, gang)
        return ref.uid

    def replace(self, pod: SimPod) -> str:
        """A workload makes a new pod for one that is gone. Its UID."""
        self.cluster.pods.pop(pod.ref.uid, None)
        return self._make(pod.spec, pod.priority, pod.gang)

    def step(self) -> None:
        """Everybody does what there is to do now."""
        with suppress(errors.Unavailable):
            self.fleet.reconcile()
        self.start_up()
        for pod in self.cluster.drop_lost_pods():  # their workloads make new ones
            self.replace(pod)
        if self.cluster.scheduling:
            self.cluster.schedule()
        if self.slack is not None:
            self.slack.step()
        self.loop.step()

    def start_up(self) -> None:
        """The start-up controller, at once."""
        snapshot = self.fleet.snapshot
        known = snapshot.group_of_instance
        self.cluster.held = {m.id for m in self.backend.list_instances() if m.id not in known} | snapshot.held_instances
        for status in snapshot.increments:
            if status.phase is Phase.READY and self.lets_go:
                if self.bind:
                    self._bind(status)
                self.cluster.held -= {held.instance_id for held in status.held}
                self.fleet.release(status.id)

    def _bind(self, status: IncrementStatus) -> None:
        for held in status.held:
            for uid in held.pods:
                pod = self.cluster.pods.get(uid)
                if pod is not None and pod.node is None:
                    pod.node = held.instance_id.removeprefix("simulated://")

    def run(self, seconds: float, step: float = 1.0) -> None:
        """Time passes."""
        until = self.clock() + seconds
        while self.clock() < until:
            self.step()
            self.clock.advance(min(step, until - self.clock()))
        self.step()

    def pending(self) -> list[str]:
        return [pod.ref.uid for pod in self.cluster.pending()]

    def increments(self, *phases: Phase) -> list[IncrementStatus]:
        return [each for each in self.fleet.snapshot.increments if not phases or each.phase in phases]

    def targets(self) -> dict[str, int]:
        return {name: each.target_size for name, each in self.fleet.snapshot.groups.items() if each.target_size}
