"""A cluster that is fed object by object, through the decoders and the sinks that a watch uses, and the objects that
most attacks begin with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.message import Message

from cagrpc.api.core.movability import MovingRules
from cagrpc.api.gen import kubernetes_pb2 as k8s
from cagrpc.cluster.state import ClusterState, PendingPod
from cagrpc.cluster.view.model import NODES, PODS, ClusterModel, ModelSettings
from cagrpc.kube.client.envelopes import identity
from cagrpc.runtime.clock import EpochSeconds, MonotonicSeconds
from tests.support.controllers.cluster_objects import node

REPLICA_SETS = "/apis/apps/v1/replicasets"
_EPOCH_SECONDS = 10_000.0

Object = Message | dict[str, Any]
"""As an API server sends it: protobuf, or JSON for the kinds that are read so."""


class FedCluster:
    """The view of a cluster without an API server. `seconds` is its clock."""

    problem = None

    def __init__(self, nodes: int = 1) -> None:
        self.seconds = 0.0
        self.written_bytes = 0
        self._model = ClusterModel(
            ModelSettings(expects=True, moving=MovingRules()),
            lambda: MonotonicSeconds(self.seconds),
            lambda: EpochSeconds(_EPOCH_SECONDS),
        )
        self._by_path = {each.resource.path: each for each in self._model.followed}
        self.put(*(node(f"n{number}") for number in range(nodes)), path=NODES)
        self.written_bytes = 0

    def put(self, *objects: Object, path: str = PODS) -> None:
        followed = self._by_path[path]
        for each in objects:
            self.written_bytes += len(_sent(each))
            followed.applied(followed.resource.decode(_raw(each)))

    def drop(self, *objects: Object, path: str = PODS) -> None:
        followed = self._by_path[path]
        for each in objects:
            followed.deleted(identity(followed.resource.encoding, _raw(each)))

    def relist(self, objects: Iterable[Object], path: str) -> None:
        followed = self._by_path[path]
        followed.replaced(followed.resource.decode(_raw(each)) for each in objects)

    def state(self, *, with_bound: bool = False) -> ClusterState:
        return self._model.state(with_bound=with_bound)

    def nominated_by_us(self) -> Mapping[str, PendingPod]:
        return self._model.nominated_by_us()

    def pending(self, uids: Iterable[str]) -> Mapping[str, PendingPod]:
        return self._model.pending(uids)

    def node_names(self) -> Mapping[str, str]:
        return self._model.node_names()

    def arrivals(self) -> object:
        return self._model.arrivals()


def _raw(each: Object) -> Any:
    return each.SerializeToString() if isinstance(each, Message) else each


def _sent(each: Object) -> bytes:
    return each.SerializeToString() if isinstance(each, Message) else json.dumps(each).encode()


def pod(
    name: str = "p",
    *,
    cpu: str = "1",
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    replica_set: str = "",
    **spec: Any,
) -> k8s.Pod:
    """Return a pod that waits."""
    found = k8s.Pod(spec=k8s.PodSpec(**spec))
    found.metadata.name, found.metadata.namespace, found.metadata.uid = name, namespace, f"uid-{name}"
    found.metadata.creationTimestamp.seconds = 100
    found.metadata.labels.update(labels or {})
    if replica_set:
        found.metadata.ownerReferences.add(kind="ReplicaSet", name=replica_set, controller=True)
    if cpu:
        found.spec.containers.add().resources.requests["cpu"].string = cpu
    found.status.phase = "Pending"
    return found


def replica_set(name: str, replicas: int, *, namespace: str = "default", owner: str = "") -> k8s.ReplicaSet:
    """Return one whose pods are those of `pod`; `owner` is another ReplicaSet."""
    template = k8s.PodTemplateSpec(spec=pod().spec).SerializeToString()
    spec = k8s.ReplicaSetSpec(replicas=replicas, template=template)
    found = k8s.ReplicaSet(metadata=k8s.ObjectMeta(name=name, namespace=namespace), spec=spec)
    if owner:
        found.metadata.ownerReferences.add(kind="ReplicaSet", name=owner, controller=True)
    return found
