"""A planner beside a kube-controller-manager and a kube-scheduler that take their time: as many pods a second are
created, of several workloads at once as its workers do, and as many are tried by the scheduler. Which pods are still
expected is the real view's to say.

    harness = PacedHarness([group("a", cpu=4000)], pods_a_second=2.0, tries_a_second=1.0)
    harness.apply({f"web-{number}": 20 for number in range(30)})
    harness.until_all_run()
    assert harness.unused() == 0
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.state import Arrivals, PodRef
from cagrpc.fleet.model import ExpectedPod, PodKey
from solver.model import PODS, NodeGroup, PodSpec
from solver.model.eligibility import why_not_eligible
from tests.support.controllers.cluster_objects import REPLICA_SETS, Fed, pod
from tests.support.controllers.fake_cluster import FakeCluster, SimPod
from tests.support.controllers.planner import PlannerHarness

WORKERS = 5
"""`--concurrent-replicaset-syncs`."""
BURST = 500
"""Pods of one ReplicaSet at most before the next one's turn (upstream: burstReplicas)."""
LONGEST_SECONDS = 4 * 3600.0
NAMESPACE = "default"


@dataclass
class Workload:
    """A ReplicaSet."""

    name: str
    wants: int
    cpu: int
    made: int = 0
    refused: str = ""
    """What the API server says to each attempt; empty where it lets them pass."""
    stuck: bool = False
    """Whether its controller does not come to it, and nobody says why."""

    @property
    def key(self) -> str:
        return f"ReplicaSet/{NAMESPACE}/{self.name}"

    @property
    def left(self) -> int:
        return self.wants - self.made

    def document(self, *, fails: bool) -> kubernetes_pb2.ReplicaSet:
        template = kubernetes_pb2.PodTemplateSpec()
        template.spec.containers.add().resources.requests["cpu"].string = f"{self.cpu}m"
        found = kubernetes_pb2.ReplicaSet(
            metadata={"namespace": NAMESPACE, "name": self.name},
            spec={"replicas": self.wants, "template": template.SerializeToString()},
            status={"replicas": self.made},
        )
        if fails:
            found.status.conditions.add(
                type="ReplicaFailure", status="True", reason="FailedCreate", message=self.refused
            )
        return found


@dataclass
class _Sync:
    """A worker that creates pods of one workload: a batch of one, then twice as many each time."""

    workload: Workload
    batch: int = 1
    left_of_batch: int = 1
    left: int = BURST


class ControllerManager:
    """Creates pods of its workloads as its client's rate allows, in the order in which they came."""

    def __init__(self, harness: PacedHarness, pods_a_second: float) -> None:
        self.pods_a_second = pods_a_second
        self.running = True
        self.workloads: dict[str, Workload] = {}
        self._harness = harness
        self._queue: deque[Workload] = deque()
        self._syncs: deque[_Sync] = deque()
        self._tokens = 0.0
        self._at = harness.clock()

    def put(self, workload: Workload) -> None:
        """Take in a workload that is new, or wants another number of pods."""
        self.workloads[workload.name] = workload
        self._harness.fed().put(workload.document(fails=False), path=REPLICA_SETS)
        if workload not in self._queue:
            self._queue.append(workload)

    def drop(self, name: str) -> None:
        """Delete a workload; its pods stay."""
        workload = self.workloads.pop(name)
        workload.wants = workload.made
        self._harness.fed().drop(workload.document(fails=False), path=REPLICA_SETS)

    def restart(self) -> None:
        """Begin anew, in another order."""
        self._syncs.clear()
        self._queue = deque(sorted(self.workloads.values(), key=lambda each: each.name))

    def step(self) -> None:
        now = self._harness.clock()
        self._tokens += (now - self._at) * self.pods_a_second
        self._at = now
        while self.running and self._tokens >= 1.0 and self._create_one():
            self._tokens -= 1.0
        if not (self._syncs or self._queue):
            self._tokens = min(self._tokens, 1.0)

    def _create_one(self) -> bool:
        while self._queue and len(self._syncs) < WORKERS:
            workload = self._queue.popleft()
            if workload.left > 0 and not workload.stuck:
                self._syncs.append(_Sync(workload))
        if not self._syncs:
            return False
        sync = self._syncs.popleft()
        workload = sync.workload
        if workload.left > 0:
            self._attempt(workload)
        if workload.refused:
            return True
        sync.left_of_batch -= 1
        sync.left -= 1
        if sync.left_of_batch == 0:
            sync.batch *= 2
            sync.left_of_batch = sync.batch
        if workload.left <= 0 or sync.left == 0:
            if workload.left > 0:
                self._queue.append(workload)
            return True
        self._syncs.append(sync)
        return True

    def _attempt(self, workload: Workload) -> None:
        fed = self._harness.fed()
        if workload.refused:
            fed.put(workload.document(fails=True), path=REPLICA_SETS)
            return
        workload.made += 1
        self._harness.created(workload)
        fed.put(workload.document(fails=False), path=REPLICA_SETS)


