"""Objects of resource.k8s.io in files: what the claims of pods come to. Pods and nodes are read in `manifests`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cagrpc.api.core.pod_claims import pod_claims
from cagrpc.api.core.resources import Problems
from cagrpc.api.core.selectors import PodIdentity
from cagrpc.api.devices.claims import NO_DEMAND, DeviceDemand, carrying, with_demand, with_extended
from cagrpc.api.devices.collection import DeviceObjects
from cagrpc.api.devices.matching import NodeMatching
from cagrpc.api.devices.reading import (
    device_class,
    resource_claim,
    resource_claim_template,
    resource_slice,
)
from cagrpc.api.files.documents import ManifestDocument
from solver.model import Node, PodSpec

KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice")


class DevicesOfFiles:
    """Reads the objects first, then the claims of pods, which refer to them."""

    def __init__(self, by_kind: Mapping[str, Iterable[ManifestDocument]], problems: Problems) -> None:
        """`by_kind` has all documents; problems are added, each with its document."""
        found: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        readers = (resource_claim, resource_claim_template, device_class, resource_slice)
        for kind, read in zip(KINDS, readers, strict=True):
            for document in by_kind.get(kind, ()):
                here: Problems = []
                found[kind].append((f"{document.namespace}/{document.name}", read(document.body, here)))
                problems.extend(f"{document.place}: {problem}" for problem in here)
        claims, templates, classes, slices = (found[kind] for kind in KINDS)
        self._objects = DeviceObjects(
            (claim for _, claim in claims),
            dict(templates),
            (each for _, each in classes),
            (each for _, each in slices),
        )
        self._carried: set[str] = set()

    def demand(self, document: ManifestDocument, pod: Mapping[str, Any], path: str) -> DeviceDemand:
        """Return what the claims of a pod, or of a template's pods, come to."""
        asked = pod_claims(pod, [])  # `pod_spec` and the schema report what is malformed
        uid = str(document.metadata.get("uid") or "") if not path else ""
        return self._objects.demand(document.namespace, uid, asked) if asked.claims else NO_DEMAND

    def divided(
        self, spec: PodSpec, identity: PodIdentity, demanded: DeviceDemand, count: int
    ) -> Iterable[tuple[PodSpec, PodIdentity, int]]:
        """Yield the pods with their claims: a shared claim is planned with the first pod that names it and is not kept
        from every node by something else, and the others are tied to that one."""
        self._objects.use_extended(spec)
        spec = with_extended(spec, self._objects.backed)
        keys = {key for key, _ in demanded.shared}
        blocked = bool(demanded.problem or spec.unschedulable)
        first = frozenset() if blocked else keys - self._carried
        if first:
            self._carried |= keys
            labels = {**identity.labels, **carrying(sorted(first))}
            yield with_demand(spec, demanded, first, keys), replace(identity, labels=labels), 1
        if rest := count - bool(first):
            yield with_demand(spec, demanded, frozenset(), keys), identity, rest

    def of_daemon(self, spec: PodSpec, demanded: DeviceDemand) -> PodSpec:
        """Return a DaemonSet's pod with its own claims."""
        self._objects.use_extended(spec)
        return with_demand(with_extended(spec, self._objects.backed), demanded, frozenset(), frozenset())

    def matching(self) -> NodeMatching:
        return self._objects.matching()


def with_devices(node: Node, matching: NodeMatching) -> Node:
    """Return the node with those of its devices that nobody has."""
    return replace(node, devices=matching.of_node(node.name, node.allocatable, node.free)) if matching.any else node
