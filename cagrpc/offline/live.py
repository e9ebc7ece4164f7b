"""`--kubeconfig` of `cagrpc plan`, `explain` and `report`: objects of a running cluster, by list requests alone, page
by page: whoever may view the cluster and list its nodes can report on it and plan for it. What may not be listed is
reported, with what follows. Nothing is changed there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cagrpc.api.files.documents import ManifestDocument
from cagrpc.backends.registry import cluster_sources
from cagrpc.cluster.bound_pods import StandingPods
from cagrpc.cluster.documents import DocumentReader, followed_kinds
from cagrpc.config.files import expand_documents
from cagrpc.config.groups import Expanded
from cagrpc.errors import CagrpcError, InvalidInput, NotFound, Unavailable
from cagrpc.fleet.catalogue import Catalogue
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.envelopes import Encoding, identity
from cagrpc.kube.client.failures import Expired, Forbidden

_ATTEMPTS = 3

_STORAGE = "where volumes are is not known: pods with volumes are planned as if these could be anywhere"
_DEVICES = "what claims ask for is not known: pods with resource claims cannot be planned"
_ROOM = "the room of storage drivers is not looked at"
_MEANINGS: Mapping[str, str] = {
    "Namespace": "affinity to namespaces by their labels matches no namespace",
    "DaemonSet": "DaemonSets are known by their pods alone",
    "PriorityClass": "none: running pods carry their priority",
    "RuntimeClass": "none: running pods carry their overhead",
    "PodDisruptionBudget": "pods that a budget keeps from being evicted are planned as if they could be moved",
    "PersistentVolumeClaim": _STORAGE,
    "PersistentVolume": _STORAGE,
    "StorageClass": _STORAGE,
    "CSINode": "how many volumes a node attaches is not known: any number",
    "VolumeAttachment": "volumes that are being detached do not count",
    "CSIDriver": _ROOM,
    "CSIStorageCapacity": _ROOM,
    "ResourceClaim": _DEVICES,
    "ResourceClaimTemplate": _DEVICES,
    "DeviceClass": _DEVICES,
    "ResourceSlice": _DEVICES,
    "CapacityQuota": "the limits that they set are not known",
    "PodGroup": "the minimum counts of pod groups are those of pods' annotations",
}
"""What follows where objects of a kind cannot be listed; without others, nodes and pods, nothing can be said."""
OF_MOVING_PODS = frozenset({"PodDisruptionBudget"})
"""What matters for pods that move alone."""
OF_WAITING_PODS = frozenset({"PodGroup", "CSIDriver", "CSIStorageCapacity"})
"""What matters for pods that wait alone."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Objects that could not be read: their resource, and what follows."""

    resource: str
    meaning: str


def read_live(
    kubeconfig: Path, context: str, reader: DocumentReader, catalogue: Catalogue | None
) -> tuple[Sequence[Unread], Expanded | None]:
    """Give the reader the cluster of a kubeconfig's context; return what could not be read of it and, with a
    `catalogue`, its own provisioners. Raises InvalidInput, and Unavailable where nodes or pods are not listed."""
    with closing(Client.connect(kubeconfig, context)) as client:
        unread = read_resources(client, reader)
        return unread, None if catalogue is None else provisioners_of(client, catalogue)


def read_resources(client: Client, reader: DocumentReader) -> tuple[Unread, ...]:
    """Give the reader what the cluster has of all that it reads; return what could not be read. Raises Unavailable
    where nodes or pods cannot be listed."""
    without = OF_MOVING_PODS if reader.moving is None else OF_WAITING_PODS
    unread: dict[Unread, None] = {}
    served, listed = set(), set()
    for path, kind in followed_kinds():
        if kind in without or _group(path) in served:
            continue  # a newer version has the same objects
        try:
            found = _listed(client, path, kind, reader)
            served.add(_group(path))
        except NotFound:
            found = []  # the cluster does not serve it, so nothing is of it
        except CagrpcError as error:
            if kind not in _MEANINGS:
                raise Unavailable(f"{kind.lower()}s of all namespaces need to be listed: {error}") from error
            why = "not allowed" if isinstance(error, Forbidden) else "not answered"
            unread[Unread(f"{path.rpartition('/')[2]} ({why})", _MEANINGS[kind])] = None
            continue
        listed.add(kind)
        reader.documents += found
    reader.listed = listed
    return tuple(unread)


def _group(path: str) -> tuple[str, str]:
    """Return the group and the plural of a collection, whatever its version."""
    versioned, _, plural = path.rpartition("/")
    return versioned.rpartition("/")[0], plural


def _listed(client: Client, path: str, kind: str, reader: DocumentReader) -> list[ManifestDocument]:
    """Return all objects of a collection but pods that are bound, which are the reader's from now on."""
    version = path.removeprefix("/apis/").removeprefix("/api/").rpartition("/")[0]
    for attempt in range(_ATTEMPTS):
        read: list[ManifestDocument] = []
        bound = StandingPods()
        try:
            for body in client.items(path):
                place = f"{path} ({identity(Encoding.JSON, body)})"
                document = ManifestDocument(place, {"apiVersion": version, **body, "kind": kind})
                if not bound.add(document):
                    read.append(document)
        except Expired:
            # it took longer than the API server keeps a list's continuation
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            if bound:
                reader.bound = bound
            return read
    return []


def provisioners_of(client: Client, catalogue: Catalogue) -> Expanded:
    """Return those that the cluster has for a backend of ours: NodePools, or MachineDeployments. Raises InvalidInput
    where there are none that could be read."""
    why = []
    for source in cluster_sources().values():
        try:
            found = source.read(client, "", "")
        except (InvalidInput, NotFound) as error:
            why.append(str(error))
            continue
        documents: Mapping[str, Any] = dict(found.sections)
        expanded = expand_documents(documents["provisioners"], f"{source.name} of {client.server}", catalogue)
        return replace(expanded, warnings=(*found.warnings, *expanded.warnings))
    raise InvalidInput("\n".join(["--provisioners is needed: the cluster has none that could be read", *why]))
