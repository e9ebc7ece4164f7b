"""The walk with everything that it works on: a real fleet over a real simulated backend, the cluster of `fake_cluster`
with workloads that replace what goes, PodDisruptionBudgets and cordons, and the placement and release controllers; with
`plans` the planning controller as well.

    scene = WalkHarness([group("big", cpu=8000), group("small", cpu=2000)])
    old = scene.stand("big", 1)
    scene.workload("web", 2, on=old)
    scene.begin(old, new={"small": 1})
    scene.run(120)
    assert scene.ended() is DisruptionPhase.DONE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from cagrpc import errors
from cagrpc.api.core.movability import Kept
from cagrpc.api.core.nodes import START_UP_TAINT, UNSCHEDULABLE
from cagrpc.cluster.markers import DISRUPTION
from cagrpc.cluster.node_info import Reservations, merged
from cagrpc.cluster.state import ClusterNode, ClusterState, PodsOnNode, ReschedulablePod
from cagrpc.controllers.consolidation.steps import AssignedStep, MovedPod
from cagrpc.controllers.consolidation.walk import Walk
from cagrpc.fleet.model import DisruptedNode, Disruption, DisruptionPhase, IncrementSpec, InstanceState, Phase, PodKey
from cagrpc.kube.client.client import PatchKind
from cagrpc.kube.client.failures import TooManyRequests
from solver.consolidation.model import DisruptionReason
from solver.model import NodeGroup, PodSpec
from tests.support.controllers.fake_cluster import ClusterApi, FakeCluster, SimPod
from tests.support.controllers.planner import PlannerHarness


@dataclass
class Deployment:
    """A workload that keeps so many pods."""

    name: str
    replicas: int
    spec: PodSpec
    gang: str | None = None
    budget: int = 1_000
    """How many of its pods may be away at a time, by its PodDisruptionBudget."""
    creates: bool = True
    """Whether it creates what it lacks."""

    @property
    def key(self) -> str:
        return f"ReplicaSet/ns/{self.name}"


class Budgets(Exception):  # noqa: N818 - named for what was broken
    """A PodDisruptionBudget was broken."""


@dataclass
class WalkCluster(FakeCluster):
    """Nodes that can be cordoned, and pods that can be evicted."""

    cordons: dict[str, str | None] = field(default_factory=dict)
    """Cordoned nodes, and whose cordon: the value of our annotation."""
    workloads: dict[str, Deployment] = field(default_factory=dict)
    kept: dict[str, tuple[Kept, str]] = field(default_factory=dict)
    """By UID."""
    evicted: list[str] = field(default_factory=list)
    unready: set[str] = field(default_factory=set)
    """Names of nodes."""
    terminating: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Pods that were evicted and still end: by UID their node, and when they are gone."""
    grace_seconds: float = 0.0

    def nodes(self) -> list[ClusterNode]:
        return [self._as_it_is(each) for each in super().nodes()]

    def _as_it_is(self, each: ClusterNode) -> ClusterNode:
        name, node = each.node.name, each.node
        if name in self.cordons:
            node = replace(node, taints=(*node.taints, UNSCHEDULABLE))
        return replace(each, node=node, ready=each.ready and name not in self.unready)

    def is_cordoned(self, name: str) -> bool:
        return name in self.cordons and name in self.node_names().values()

    def state_with_bound_pods(self, *, without: AbstractSet[PodKey] = frozenset()) -> ClusterState:
        if self.problem is not None:
            raise errors.Unavailable(self.problem)
        state = self.read(without)
        bound = {
            each.node.name: PodsOnNode(
                tuple(self._bound(pod) for pod in self.pods.values() if pod.node == each.node.name),
                coming=self._coming(each.node.name),
                ending=next((uid for uid, (node, _) in self.terminating.items() if node == each.node.name), ""),
            )
            for each in state.nodes
        }
        return replace(state, bound=bound)

    def _coming(self, node: str) -> str:
        pods = [pod for pod in self.unbound() if pod.nominated == node and not pod.by_us]
        return f"pod ns/{pods[0].ref.name} is nominated to it" if pods else ""

    def _bound(self, pod: SimPod) -> ReschedulablePod:
        kept_by, why = self.kept.get(pod.ref.uid, (Kept.NOTHING, ""))
        return ReschedulablePod(pod.ref, pod.spec, pod.priority, pod.gang, why, kept_by)

    def running(self, workload: str) -> int:
        return sum(pod.ref.workload == workload and pod.node is not None for pod in self.pods.values())

    def evict(self, name: str, uid: str) -> None:
        """Evict a pod as the API server does. Raises what it answers."""
        pod = next((each for each in self.pods.values() if each.ref.name == name), None)
        if pod is None:
            raise errors.NotFound(f"pod {name}")
        if pod.ref.uid != uid:
            raise errors.Conflict("the UID in the precondition does not match")
        of = self.workloads[pod.ref.workload]
        if self.running(of.key) - 1 < of.replicas - of.budget:
            raise TooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.")
        self.evicted.append(uid)
        self.gone(pod)

    def gone(self, pod: SimPod) -> None:
        """Delete a pod; its node has it until its grace is over."""
        del self.pods[pod.ref.uid]
        self.changed(pod.ref.uid, None)
        if pod.node is not None and self.grace_seconds:
            self.terminating[pod.ref.uid] = pod.node, self.clock() + self.grace_seconds


