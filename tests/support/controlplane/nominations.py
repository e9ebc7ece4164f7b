"""Who watches pods of one namespace, and says where each was nominated to last before it was bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cagrpc.api.gen import kubernetes_pb2
from cagrpc.kube.client.envelopes import ObjectIdentity
from cagrpc.kube.informer.informers import Informer
from cagrpc.kube.informer.resource import Resource
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.processes import wait_for


@dataclass(frozen=True, slots=True)
class _Nominated:
    pod: str
    node: str
    """Empty where it is nominated to none, or bound."""


def _decoded(data: bytes) -> _Nominated:
    pod = kubernetes_pb2.Pod.FromString(data)
    return _Nominated(pod.metadata.name, "" if pod.spec.nodeName else pod.status.nominatedNodeName)


class _Sink:
    def __init__(self, found: dict[str, str]) -> None:
        self._found = found

    def replaced(self, objects: Iterable[_Nominated]) -> None:
        for each in objects:
            self.applied(each)

    def applied(self, obj: _Nominated) -> None:
        if obj.node:
            self._found[obj.pod] = obj.node

    def deleted(self, of: ObjectIdentity) -> None:
        pass


@contextmanager
def nominations(cluster: Cluster) -> Iterator[dict[str, str]]:
    """As long as the context lasts: by pod, the last node that it was nominated to before it was bound."""
    found: dict[str, str] = {}
    client = cluster.plane.client()
    informer = Informer(client, Resource(cluster.path("pods"), _decoded), _Sink(found))
    try:
        informer.start()
        wait_for(lambda: informer.synced, "pods are listed")
        yield found
    finally:
        informer.stop()
        client.close()