@dataclass
class PacedCluster(FakeCluster):
    """Its expected pods are those of the real view; its scheduler tries so many pods a second."""

    fed: Fed = field(default_factory=lambda: Fed(expects=True))
    tries_a_second: float = 1000.0
    specs: dict[str, PodSpec] = field(default_factory=dict)
    """By workload."""
    _tries: float = 0.0
    _scheduled_at: float = 0.0
    _tried: dict[str, Any] = field(default_factory=dict)
    """The nodes that there were when a pod was tried last."""

    def expected(self) -> list[SimPod]:
        self.fed.time = self.clock()
        now, keys = int(self.clock()), self.fed.state().expected
        return [
            SimPod(
                PodRef(key, NAMESPACE, f"{key.workload}-{key.number}", now, key.workload), self.specs[key.workload], now
            )
            for key in sorted(keys, key=lambda key: (key.workload, key.number))
        ]

    def arrivals(self) -> Arrivals:
        self.fed.time = self.clock()
        return self.fed.model.arrivals()

    def pod_of(self, key: PodKey) -> PodRef | None:
        return self.fed.model.pod_of(key) if isinstance(key, ExpectedPod) else super().pod_of(key)

    def schedule(self) -> None:
        now = self.clock()
        self._tries = min(self._tries + (now - self._scheduled_at) * self.tries_a_second, 1000.0)
        self._scheduled_at = now
        there = {each.node.name: each.node for each in self.nodes() if each.ready and not each.held}
        free = {name: dict(node.free) for name, node in there.items()}
        waiting = self.unbound()
        for each in waiting:
            if each.nominated in free:
                _take(free[each.nominated], each.spec)
        seen = frozenset(there)
        for each in sorted(waiting, key=lambda each: each.seen_at):
            if self._tries < 1.0:
                return
            if self._tried.get(each.ref.uid) == seen:
                continue
            self._tries -= 1.0
            if each.nominated in free:
                _take(free[each.nominated], each.spec, -1)
            first = sorted(free, key=lambda name: (name != each.nominated, -free[name]["cpu"]))
            found = next((n for n in first if _fits(free[n], each.spec, there[n])), None)
            if found is None:
                self._tried[each.ref.uid] = seen
                if each.nominated:
                    self.nominate(each, "")
                continue
            _take(free[found], each.spec)
            each.node = found
            self.fed.put(
                pod(each.ref.name, owner="ReplicaSet", owner_name=each.ref.workload.rpartition("/")[2], node=found)
            )
            self.changed(each.ref.uid, None)
            self.bound(each.ref.uid, 0.0)


def _take(free: dict[str, int], spec: PodSpec, times: int = 1) -> None:
    for name, amount in (*spec.requests, (PODS, 1)):
        free[name] = free.get(name, 0) - times * amount


def _fits(free: Mapping[str, int], spec: PodSpec, node: Any) -> bool:
    room = all(free.get(name, 0) >= amount for name, amount in (*spec.requests, (PODS, 1)))
    return room and why_not_eligible(spec, node.labels, node.taints) is None


class PacedHarness(PlannerHarness):
    """Everything that a planner works on, at the pace of its surroundings."""

    paced: PacedCluster

    def __init__(
        self, groups: Sequence[NodeGroup], *, pods_a_second: float, tries_a_second: float = 1000.0, **more: Any
    ) -> None:
        super().__init__(groups, **more)
        self.paced.tries_a_second = tries_a_second
        self.controllers = ControllerManager(self, pods_a_second)
        self.seen: set[str] = set()
        """The Nodes that there ever were,"""
        self.used: set[str] = set()
        """and those that a pod was bound to."""

    def _cluster(self, groups: dict[str, NodeGroup]) -> FakeCluster:
        self.paced = PacedCluster(self.clock, self.backend, groups)
        return self.paced

    def fed(self) -> Fed:
        """Return what the view is fed with, now."""
        self.paced.fed.time = self.clock()
        return self.paced.fed

    def apply(self, workloads: Mapping[str, int], *, cpu: int = 1000) -> None:
        """Create workloads, of so many pods each."""
        for name, pods in workloads.items():
            workload = Workload(name, pods, cpu)
            self.paced.specs[workload.key] = PodSpec((("cpu", cpu),))
            self.controllers.put(workload)

    def created(self, workload: Workload) -> None:
        """Have a pod of this workload."""
        uid = self._make(self.paced.specs[workload.key], 0, None, workload.key)
        ref = self.cluster.pods[uid].ref
        self.fed().put(pod(ref.name, f"{workload.cpu}m", owner="ReplicaSet", owner_name=workload.name))

    def step(self) -> None:
        self.controllers.step()
        super().step()
        self.seen |= set(self.cluster.node_names().values())
        self.used |= {each.node for each in self.cluster.pods.values() if each.node}

    def until_all_run(self, step: float = 1.0) -> None:
        """Let time pass until every pod is bound that is to be created."""
        until = self.clock() + LONGEST_SECONDS
        while self._left() or self.pending():
            assert self.clock() < until, (
                f"{self._left()} pods are still to be created, {len(self.pending())} to be bound"
            )
            self.step()
            self.clock.advance(step)
        self.step()

    def _left(self) -> int:
        known = self.controllers.workloads.values()
        return sum(each.left for each in known if not (each.refused or each.stuck))

    def unused(self) -> int:
        """Return how many Nodes came for nobody."""
        return len(self.seen - self.used)

    def cost(self) -> float:
        """Return what the nodes cost that are targeted now, in USD per hour."""
        prices = {each.id: each.price_usd_per_hour for each in self.groups}
        return sum(prices[name] * count for name, count in self.targets().items())
