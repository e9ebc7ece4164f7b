"""Who watches a cluster while something moves its pods, and says afterwards what happened: what was evicted, what the
nodes cost, and what must not be: a PodDisruptionBudget that is violated, a step that begins while a pod that was moved
does not run again.

What is seen is put into the order of the API server by resource versions, which nodes and pods share: two watches are
never equally far."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from cagrpc.api.gen import kubernetes_pb2
from cagrpc.kube.client.envelopes import ObjectIdentity
from cagrpc.kube.informer.informers import Informer
from cagrpc.kube.informer.resource import Resource
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.processes import wait_for
from tests.support.controlplane.rotting import Workload

DISRUPTION_TARGET = "DisruptionTarget"
DISRUPTED = "karpenter.sh/disrupted"
"""Karpenter's taint on a node that it is about to drain."""
_FIRST_SECONDS = 0.001
"""Creation timestamps are whole seconds: one of the first second is not from before."""


@dataclass(frozen=True, slots=True)
class WatchedPod:
    """A pod at one time."""

    key: tuple[str, str]
    """Namespace and name."""
    version: int
    uid: str
    app: str
    node: str
    healthy: bool
    """Ready, and not on its way out: what the disruption controller counts."""
    evicted: bool
    """By the Eviction API."""


@dataclass(frozen=True, slots=True)
class WatchedNode:
    """A node at one time."""

    key: str
    version: int
    kind: str
    """What has a price: its instance type, or its node group."""
    drained: bool
    """Cordoned, or tainted as one that is drained."""
    created_seconds: float
    """Seconds since watching began, by the API server: whoever watches may have been cut off for a while."""


@dataclass(frozen=True, slots=True)
class _Gone:
    key: Any
    version: int


_Change = WatchedPod | WatchedNode | _Gone


@dataclass(frozen=True, slots=True)
class _Noted:
    at_seconds: float
    """0 of what was there already."""
    what: _Change


@dataclass(frozen=True, slots=True)
class Eviction:
    at_seconds: float
    node: str


@dataclass(slots=True)
class Life:
    """Of a node. Seconds since watching began."""

    kind: str
    made_seconds: float
    """0 of those that were there already."""
    removed_seconds: float | None = None


@dataclass(slots=True)
class History:
    """What happened, in order."""

    evictions: list[Eviction] = field(default_factory=list)
    steps_seconds: list[float] = field(default_factory=list)
    """When the first node with pods was drained after an eviction, or of all."""
    costs: list[tuple[float, float]] = field(default_factory=list)
    """Seconds, and US dollars per hour from then on."""
    lives: dict[str, Life] = field(default_factory=dict)
    """By node."""
    violations: list[str] = field(default_factory=list)
    healthy: Counter[str] = field(default_factory=Counter)
    """Pods that run at the end, by app."""
    places: dict[str, list[str]] = field(default_factory=dict)
    """Apps of the pods that run at the end on each node that stands."""

    @property
    def kinds(self) -> dict[str, str]:
        """Of all nodes that were ever there."""
        return {name: each.kind for name, each in self.lives.items()}

    @property
    def cost(self) -> float:
        """At the end."""
        return self.costs[-1][1]

    @property
    def last_change_seconds(self) -> float:
        """When the last node came or went, or the last pod was evicted; 0 where nothing ever changed."""
        changes = [self.costs[-1][0] if len(self.costs) > 1 else 0.0, *(each.at_seconds for each in self.evictions)]
        return max(changes)

    @property
    def made(self) -> int:
        return sum(each.made_seconds > 0 for each in self.lives.values())

    def short_lived(self, least_seconds: float) -> list[str]:
        """Nodes that were made and went within this time."""
        return [
            f"{name} of {each.kind}: {each.removed_seconds - each.made_seconds:.0f} s"
            for name, each in self.lives.items()
            if each.made_seconds and each.removed_seconds
            if each.removed_seconds - each.made_seconds < least_seconds
        ]


class _Sink:
    """Notes what one watch brings."""

    def __init__(self, note: Callable[[float, _Change], None], now: Callable[[], float]) -> None:
        self._noted = note
        self._now = now
        self._keys: dict[str, Any] = {}
        self._last = 0
        self._listed = False

    def _note(self, what: _Change) -> None:
        self._noted(self._now() if self._listed else 0.0, what)

    def replaced(self, objects: Iterable[WatchedPod | WatchedNode]) -> None:
        found = {str(each.key): each for each in objects}
        for each in found.values():
            self.applied(each)
        for name in self._keys.keys() - found.keys():
            self._delete(name)
        self._listed = True

    def applied(self, obj: WatchedPod | WatchedNode) -> None:
        self._keys[str(obj.key)] = obj.key
        self._last = max(self._last, obj.version)
        self._note(obj)

    def deleted(self, of: ObjectIdentity) -> None:
        self._delete(str((of.namespace, of.name) if of.namespace else of.name))

    def _delete(self, name: str) -> None:
        if name in self._keys:
            self._note(_Gone(self._keys.pop(name), self._last))


