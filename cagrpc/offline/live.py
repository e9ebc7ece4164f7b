"""Objects of a running cluster, by list requests alone, page by page: whoever may view the cluster and list its nodes
can report on it and plan for it. What may not be listed is told, with what follows. What becomes of the objects is said
in `dry_run` and in `cagrpc.report`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cagrpc.api.files.documents import ManifestDocument
from cagrpc.cluster.bound_pods import BoundPods, ReducedPod
from cagrpc.errors import CagrpcError, InvalidInput, NotFound, Unavailable
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.envelopes import Encoding, page
from cagrpc.kube.client.failures import Expired, Forbidden

BUDGET_KIND = "PodDisruptionBudget"

_PAGE = 500
_ATTEMPTS = 3
_VERSIONS_OF_DRA = ("v1", "v1beta2", "v1beta1")

_STORAGE = "where volumes are is not known: pods with volumes are planned as if these could be anywhere"
_DEVICES = "what claims ask for is not known: pods with resource claims are planned as if they needed no devices"
_GANGS = "the minimum counts of pod groups are those of pods' annotations"
_ROOM = "the room of storage drivers is not looked at"
RESOURCES: tuple[tuple[str, str, str], ...] = (
    ("/api/v1/nodes", "Node", ""),
    ("/api/v1/pods", "Pod", ""),
    ("/api/v1/namespaces", "Namespace", "affinity to namespaces by their labels matches no namespace"),
    ("/apis/apps/v1/daemonsets", "DaemonSet", "DaemonSets are known by their pods alone"),
    ("/apis/scheduling.k8s.io/v1/priorityclasses", "PriorityClass", "none: running pods carry their priority"),
    ("/apis/node.k8s.io/v1/runtimeclasses", "RuntimeClass", "none: running pods carry their overhead"),
    ("/api/v1/persistentvolumeclaims", "PersistentVolumeClaim", _STORAGE),
    ("/api/v1/persistentvolumes", "PersistentVolume", _STORAGE),
    ("/apis/storage.k8s.io/v1/storageclasses", "StorageClass", _STORAGE),
    ("/apis/storage.k8s.io/v1/csinodes", "CSINode", "how many volumes a node attaches is not known: any number"),
    ("/apis/resource.k8s.io/{dra}/resourceclaims", "ResourceClaim", _DEVICES),
    ("/apis/resource.k8s.io/{dra}/resourceclaimtemplates", "ResourceClaimTemplate", _DEVICES),
    ("/apis/resource.k8s.io/{dra}/deviceclasses", "DeviceClass", _DEVICES),
    ("/apis/resource.k8s.io/{dra}/resourceslices", "ResourceSlice", _DEVICES),
)
"""Collections, the kind of their objects, and what follows where they cannot be listed; empty where nothing can be
said then."""
OF_MOVING_PODS: tuple[tuple[str, str, str], ...] = (
    (
        "/apis/policy/v1/poddisruptionbudgets",
        BUDGET_KIND,
        "pods that a budget keeps from being evicted are planned as if they could be moved",
    ),
)
"""The same, of what matters for pods that move."""
OF_WAITING_PODS: tuple[tuple[str, str, str], ...] = (
    ("/apis/scheduling.x-k8s.io/v1alpha1/podgroups", "PodGroup", _GANGS),
    ("/apis/scheduling.volcano.sh/v1beta1/podgroups", "PodGroup", _GANGS),
    ("/apis/scheduling.k8s.io/v1alpha2/podgroups", "PodGroup", _GANGS),
    (
        "/apis/storage.k8s.io/v1/volumeattachments",
        "VolumeAttachment",
        "volumes that are being detached do not count",
    ),
    ("/apis/storage.k8s.io/v1/csidrivers", "CSIDriver", _ROOM),
    ("/apis/storage.k8s.io/v1/csistoragecapacities", "CSIStorageCapacity", _ROOM),
)
"""The same, of what matters for pods that wait."""
TOGETHER = (
    frozenset({"PersistentVolumeClaim", "PersistentVolume", "StorageClass"}),
    frozenset({"ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice"}),
)
"""Kinds of which one is of no use without the others."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Objects that could not be read: their resource, and what follows."""

    resource: str
    meaning: str


@dataclass
class Listed:
    """What the cluster has."""

    documents: list[ManifestDocument] = field(default_factory=list)
    """In the order of the resources; bound pods are apart."""
    bound: BoundPods = field(default_factory=BoundPods)
    unread: list[Unread] = field(default_factory=list)


def read_resources(client: Client, resources: Sequence[tuple[str, str, str]]) -> Listed:
    """Return what the cluster has. Raises Unavailable where nodes or pods cannot be listed."""
    found: dict[str, list[ManifestDocument | ReducedPod]] = {}
    result = Listed()
    missing = set()
    for path, kind, meaning in resources:
        try:
            found.setdefault(kind, []).extend(_listed(client, path, kind, result.bound))
        except NotFound:
            continue  # the cluster does not serve it, so nothing is of it
        except CagrpcError as error:
            if not meaning:
                raise Unavailable(f"{kind.lower()}s of all namespaces need to be listed: {error}") from error
            missing.add(kind)
            why = "not allowed" if isinstance(error, Forbidden) else "not answered"
            result.unread.append(Unread(f"{path.rpartition('/')[2]} ({why})", meaning))
    useless = {kind for kinds in TOGETHER if kinds & missing for kind in kinds}
    for each in (each for kind, kept in found.items() if kind not in useless for each in kept):
        if isinstance(each, ReducedPod):
            result.bound.keep(each)
        else:
            result.documents.append(each)
    return result


def _listed(client: Client, path: str, kind: str, bound: BoundPods) -> list[ManifestDocument | ReducedPod]:
    """Return all objects of a collection; pods that are bound are reduced by `bound`, and not kept yet."""
    versions = _VERSIONS_OF_DRA if "{dra}" in path else ("",)
    for index, version in enumerate(versions):
        try:
            return _of_version(client, path.format(dra=version), kind, bound)
        except NotFound:
            if index == len(versions) - 1:
                raise
    return []


def _of_version(client: Client, path: str, kind: str, bound: BoundPods) -> list[ManifestDocument | ReducedPod]:
    version = path.removeprefix("/apis/").removeprefix("/api/").rpartition("/")[0]
    for attempt in range(_ATTEMPTS):
        read: list[ManifestDocument | ReducedPod] = []
        try:
            for body in _pages(client, path):
                document = ManifestDocument(f"{path} ({_name(body)})", {"apiVersion": version, **body, "kind": kind})
                read.append(bound.reduced(document) or document)
        except Expired:
            # it took longer than the API server keeps a list's continuation
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return read
    return []


def _pages(client: Client, path: str) -> Iterator[Mapping[str, Any]]:
    token = ""
    while True:
        query = {"limit": str(_PAGE), **({"continue": token} if token else {})}
        try:
            found = page(Encoding.JSON, client.read(path, query, Encoding.JSON))
        except InvalidInput as error:
            raise Unavailable(f"{client.server}{path}: {error}") from error
        yield from (each for each in found.items if isinstance(each, Mapping))
        token = found.continue_token
        if not token:
            return


def _name(body: Mapping[str, Any]) -> str:
    metadata = body.get("metadata")
    named = metadata if isinstance(metadata, Mapping) else {}
    return "/".join(str(named[key]) for key in ("namespace", "name") if named.get(key))
