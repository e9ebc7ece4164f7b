"""What a v1.Pod in JSON shape says of being moved: the few fields that `cagrpc.api.core.movability` reads, which pods
that are alike share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cagrpc.api.core.movability import (
    DO_NOT_DISRUPT,
    SAFE_TO_EVICT,
    SAFE_TO_EVICT_LOCAL_VOLUMES,
    SYSTEM_NAMESPACE,
    EvictionFacts,
    eviction_facts,
)
from cagrpc.api.core.resources import mapping, members
from cagrpc.api.encoding.times import epoch_seconds
from cagrpc.api.gen import kubernetes_pb2

_ANNOTATIONS = (SAFE_TO_EVICT, SAFE_TO_EVICT_LOCAL_VOLUMES, DO_NOT_DISRUPT)
CREATED = "created"


def said_of_eviction(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return what matters of a pod, without what is as in most."""
    metadata, spec = mapping(pod, "metadata", "", []), mapping(pod, "spec", "", [])
    annotations = mapping(metadata, "annotations", "", [])
    found: dict[str, Any] = {key: str(annotations[key]) for key in _ANNOTATIONS if annotations.get(key)}
    if DO_NOT_DISRUPT in found:
        found["started"] = epoch_seconds(mapping(pod, "status", "", []).get("startTime"))
    if metadata.get("deletionTimestamp"):
        found["deleted"] = epoch_seconds(metadata["deletionTimestamp"])
    if metadata.get("namespace") == SYSTEM_NAMESPACE:
        found[CREATED] = epoch_seconds(metadata.get("creationTimestamp"))
    owners = (each for each, _ in members(metadata, "ownerReferences", "", []) if each.get("controller"))
    owner = next(owners, None)
    found["owner"] = None if owner is None else str(owner.get("kind"))
    if spec.get("restartPolicy", "Always") != "Always":
        found["restarts"] = str(spec["restartPolicy"])
    volumes = {str(each.get("name")): local for each, _ in members(spec, "volumes", "", []) if (local := _local(each))}
    return {**found, "volumes": volumes} if volumes else found


def _local(volume: Mapping[str, Any]) -> str:
    if "hostPath" in volume:
        return "hostPath"
    return f"emptyDir {mapping(volume, 'emptyDir', '', []).get('medium') or ''}" if "emptyDir" in volume else ""


def facts_of(said: Mapping[str, Any]) -> EvictionFacts:
    """Return the facts of pods of which `said_of_eviction` has said this."""
    pod = kubernetes_pb2.Pod()
    pod.metadata.annotations.update({key: said[key] for key in _ANNOTATIONS if key in said})
    pod.status.startTime.seconds = said.get("started", 0)
    if "deleted" in said:
        pod.metadata.deletionTimestamp.seconds = said["deleted"]
    if said["owner"] is not None:
        pod.metadata.ownerReferences.add(kind=said["owner"], controller=True)
    pod.spec.restartPolicy = said.get("restarts", "Always")
    for name, local in said.get("volumes", {}).items():
        source = pod.spec.volumes.add(name=name).volumeSource
        kind, _, medium = local.partition(" ")
        if kind == "hostPath":
            source.hostPath.SetInParent()
        else:
            source.emptyDir.medium = medium
            source.emptyDir.SetInParent()
    return eviction_facts(pod)