class Observer:
    """Of pods of these workloads, and of all nodes. A node's kind is the value of its label `kind_label`."""

    def __init__(self, found: Sequence[Workload], prices: Mapping[str, float], kind_label: str) -> None:
        self._expected = {each.name: each.left for each in found}
        self._least = {each.name: each.left - (each.max_unavailable or 0) for each in found if each.max_unavailable}
        self._prices = prices
        self._kind_label = kind_label
        self._noted: list[_Noted] = []
        self._lock = Lock()
        self._began = time.monotonic()
        self.began_epoch_seconds = time.time()

    def note(self, at_seconds: float, what: _Change) -> None:
        with self._lock:
            self._noted.append(_Noted(at_seconds, what))

    def now(self) -> float:
        """Seconds since watching began."""
        return time.monotonic() - self._began

    def pod(self, data: bytes) -> WatchedPod:
        pod = kubernetes_pb2.Pod.FromString(data)
        conditions = {each.type: each.status == "True" for each in pod.status.conditions}
        going = pod.metadata.HasField("deletionTimestamp")
        return WatchedPod(
            (pod.metadata.namespace, pod.metadata.name),
            int(pod.metadata.resourceVersion),
            pod.metadata.uid,
            pod.metadata.labels["app"],
            pod.spec.nodeName,
            pod.status.phase == "Running" and conditions.get("Ready", False) and not going,
            going and conditions.get(DISRUPTION_TARGET, False),
        )

    def node(self, data: bytes) -> WatchedNode:
        node = kubernetes_pb2.Node.FromString(data)
        drained = node.spec.unschedulable or any(taint.key == DISRUPTED for taint in node.spec.taints)
        kind = node.metadata.labels[self._kind_label]
        created = node.metadata.creationTimestamp.seconds - self.began_epoch_seconds
        return WatchedNode(node.metadata.name, int(node.metadata.resourceVersion), kind, drained, created)

    def history(self) -> History:
        """All of it so far."""
        with self._lock:
            noted = list(self._noted)
        noted.sort(key=lambda each: (each.at_seconds > 0, each.what.version))
        replay = _Replay(self._expected, self._least, self._prices)
        for each in noted:
            replay.take(each.at_seconds, each.what)
        return replay.ended()


class _Replay:
    def __init__(self, expected: Mapping[str, int], least: Mapping[str, int], prices: Mapping[str, float]) -> None:
        self._expected = expected
        self._least = least
        self._prices = prices
        self._pods: dict[Any, WatchedPod] = {}
        self._nodes: dict[Any, WatchedNode] = {}
        self._on: Counter[str] = Counter()
        self._evicted: set[str] = set()
        self._evicted_since_step = True
        self.history = History()

    def take(self, at_seconds: float, what: _Change) -> None:
        match what:
            case WatchedPod():
                self._pod_became(at_seconds, what.key, what)
            case WatchedNode():
                self._node_became(at_seconds, what)
            case _Gone(key) if isinstance(key, tuple):
                self._pod_became(at_seconds, key, None)
            case _Gone(key):
                self._node_went(at_seconds, key)

    def _pod_became(self, at_seconds: float, key: Any, pod: WatchedPod | None) -> None:
        history, before = self.history, self._pods.pop(key, None)
        if before is not None and before.healthy:
            history.healthy[before.app] -= 1
            self._on[before.node] -= 1
        if pod is not None:
            self._pods[key] = pod
            if pod.healthy:
                history.healthy[pod.app] += 1
                self._on[pod.node] += 1
            if pod.evicted and pod.uid not in self._evicted:
                self._evicted.add(pod.uid)
                self._evicted_since_step = True
                history.evictions.append(Eviction(at_seconds, pod.node))
        app = pod.app if pod is not None else before.app if before is not None else ""
        if at_seconds and history.healthy[app] < self._least.get(app, 0):
            self._violated(
                f"after {at_seconds:.1f} s: {history.healthy[app]} pods of {app} are healthy,"
                f" and its PodDisruptionBudget desires {self._least[app]}"
            )

    def _node_became(self, at_seconds: float, node: WatchedNode) -> None:
        before = self._nodes.get(node.key)
        self._nodes[node.key] = node
        if before is None:
            made = min(at_seconds, max(_FIRST_SECONDS, node.created_seconds))
            self.history.lives[node.key] = Life(node.kind, made)
            self._costs(at_seconds)
        elif node.drained and not before.drained and self._on[node.key] and self._evicted_since_step:
            self._evicted_since_step = False
            self.history.steps_seconds.append(at_seconds)
            missing = self._missing()
            if missing:
                self._violated(f"after {at_seconds:.1f} s: {node.key} is drained while these do not run: {missing}")

    def _node_went(self, at_seconds: float, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self.history.lives[name].removed_seconds = at_seconds
            self._costs(at_seconds)

    def _missing(self) -> dict[str, int]:
        healthy = self.history.healthy
        return {app: count - healthy[app] for app, count in self._expected.items() if healthy[app] < count}

    def _costs(self, at_seconds: float) -> None:
        cost = round(sum(self._prices.get(each.kind, 0.0) for each in self._nodes.values()), 6)
        if not at_seconds:
            self.history.costs.clear()
        self.history.costs.append((at_seconds, cost))

    def _violated(self, what: str) -> None:
        self.history.violations.append(what)

    def ended(self) -> History:
        self.history.places = {name: [] for name in self._nodes}
        for pod in self._pods.values():
            if pod.healthy and pod.node in self._nodes:
                self.history.places[pod.node].append(pod.app)
        return self.history


@contextmanager
def observing(
    plane: ControlPlane, found: Sequence[Workload], prices: Mapping[str, float], kind_label: str
) -> Iterator[Observer]:
    """It knows all nodes and pods when this begins."""
    observer, client = Observer(found, prices, kind_label), plane.client()
    nodes = Informer(client, Resource("/api/v1/nodes", observer.node), _Sink(observer.note, observer.now))
    pods = Informer(client, Resource("/api/v1/pods", observer.pod), _Sink(observer.note, observer.now))
    try:
        nodes.start()
        pods.start()
        wait_for(lambda: nodes.synced and pods.synced, "what there is is listed")
        yield observer
    finally:
        nodes.stop()
        pods.stop()
        client.close()
