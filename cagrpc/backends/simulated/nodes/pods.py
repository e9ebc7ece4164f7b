"""Pods that are bound to nodes: what a kubelet reads and writes of each, and the store of all of them. On which nodes
they are simulated, and when, is in `controller`."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from sys import intern
from typing import Any

from cagrpc.api.encoding.json_documents import timestamp, whole_number
from cagrpc.api.encoding.messages import parse
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.backends.simulated.nodes.nodes import address
from cagrpc.errors import InvalidInput
from cagrpc.kube.client.envelopes import ObjectIdentity


class Stage(Enum):
    """The stage of a bound pod."""

    WAITING = 1
    """Bound, and not started by a kubelet yet."""
    STARTED = 2
    """Running or ended."""
    LEAVING = 3
    """Deleted, and waiting for its kubelet."""
    LET_GO = 4
    """Deleted by its kubelet; at most finalizers remain."""


@dataclass(frozen=True, slots=True)
class Containers:
    """The containers that a kubelet would start."""

    names: tuple[str, ...]
    init: tuple[str, ...] = ()
    """Init containers that run to completion first."""
    sidecars: tuple[str, ...] = ()
    """Init containers that keep running."""
    host_network: bool = False


_NONE = Containers(())
_MOST_SHARED = 32
"""Containers of one pod. Larger values are not cached, which bounds the cache."""
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class BoundPod:
    """A pod with a node. `containers` are only set while it is waiting."""

    uid: str
    namespace: str
    name: str
    node: str
    stage: Stage
    version: int
    """Its resourceVersion."""
    has_finalizer: bool = False
    waits_for_end: bool = False
    """It has a finalizer and has not ended yet."""
    containers: Containers = _NONE

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    @property
    def half_deleted(self) -> bool:
        """Whether nothing but the API server keeps it, which marks a pod in one write and removes it in another: it is
        about to be gone, or the API server ended in between."""
        return self.stage is Stage.LET_GO and not self.has_finalizer


def decode(data: bytes) -> BoundPod:
    """Decode v1.Pod bytes. Raises InvalidInput for malformed ones."""
    message = parse(kubernetes_pb2.Pod, data)
    metadata, stage = message.metadata, _stage(message)
    version = whole_number(metadata.resourceVersion)
    if version is None:
        raise InvalidInput(f"pod {metadata.namespace}/{metadata.name}: its resourceVersion is not a number")
    return BoundPod(
        uid=metadata.uid,
        namespace=intern(metadata.namespace),
        name=metadata.name,
        node=intern(message.spec.nodeName),
        stage=stage,
        version=version,
        has_finalizer=bool(metadata.finalizers),
        waits_for_end=bool(metadata.finalizers) and message.status.phase not in _ENDED,
        containers=_containers(message.spec) if stage is Stage.WAITING else _NONE,
    )


def _stage(message: kubernetes_pb2.Pod) -> Stage:
    if message.metadata.HasField("deletionTimestamp"):
        # A deleted pod has a grace period of at least a second until its kubelet deletes it with none.
        return Stage.LEAVING if message.metadata.deletionGracePeriodSeconds else Stage.LET_GO
    return Stage.WAITING if message.status.phase in ("", "Pending") else Stage.STARTED


def _containers(spec: kubernetes_pb2.PodSpec) -> Containers:
    found = Containers(
        names=tuple(container.name for container in spec.containers),
        init=tuple(c.name for c in spec.initContainers if c.restartPolicy != "Always"),
        sidecars=tuple(c.name for c in spec.initContainers if c.restartPolicy == "Always"),
        host_network=spec.hostNetwork,
    )
    usual = len(spec.containers) + len(spec.initContainers) <= _MOST_SHARED
    return _shared(found) if usual else found


@lru_cache(maxsize=4096)
def _shared(containers: Containers) -> Containers:
    """Return one value for all replicas."""
    return containers


def running(pod: BoundPod, now_seconds: float) -> dict[str, Any]:
    """Return the strategic merge patch of a pod's status with which a kubelet reports that it runs."""
    now, machine = timestamp(now_seconds), address(pod.node)
    own = machine if pod.containers.host_network else address(pod.uid)
    started = {"running": {"startedAt": now}}
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}}
    conditions = ("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    return {
        "metadata": {"uid": pod.uid},  # another pod of that name is refused
        "status": {
            "phase": "Running",
            "startTime": now,
            "hostIP": machine,
            "hostIPs": [{"ip": machine}],
            "podIP": own,
            "podIPs": [{"ip": own}],
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in conditions],
            "containerStatuses": [_container(pod, name, started) for name in pod.containers.names],
            "initContainerStatuses": [
                *(_container(pod, name, ended) for name in pod.containers.init),
                *(_container(pod, name, started) for name in pod.containers.sidecars),
            ],
        },
    }


def _container(pod: BoundPod, name: str, state: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "image": "",
        "imageID": "",
        "containerID": f"cagrpc-simulated://{pod.uid}/{name}",
        "ready": True,
        "started": "running" in state,
        "restartCount": 0,
        "state": state,
    }


def started(pod: BoundPod, version: str) -> BoundPod:
    """Return the pod after `running` was written."""
    return replace(pod, stage=Stage.STARTED, version=int(version), containers=_NONE)


def stopped(pod: BoundPod) -> dict[str, Any]:
    """Return the strategic merge patch of a pod's status with which a kubelet reports that it has ended. Controllers
    whose finalizer holds a pod (Jobs) wait for that."""
    return {"metadata": {"uid": pod.uid}, "status": {"phase": "Failed", "reason": "Terminated"}}


class BoundPods:
    """A store of all bound pods, by node: an informer's sink that also accepts the results of writes. `changed` is
    called with each pod that changed otherwise. Thread-safe."""

    def __init__(self, changed: Callable[[BoundPod], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._pods: dict[str, BoundPod] = {}
        self._of_node: dict[str, set[str]] = {}

    def get(self, uid: str) -> BoundPod | None:
        return self._pods.get(uid)

    def on(self, node: str) -> list[BoundPod]:
        with self._lock:
            return [self._pods[uid] for uid in self._of_node.get(node, ())]

    def replaced(self, objects: Iterable[BoundPod]) -> None:
        pods, of_node = {}, defaultdict(set)
        for pod in objects:
            pods[pod.uid] = pod
            of_node[pod.node].add(pod.uid)
        with self._lock:
            self._pods, self._of_node = pods, dict(of_node)
        for pod in pods.values():
            self._changed(pod)

    def applied(self, obj: BoundPod) -> None:
        with self._lock:
            known = self._pods.get(obj.uid)
            if known is not None and known.version >= obj.version:
                return  # older than the response to a write
            self._pods[obj.uid] = obj
            self._of_node.setdefault(obj.node, set()).add(obj.uid)
        self._changed(obj)

    def learned(self, pod: BoundPod) -> None:
        """Store the result of a write."""
        with self._lock:
            if pod.uid in self._pods:
                self._pods[pod.uid] = pod

    def deleted(self, of: ObjectIdentity) -> None:
        with self._lock:
            known = self._pods.pop(of.uid, None)
            if known is not None:
                on_node = self._of_node[known.node]
                on_node.discard(of.uid)
                if not on_node:
                    del self._of_node[known.node]
