"""Our objects in the management cluster, kept up to date by informers: the Cluster, Machines and clones. What they mean
is in `backend`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cagrpc.api.core.resources import mapping, members
from cagrpc.backends.cluster_api.bodies import ClusterIdentity, selector
from cagrpc.backends.cluster_api.kinds import Collection
from cagrpc.cluster.markers import NODE_GROUP, TOKEN
from cagrpc.errors import InvalidInput, Unavailable
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.envelopes import Encoding
from cagrpc.kube.informer.informers import Informer
from cagrpc.kube.informer.reflector import Reflector
from cagrpc.kube.informer.resource import Resource
from cagrpc.kube.informer.written import Document, WrittenObjects
from cagrpc.runtime.clock import MonotonicClock
from cagrpc.runtime.health import still_to_come
from cagrpc.runtime.stopping import STOP_SECONDS, stop_all

_LOOK_AGAIN_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class OwnObject:
    """A Machine or a clone of ours."""

    collection: Collection
    document: Document

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    @property
    def path(self) -> str:
        return f"{self.collection.path}/{self.name}"

    @property
    def token(self) -> str:
        return str(self.document["metadata"]["annotations"][TOKEN])

    @property
    def node_group(self) -> str:
        return str(self.document["metadata"]["annotations"].get(NODE_GROUP) or "")

    @property
    def created_at(self) -> str:
        """RFC 3339, which sorts as text."""
        return str(self.document["metadata"].get("creationTimestamp") or "")

    @property
    def is_deleting(self) -> bool:
        return bool(self.document["metadata"].get("deletionTimestamp"))


class OwnObjects:
    """Follows the Cluster, its Machines, and each kind of clone once it is known. Thread-safe."""

    def __init__(
        self,
        client: Client,
        cluster: str,
        fleet: str,
        clusters: Collection,
        machines: Collection,
        clock: MonotonicClock,
    ) -> None:
        self.machines = machines
        self._client = client
        self._cluster_name = cluster
        self._fleet = fleet
        self._clusters = clusters
        self._clock = clock
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._stores: dict[Collection, WrittenObjects] = {}
        self._informers: dict[Collection, Informer] = {}
        self._follow(clusters, {"fieldSelector": f"metadata.name={cluster}"}, _any)
        self.follow(machines)

    # ---- what is followed

    def follow(self, collection: Collection) -> None:
        """Follow our objects of this kind from now on. Idempotent."""
        self._follow(collection, selector(self._cluster_name, self._fleet), _own)

    def wait(self, seconds: float) -> None:
        """Wait until everything is listed, at most so long."""
        deadline = self._clock() + seconds
        while self.problem is not None and self._clock() < deadline:
            self._stopped.wait(_LOOK_AGAIN_SECONDS)

    def stop(self) -> None:
        """Idempotent."""
        self._stopped.set()
        stop_all([each.stop for each in self._informers.values()], STOP_SECONDS)

    @property
    def problem(self) -> str | None:
        """Why the objects may be outdated; None where they are up to date."""
        with self._lock:
            informers = list(self._informers.values())
        waiting = still_to_come(informers)
        if waiting:
            return f"{self._client.server}: not listed yet: {', '.join(waiting)}"
        return next((each.problem for each in informers if each.problem), None)

    def verify(self) -> None:
        """Raise Unavailable unless everything is up to date."""
        problem = self.problem
        if problem is not None:
            raise Unavailable(problem)

    # ---- what there is

    @property
    def cluster_document(self) -> Document | None:
        return self._stores[self._clusters].current().get(self._cluster_name)

    def cluster(self) -> ClusterIdentity | None:
        """Return the Cluster; None where there is none."""
        found = self.cluster_document
        if found is None:
            return None
        return ClusterIdentity(
            name=self._cluster_name,
            namespace=self._clusters.namespace,
            uid=str(found["metadata"]["uid"]),
            api_version=self._clusters.api_version,
            fleet=self._fleet,
            failure_domains=_failure_domains(mapping(found, "status", "", [])),
        )

    def by_token(self) -> Mapping[str, list[OwnObject]]:
        """Return our objects of each instance, its Machine first."""
        found: dict[str, list[OwnObject]] = {}
        with self._lock:
            stores = dict(self._stores)
        for collection in (self.machines, *(each for each in stores if each not in (self.machines, self._clusters))):
            for document in stores[collection].current().values():
                each = OwnObject(collection, document)
                found.setdefault(each.token, []).append(each)
        return found

    # ---- what we did

    def wrote(self, collection: Collection, document: Document) -> None:
        self._stores[collection].wrote(document)

    def asked_to_delete(self, each: OwnObject) -> None:
        self._stores[each.collection].asked_to_delete(each.document)

    def _follow(self, collection: Collection, query: Mapping[str, str], decode: Any) -> None:
        with self._lock:
            if collection in self._stores:
                return
            store = self._stores[collection] = WrittenObjects(self._clock)
            resource = Resource(collection.path, decode, Encoding.JSON, query)
            informer = self._informers[collection] = Informer(Reflector(self._client, resource, store))
        informer.start()


def _any(document: Any) -> Document:
    found: Document = document
    return found


def _own(document: Any) -> Document:
    if not mapping(mapping(document, "metadata", "", []), "annotations", "", []).get(TOKEN):
        raise InvalidInput(f"has no annotation {TOKEN}, by which cagrpc knows its own")
    return _any(document)


def _failure_domains(status: Mapping[str, Any]) -> frozenset[str]:
    """Return the names: the keys of a mapping in v1beta1, in a list from v1beta2 on."""
    found = status.get("failureDomains")
    if isinstance(found, Mapping):
        return frozenset(map(str, found))
    return frozenset(str(each.get("name")) for each, _ in members(status, "failureDomains", "", []))