class WalkApi(ClusterApi):
    """The API server that the walk writes to, with a fault before or after any write: `fault` is called with the
    request and what would do it."""

    cluster: WalkCluster

    def __init__(self, cluster: WalkCluster) -> None:
        super().__init__(cluster)
        self.fault: Callable[[str, Callable[[], dict[str, Any]]], dict[str, Any]] = lambda _, do: do()

    def get(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        if name not in self.cluster.node_names().values():
            raise errors.NotFound(path)
        taints = [{"key": START_UP_TAINT}] if self.cluster.held_at(name) >= 0 else []
        mark = self.cluster.cordons.get(name)
        return {
            "metadata": {"resourceVersion": "1", "annotations": {DISRUPTION: mark} if mark else {}},
            "spec": {"taints": taints, **({"unschedulable": True} if name in self.cluster.cordons else {})},
        }

    def patch(self, path: str, body: Any, _kind: PatchKind = PatchKind.MERGE, **more: str) -> dict[str, Any]:
        if isinstance(body, dict) and DISRUPTION in body.get("metadata", {}).get("annotations", {}):
            return self.fault(f"cordon {path}", lambda: self._cordon(path.rpartition("/")[2], body))
        return super().patch(path, body, _kind, **more)

    def _cordon(self, name: str, body: Any) -> dict[str, Any]:
        if name not in self.cluster.node_names().values():
            raise errors.NotFound(name)
        mark, spec = body["metadata"]["annotations"][DISRUPTION], body.get("spec", {})
        if spec.get("unschedulable"):
            self.cluster.cordons[name] = mark
        elif "unschedulable" in spec:
            self.cluster.cordons.pop(name, None)
        return {}

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        name, part = path.split("/")[-2:]
        assert part == "eviction", path

        def do() -> dict[str, Any]:
            self.cluster.evict(name, body["deleteOptions"]["preconditions"]["uid"])
            return {}

        return self.fault(f"evict {name}", do)


class WalkHarness(PlannerHarness):
    """`restart` starts a new process, which walks on."""

    cluster: WalkCluster

    def __init__(self, groups: Sequence[NodeGroup], *, plans: bool = False, **more: Any) -> None:
        self.plans = plans
        self.most_in_flight = 10
        self.minimum_node_age_seconds = 0.0
        self.prompt = False
        """Whether the scheduler binds pods before anybody else has seen them."""
        self.fault: Callable[[str, Callable[[], dict[str, Any]]], dict[str, Any]] = lambda _, do: do()
        super().__init__(groups, **more)

    def _start(self) -> None:
        if not isinstance(self.cluster, WalkCluster):
            self.cluster = WalkCluster(self.clock, self.backend, {each.id: each for each in self.groups})
        super()._start()
        api: Any = WalkApi(self.cluster)
        api.fault = self._with_fault
        cluster: Any = self.cluster
        self.walk = Walk(
            api,
            self.fleet,
            cluster,
            self.places,
            reserved=super().reservations,
            deadline_seconds=900.0,
            minimum_node_age_seconds=self.minimum_node_age_seconds,
            most_in_flight=self.most_in_flight,
            clock=self.clock,
        )

    def _with_fault(self, what: str, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return self.fault(what, do)

    def instances_to_hold(self) -> frozenset[str]:
        walk = getattr(self, "walk", None)
        return walk.instances_to_hold if walk is not None else frozenset()

    def cluster_api(self) -> Any:
        return WalkApi(self.cluster)

    def reservations(self, state: ClusterState) -> Reservations:
        walk = getattr(self, "walk", None)
        return merged(super().reservations(state), walk.reservations(state) if walk is not None else {})

    def stand(self, group: str, count: int) -> list[str]:
        """Let so many nodes of a group stand, released; return their names."""
        before = set(self.cluster.node_names().values())
        asked = self.fleet.apply(IncrementSpec({group: count}))
        for _ in range(60):
            self.fleet.reconcile()
            if self.fleet.increment(asked.id).phase is Phase.READY:
                break
            self.clock.advance(2.0)
        held = self.fleet.increment(asked.id).held
        self.cluster.lifted.update(each.instance_id for each in held)
        self.fleet.release(asked.id)
        return sorted(set(self.cluster.node_names().values()) - before)

    def workload(self, name: str, replicas: int, *, on: Sequence[str] = (), cpu: int = 1000, **more: Any) -> Deployment:
        """Make a workload with its pods, bound to these nodes in turn."""
        made = Deployment(name, replicas, PodSpec((("cpu", cpu),)), **more)
        self.cluster.workloads[made.key] = made
        for number in range(replicas):
            uid = self._make(made.spec, 0, made.gang, made.key)
            if on:
                self.cluster.pods[uid].node = on[number % len(on)]
        self.clock.advance(2.0)
        return made

    def disrupted(self, names: Sequence[str]) -> tuple[DisruptedNode, ...]:
        ids = {name: key for key, name in self.cluster.node_names().items()}
        groups = self.fleet.snapshot.group_of_instance
        return tuple(DisruptedNode(name, ids[name], groups[ids[name]]) for name in names)

    def begin(
        self,
        names: Sequence[str],
        *,
        new: Mapping[str, int] | None = None,
        onto: Sequence[str] = (),
        also: Sequence[str] = (),
        reason: DisruptionReason = DisruptionReason.UNDERUTILIZED,
    ) -> Disruption:
        """Begin a step: the pods of these nodes, and those of the nodes `also`, which stay, go to new nodes, or onto
        others, in turn."""
        state = self.cluster.state_with_bound_pods()
        targets = [*onto, *(f"{group}/{n}" for group, count in (new or {}).items() for n in range(count))]
        pods = [pod for name in (*names, *also) for pod in state.bound[name].reschedulable]
        moved = tuple(MovedPod(pod, targets[number % len(targets)]) for number, pod in enumerate(pods))
        old, prices = self.disrupted(names), {each.id: each.price_usd_per_hour for each in self.groups}
        cost = sum(prices[name] * count for name, count in (new or {}).items())
        saving = round(sum(prices[each.node_group] for each in old) - cost, 9)
        return self.walk.begin(AssignedStep(reason, old, moved, new or {}, saving))

    def step(self) -> None:
        with suppress(errors.Unavailable):
            self.fleet.reconcile()
        with suppress(errors.CagrpcError):
            self.walk.advance()
        self.place()
        now = self.clock()
        self.cluster.terminating = {uid: at for uid, at in self.cluster.terminating.items() if at[1] > now}
        self.cluster.drop_lost_pods()
        if self.cluster.scheduling and not self.prompt:
            self.cluster.schedule()
        for each in self.cluster.workloads.values():
            there = sum(pod.ref.workload == each.key for pod in self.cluster.pods.values())
            for _ in range(each.replicas - there if each.creates else 0):
                uid = self._make(each.spec, 0, each.gang, each.key)
                self.cluster.pods[uid].was_expected = False
        if self.cluster.scheduling and self.prompt:
            self.cluster.schedule()
        if self.plans:
            self.planning.take()

    # ---- what has become of it

    def last(self) -> Disruption:
        return self.fleet.snapshot.disruptions[-1]

    def ended(self) -> DisruptionPhase | None:
        """Return how the last one ended; None while it is under way."""
        return None if self.last().phase.under_way else self.last().phase

    def names(self) -> set[str]:
        """Return the names of nodes that stand and are not being deleted."""
        running = {
            each.id
            for state in self.fleet.snapshot.groups.values()
            for each in state.instances
            if each.state is InstanceState.RUNNING
        }
        return {name for key, name in self.cluster.node_names().items() if key in running}

    def ours(self) -> set[str]:
        """Return the nodes that stand with a cordon of ours."""
        return {name for name, mark in self.cluster.cordons.items() if mark} & self.names()

    def pods_by_node(self) -> dict[str, int]:
        return dict(Counter(pod.node for pod in self.cluster.pods.values() if pod.node is not None))
