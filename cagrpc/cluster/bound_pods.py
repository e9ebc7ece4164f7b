"""Bound pods as they come from files and lists, reduced to what the cluster model reads: those that differ in nothing
else than their names and nodes are kept once. A hundred thousand pods of a few thousand workloads take as much memory,
and as much reading, as the workloads."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS
from cagrpc.api.core.gangs import MIN_COUNT, VOLCANO_GROUP
from cagrpc.api.core.movability import DO_NOT_DISRUPT, SAFE_TO_EVICT, SAFE_TO_EVICT_LOCAL_VOLUMES
from cagrpc.api.core.slack import EXCLUDE, SHAPE
from cagrpc.api.core.slack import MIRROR as SLACK_MIRROR
from cagrpc.api.core.volumes import IN_TREE, UNSHARED
from cagrpc.api.encoding.json_documents import epoch_seconds, mapping
from cagrpc.api.files.documents import ManifestDocument
from cagrpc.cluster.view.objects import MIRROR

ENDED = ("Succeeded", "Failed")
_OF_SPECS = frozenset((
    "affinity", "hostNetwork", "nodeName", "nodeSelector", "overhead", "priority", "priorityClassName",
    "resourceClaims", "resources", "restartPolicy", "runtimeClassName", "schedulerName", "schedulingGates",
    "schedulingGroup", "tolerations", "topologySpreadConstraints",
))  # fmt: skip
_OF_METADATA = ("namespace", "labels", "annotations", "ownerReferences", "deletionTimestamp")
_OF_CONTAINERS = ("name", "ports", "resources", "restartPolicy")
_CLAIMING = frozenset(("ephemeral", "persistentVolumeClaim", *IN_TREE, *UNSHARED))
_OF_VOLUMES = ("name", *sorted(_CLAIMING), "emptyDir", "hostPath")
_ANNOTATIONS = frozenset(
    (
        SAFE_TO_EVICT, SAFE_TO_EVICT_LOCAL_VOLUMES, DO_NOT_DISRUPT, VOLCANO_GROUP, MIN_COUNT, MIRROR, SLACK_MIRROR,
        EXCLUDE, SHAPE, *CONSUME_KEYS, *CLASS_KEYS,
    )
)  # fmt: skip
_CONSUMING = frozenset((*CONSUME_KEYS, *CLASS_KEYS))
_WITHOUT_REFERENCES = 2
"""The last version of Python's serialization in which equal values are equal bytes."""
_RESIZED = ("allocatedResources", "resources")


class StandingPod(NamedTuple):
    """What tells a pod from others that are alike."""

    node: str
    name: str
    uid: str
    created_at_seconds: int


@dataclass(slots=True, eq=False)
class AlikePods:
    """Pods that differ in nothing that planning reads but their names and nodes."""

    like: ManifestDocument
    """One of them, reduced."""
    pods: list[StandingPod] = field(default_factory=list)


class StandingPods:
    """Keeps the pods that are bound to a node and have not ended."""

    def __init__(self) -> None:
        self.alike: list[AlikePods] = []
        """They are in the order in which they came."""
        self._known: dict[bytes, AlikePods] = {}

    def __bool__(self) -> bool:
        return bool(self.alike)

    def add(self, document: ManifestDocument) -> bool:
        """Keep a pod; return whether it is one that is bound. All else is left to the caller."""
        if document.kind != "Pod":
            return False
        spec, status = document.spec, mapping(document.body, "status")
        if not spec.get("nodeName") or status.get("phase") in ENDED:
            return False
        metadata = document.metadata
        try:
            body = _reduced(metadata, spec, status)
            key = _key(body)
        except (AttributeError, TypeError, ValueError):  # what is malformed is told by who reads it
            body, key = dict(document.body), None
        alike = None if key is None else self._known.get(key)
        if alike is None:
            alike = AlikePods(ManifestDocument(document.place, body))
            self.alike.append(alike)
            if key is not None:
                self._known[key] = alike
        said = metadata.get("creationTimestamp")
        created = said if isinstance(said, int) else epoch_seconds(said)
        name = str(metadata.get("name") or metadata.get("generateName") or "")
        alike.pods.append(StandingPod(str(spec["nodeName"]), name, str(metadata.get("uid") or ""), created))
        return True


def _key(body: Mapping[str, Any]) -> bytes | None:
    """Return what pods that are alike have in common; None of one whose volumes or claims are its own, that consumes a
    ProvisioningRequest, or that selects namespaces, which may change. Raises ValueError for values that JSON does not
    have."""
    spec, metadata = body["spec"], body["metadata"]
    consumes = not _CONSUMING.isdisjoint(metadata.get("annotations", ()))
    claims = spec.get("resourceClaims") or any(not _CLAIMING.isdisjoint(each) for each in spec.get("volumes", ()))
    if consumes or claims:
        return None
    said = [metadata.get(key) for key in _OF_METADATA]
    shared = {**spec, "nodeName": ""}
    # Ten times as fast as JSON. Pods that have the same in another order are only read twice.
    key = marshal.dumps((said, shared, body["status"]), _WITHOUT_REFERENCES)
    return None if b"namespaceSelector" in key else key


def _reduced(metadata: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: metadata[key] for key in ("name", "generateName", "namespace", "uid", "labels") if key in metadata}
    said = metadata.get("annotations")
    annotations = {key: said[key] for key in said if key in _ANNOTATIONS} if said else {}
    if annotations:
        kept["annotations"] = annotations
    kept |= {key: metadata[key] for key in ("creationTimestamp", "deletionTimestamp") if metadata.get(key)}
    owners = metadata.get("ownerReferences")
    if owners:
        kept["ownerReferences"] = [
            {key: each[key] for key in ("kind", "name", "controller") if key in each} for each in owners
        ]
    return {
        "kind": "Pod",
        "metadata": kept,
        "spec": reduced_spec(spec),
        "status": _status(status, timed=DO_NOT_DISRUPT in annotations),
    }


def _status(status: Mapping[str, Any], *, timed: bool) -> dict[str, Any]:
    found = {key: status[key] for key in ("resourceClaimStatuses", *_RESIZED) if status.get(key)}
    if timed and status.get("startTime"):
        found["startTime"] = status["startTime"]
    for key in ("containerStatuses", "initContainerStatuses"):
        resized = [
            {"name": each.get("name"), **{of: each[of] for of in _RESIZED if of in each}}
            for each in status.get(key) or ()
            if "resources" in each
        ]
        if resized:
            found[key] = resized
    pending = [each for each in status.get("conditions") or () if each.get("type") == "PodResizePending"]
    if pending:
        found["conditions"] = [{"type": each["type"], "reason": each.get("reason")} for each in pending]
    return found


def reduced_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what planning reads of a v1.PodSpec in JSON shape."""
    found = {key: value for key, value in spec.items() if key in _OF_SPECS and value is not None}
    host = bool(spec.get("hostNetwork"))
    for kind in ("containers", "initContainers"):
        if spec.get(kind):
            found[kind] = [_container(each, host) for each in spec[kind]]
    volumes = [
        {key: each[key] for key in _OF_VOLUMES if key in each}
        for each in spec.get("volumes") or ()
        if any(key in each for key in _OF_VOLUMES[1:])
    ]
    return {**found, **({"volumes": volumes} if volumes else {})}


def _container(container: Mapping[str, Any], host: bool) -> dict[str, Any]:
    found = {key: container[key] for key in _OF_CONTAINERS if container.get(key)}
    ports = [each for each in found.pop("ports", ()) if host or each.get("hostPort")]
    return {**found, **({"ports": ports} if ports else {})}
