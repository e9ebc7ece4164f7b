"""Claims, volumes, storage classes and attachments of files, and what these come to for the pods of the same files. The
meaning is `cagrpc.api.core.volume_binding`'s, the rest of the pods `manifests`'s."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from cagrpc.api.core.claim_users import ClaimUser, ClaimUsers, OtherUsers
from cagrpc.api.core.nodes import INSTANCE_TYPE
from cagrpc.api.core.pods import Pod
from cagrpc.api.core.resources import Problems, mapping, members
from cagrpc.api.core.selectors import PodIdentity
from cagrpc.api.core.storage_capacity import Reach, keeps_count, reach, storage_capacity
from cagrpc.api.core.volume_binding import (
    bound_by,
    default_of,
    demand,
    with_attachments,
)
from cagrpc.api.core.volume_choice import ChosenVolumes, choose
from cagrpc.api.core.volumes import (
    PodVolumes,
    StorageClass,
    Volume,
    VolumeClaim,
    attach_limits,
    attachment,
    claim,
    claim_to_be_made,
    pod_volumes,
    storage_class,
    volume,
    with_templates,
)
from cagrpc.api.encoding.times import epoch_seconds
from cagrpc.api.files.documents import ManifestDocument
from solver.model import ATTACHABLE_VOLUMES, Node, PodSpec, Resources

STORAGE_KINDS = (
    "PersistentVolumeClaim",
    "PersistentVolume",
    "StorageClass",
    "CSINode",
    "VolumeAttachment",
    "CSIStorageCapacity",
    "CSIDriver",
)
_WHAT_SAYS_WHERE = ("PersistentVolumeClaim", "StorageClass")


class StorageOfFiles:
    def __init__(
        self,
        found: Mapping[str, Sequence[ManifestDocument]] | None = None,
        pods: Sequence[ManifestDocument] = (),
        problems: Problems | None = None,
    ) -> None:
        """`found` has the documents of `STORAGE_KINDS`, `pods` all pods of the files."""
        found = found or {}
        self._problems = [] if problems is None else problems
        self._known = any(found.get(kind) for kind in _WHAT_SAYS_WHERE)
        self._passed_over = ""
        read = {kind: [(each, self._read(kind, each)) for each in found.get(kind, ())] for kind in STORAGE_KINDS}
        self._claims: dict[str, VolumeClaim] = {each.key: each for _, each in read["PersistentVolumeClaim"]}
        self._volumes: dict[str, Volume] = {each.name: each for _, each in read["PersistentVolume"]}
        self._classes: dict[str, StorageClass] = {each.name: each for _, each in read["StorageClass"]}
        self._limits: dict[str, dict[str, int]] = {document.name: limits for document, limits in read["CSINode"]}
        self._capacities = [each for _, each in read["CSIStorageCapacity"]]
        self._keep_count = {document.name for document, keeps in read["CSIDriver"] if keeps}
        self._attached: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
        for _, each in read["VolumeAttachment"]:
            if each.driver and each.volume:
                self._attached[each.node].add((each.driver, each.volume))
        self._users: defaultdict[str, ClaimUsers] = defaultdict(ClaimUsers)
        self._to_be_made: dict[str, VolumeClaim] = {}
        self._drivers: set[str] = set()
        self._learn(pods)

    def _read(self, kind: str, document: ManifestDocument) -> Any:
        here: Problems = []
        read = (claim, volume, storage_class, attach_limits, attachment, storage_capacity, keeps_count)
        readers: Mapping[str, Any] = dict(zip(STORAGE_KINDS, read, strict=True))
        found = readers[kind](document.body, here)
        self._problems.extend(f"{document.place}: {problem}" for problem in here)
        return found

    def _learn(self, pods: Sequence[ManifestDocument]) -> None:
        """Learn who uses which claim, and what nodes attach for those that run."""
        running, waiting = [], []
        for document in pods:
            status = mapping(document.body, "status", "", [])
            volumes = _volumes(document, document.spec, "spec", [])
            if not volumes or status.get("phase") in ("Succeeded", "Failed"):
                continue
            node = str(document.spec.get("nodeName") or "")
            ends = document.metadata.get("deletionTimestamp") is not None
            user = ClaimUser(f"{document.namespace}/{document.name}", node, ends, () if node else _order(document))
            for each in volumes.claims:
                key = f"{document.namespace}/{each.claim}"
                self._users[key].put(_key(document), user)
                if each.template is not None and key not in self._claims:
                    self._to_be_made[key] = claim_to_be_made(key, each.template, self.default_class())
            if node:
                running.append((_pod(document, volumes), node))
            else:
                waiting.append(_pod(document, volumes))
        if not self._known:
            return
        for pod, node in running:
            found = demand(pod, self, running=True)
            self._attached[node].update(found.attached)
            self._drivers.update(driver for driver, _ in found.attached)
        blocked = [pod for pod in waiting if demand(pod, self).blocked]
        for pod in blocked:
            for used in pod.volumes.claims:
                self._users[f"{pod.identity.namespace}/{used.claim}"].block(pod.key, blocked=True)

    # What pods require

    def divided(
        self,
        document: ManifestDocument,
        pod: Mapping[str, Any],
        path: str,
        spec: PodSpec,
        identity: PodIdentity,
        count: int,
    ) -> Iterator[tuple[PodSpec, PodIdentity, int]]:
        """Yield so many pods of a document with what their volumes require, and what only planning sees of them."""
        volumes = self._read_volumes(document, pod, path)
        templates = [each for each, _ in members(document.spec, "volumeClaimTemplates", "spec", [])]
        templates = templates if document.kind == "StatefulSet" else []
        if not (volumes or templates) or not self._known:
            if volumes or templates:
                self._passed_over = self._passed_over or f"{document.namespace}/{document.name}"
            yield spec, identity, count
            return
        alike: Counter[tuple[PodSpec, tuple[tuple[str, str], ...]]] = Counter()
        start = mapping(document.spec, "ordinals", "spec", []).get("start") or 0
        for ordinal in range(start, start + count) if templates else (start,):
            own = with_templates(volumes, templates, document.name, ordinal) if templates else volumes
            of = _pod(document, own)
            found = demand(of, self, _order(document))
            self._drivers.update(driver for driver, _ in found.attached)
            bound, labels = bound_by(spec, found, document.namespace), tuple(found.labels.items())
            further = count - 1 if not templates and (found.of_one_pod or found.shared) else 0
            alike[bound, labels] += 1 if templates else count - further
            if found.of_one_pod:
                bound = replace(bound, unschedulable=bound.unschedulable or found.of_one_pod)
            elif further:
                after = found.after_first()
                bound, labels = bound_by(spec, after, document.namespace), tuple(after.labels.items())
            if further:
                alike[bound, labels] += further
        for (own_spec, of_claims), pods in alike.items():
            yield own_spec, replace(identity, labels={**identity.labels, **dict(of_claims)}), pods

    def of_daemon(self, document: ManifestDocument, pod: Mapping[str, Any], path: str, spec: PodSpec) -> PodSpec:
        """Return a DaemonSet's pod with what its volumes take; what they still lack makes it no smaller."""
        volumes = self._read_volumes(document, pod, path)
        if not volumes or not self._known:
            return spec
        found = demand(_pod(document, volumes), self, running=True)
        self._drivers.update(driver for driver, _ in found.attached)
        return bound_by(spec, found, document.namespace)

    def _read_volumes(self, document: ManifestDocument, pod: Mapping[str, Any], path: str) -> PodVolumes:
        here: Problems = []
        found = _volumes(document, mapping(pod, "spec", path, []), f"{path}.spec".removeprefix("."), here)
        self._problems.extend(f"{document.place}: {problem}" for problem in here)
        return found

    # What nodes attach

    def on_node(self, node: Node) -> Node:
        """Return the node with the number of volumes that it can still attach."""
        limits = self._limits.get(node.name, {})
        taken = Counter(driver for driver, _ in self._attached.get(node.name, ()))
        offered = with_attachments({}, self._drivers, limits)
        left = {name: max(0, most - taken[name.removeprefix(ATTACHABLE_VOLUMES)]) for name, most in offered.items()}
        return replace(node, free={**node.free, **left})

    def of_group(self, allocatable: Resources, instance_type: str, nodes: Iterable[Node]) -> Resources:
        """Return what a new node has for pods, with the number of volumes that it attaches: as nodes of its type do,
        or as it says itself, or any number."""
        seen: dict[str, int] = {}
        for node in nodes if instance_type else ():
            if node.labels.get(INSTANCE_TYPE) == instance_type:
                limits = self._limits.get(node.name, {})
                seen.update({driver: min(count, seen.get(driver, count)) for driver, count in limits.items()})
        return with_attachments(allocatable, self._drivers, seen)

    def warnings(self) -> Iterator[str]:
        if self._passed_over:
            yield (
                f"the volumes of pods, for example of {self._passed_over}, were not looked at: neither claims nor"
                " storage classes are in the files; pass those of the cluster as well (kubectl get"
                " pvc,pv,sc,csinodes,csidrivers,csistoragecapacities -A -o yaml)"
            )

    # `StorageObjects`

    def claim(self, key: str) -> VolumeClaim | None:
        return self._claims.get(key)

    def volume(self, name: str) -> Volume | None:
        return self._volumes.get(name)

    def storage_class(self, name: str) -> StorageClass | None:
        return self._classes.get(name)

    def default_class(self) -> StorageClass | None:
        return default_of(self._classes.values())

    def chosen_volumes(self, claim: VolumeClaim, of: StorageClass) -> ChosenVolumes | None:
        return self._chosen.get(of.name, {}).get(claim.key)

    def reach(self, of: StorageClass, size: int) -> Reach:
        return reach(self._capacities, of.name, size) if of.provisioner in self._keep_count else None

    def users(self, claim: str, pod: str) -> OtherUsers:
        return self._users.get(claim, ClaimUsers()).others(pod)

    @cached_property
    def _unbound(self) -> Mapping[str, Sequence[Volume]]:
        found: defaultdict[str, list[Volume]] = defaultdict(list)
        for each in self._volumes.values():
            of = self._claims.get(each.claim)
            if of is None or not of.bound:
                found[each.class_name].append(each)
        return found

    @cached_property
    def _chosen(self) -> Mapping[str, Mapping[str, ChosenVolumes]]:
        waiting: defaultdict[str, list[VolumeClaim]] = defaultdict(list)
        for key in self._users:
            of = self._claims.get(key) or self._to_be_made.get(key)
            if of is not None and not (of.bound or of.volume or of.selected_node):
                waiting[of.spec.class_name or ""].append(of)
        return {name: choose(claims, self._unbound.get(name, ())) for name, claims in waiting.items()}


def _volumes(document: ManifestDocument, spec: Mapping[str, Any], path: str, problems: Problems) -> PodVolumes:
    of_template = document.kind != "Pod"  # whose pods have names of their own
    return pod_volumes(spec, f"{document.name}-*" if of_template else document.name, path, problems)


def _key(document: ManifestDocument) -> str:
    return str(document.metadata.get("uid") or f"{document.namespace}/{document.name}")


def _pod(document: ManifestDocument, volumes: PodVolumes) -> Pod:
    """Return a pod of the document, as its volumes see it; one of a workload is still to come."""
    key = _key(document) if document.kind == "Pod" else ""
    return Pod(key, f"{document.namespace}/{document.name}", PodSpec(), volumes=volumes)


def _order(document: ManifestDocument) -> tuple[int, str, str]:
    return epoch_seconds(document.metadata.get("creationTimestamp")), document.namespace, document.name
