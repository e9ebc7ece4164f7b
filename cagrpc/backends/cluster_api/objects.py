"""Our objects in the management cluster, kept up to date by informers: the Cluster, Machines and clones; and what a
Machine's status says of its instance: creating, running, deleting, and why a creation has failed.

Cluster API has no terminal failure from v1beta2 on: a provider tries for ever, and most report only that they are not
ready yet. What is known to be a shortage, a quota or a mistake by its reason or message is an error at once; all else
waits for the increment's deadline.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cagrpc.api.encoding.json_documents import Document, mapping, members
from cagrpc.backends.cluster_api.bodies import ClusterIdentity, Collection, selector
from cagrpc.cluster.markers import NODE_GROUP, TOKEN
from cagrpc.errors import ErrorKind, InvalidInput, Unavailable
from cagrpc.fleet.model import InstanceError, InstanceState
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.envelopes import Encoding
from cagrpc.kube.informer.informers import Informer
from cagrpc.kube.informer.resource import Resource
from cagrpc.kube.informer.written import WrittenObjects
from cagrpc.runtime.clock import MonotonicClock
from cagrpc.runtime.health import still_to_come
from cagrpc.runtime.stopping import STOP_SECONDS, stop_all

_KNOWN: tuple[tuple[ErrorKind, tuple[str, ...]], ...] = (
    (
        ErrorKind.CAPACITY,
        (
            "InsufficientInstanceCapacity",  # EC2
            "InsufficientHostCapacity",
            "InsufficientReservedInstanceCapacity",
            "No valid host was found",  # OpenStack Nova
            "NoValidHost",
            "resource_unavailable",  # Hetzner Cloud
            "ZonalAllocationFailed",  # Azure
            "OverconstrainedAllocationRequest",
            "OverconstrainedZonalAllocationRequest",
            "AllocationFailed",
            "SkuNotAvailable",
            "ZONE_RESOURCE_POOL_EXHAUSTED",  # Compute Engine
            "InsufficientResources",  # Cluster API's MachineStatusError
        ),
    ),
    (
        ErrorKind.QUOTA,
        (
            "VcpuLimitExceeded",  # EC2
            "InstanceLimitExceeded",
            "MaxSpotInstanceCountExceeded",
            "Quota exceeded for",  # OpenStack Nova
            "resource_limit_exceeded",  # Hetzner Cloud
            "QuotaExceeded",  # Azure
            "QUOTA_EXCEEDED",  # Compute Engine
        ),
    ),
    (
        ErrorKind.CONFIGURATION,
        (
            "InvalidConfiguration",  # Cluster API's MachineStatusError
            "UnsupportedChange",
            "InvalidAMIID",  # EC2
            "UnauthorizedOperation",
        ),
    ),
)
"""Words of clouds and of Cluster API in reasons and messages, and what they mean."""
_LONGEST_MESSAGE = 500
_CONDITIONS = ("InfrastructureReady", "BootstrapConfigReady", "BootstrapReady")
"""Those that a Machine needs to become a Node; the last is the second's name in v1beta1."""

_LOOK_AGAIN_SECONDS = 0.02


def state_of(machine: Mapping[str, Any]) -> InstanceState:
    if mapping(machine, "metadata").get("deletionTimestamp"):
        return InstanceState.DELETING
    return InstanceState.RUNNING if provider_id(machine) else InstanceState.CREATING


def provider_id(machine: Mapping[str, Any]) -> str:
    """Return the Machine's spec.providerID, which the core sets once the infrastructure is there; else empty."""
    return str(mapping(machine, "spec").get("providerID") or "")


def error_of(machine: Mapping[str, Any]) -> InstanceError | None:
    """Return why a Machine that has no infrastructure yet will not get any; None where that is not known."""
    status = mapping(machine, "status")
    reason, message = _terminal(status)
    if reason or message:
        return InstanceError(
            reason or "failed", _shortened(message or reason), _kind(reason, message) or ErrorKind.OTHER
        )
    for reason, message in _complaints(status):
        kind = _kind(reason, message)
        if kind is not None:
            return InstanceError(reason or kind.value, _shortened(message or reason), kind)
    return None


def complaint_of(machine: Mapping[str, Any]) -> str:
    """Return what the Machine is waiting for, for people; empty where it does not say."""
    found = (": ".join(filter(None, each)) for each in _complaints(mapping(machine, "status")))
    return _shortened("; ".join(found))


def _terminal(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return failureReason and failureMessage, where v1beta1 has them and where v1beta2 keeps them. The core of v1beta2
    copies them from providers of the old contract."""
    for place in (status, mapping(mapping(status, "deprecated"), "v1beta1")):
        reason, message = str(place.get("failureReason") or ""), str(place.get("failureMessage") or "")
        if reason or message:
            return reason, message
    return "", ""


def _complaints(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield reason and message of the conditions that are false."""
    for condition, _ in members(status, "conditions"):
        if condition.get("type") in _CONDITIONS and condition.get("status") == "False":
            yield str(condition.get("reason") or ""), str(condition.get("message") or "")


def _kind(reason: str, message: str) -> ErrorKind | None:
    for kind, words in _KNOWN:
        if any(word in reason or word in message for word in words):
            return kind
    return None


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 1]}…"


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
        self._informers: dict[Collection, Informer[Document]] = {}
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
            failure_domains=_failure_domains(mapping(found, "status")),
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
            informer = self._informers[collection] = Informer(self._client, resource, store)
        informer.start()


def _any(document: Any) -> Document:
    found: Document = document
    return found


def _own(document: Any) -> Document:
    if not mapping(mapping(document, "metadata"), "annotations").get(TOKEN):
        raise InvalidInput(f"has no annotation {TOKEN}, by which cagrpc knows its own")
    return _any(document)


def _failure_domains(status: Mapping[str, Any]) -> frozenset[str]:
    """Return the names: the keys of a mapping in v1beta1, in a list from v1beta2 on."""
    found = status.get("failureDomains")
    if isinstance(found, Mapping):
        return frozenset(map(str, found))
    return frozenset(str(each.get("name")) for each, _ in members(status, "failureDomains"))
