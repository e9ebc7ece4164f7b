"""Claims, volumes, storage classes and the drivers of nodes, in Kubernetes' JSON shape, to what planning reads of them;
and the claims that a pod uses. What these come to for a pod is in `volume_binding`.

Where a driver that keeps count has room for another volume, CSIStorageCapacities say, with the semantics of the
kube-scheduler's VolumeBinding (hasEnoughCapacity): of drivers whose CSIDriver says `storageCapacity`, each claim alone
is compared with what was published last. Volumes that are still to be made for other claims are not subtracted; where
they do not fit, the driver refuses, and the pod is scheduled anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cagrpc.api.core.constraints import node_term
from cagrpc.api.core.nodes import DEPRECATED_LABELS, REGION, ZONE
from cagrpc.api.core.selectors import label_selector
from cagrpc.api.encoding.json_documents import Problems, mapping, members, strings, texts
from solver.model import Labels, NodeSelectorTerm, Operator, Requirement
from solver.model.quantities import amount

READ_WRITE_ONCE, READ_WRITE_ONCE_POD = "ReadWriteOnce", "ReadWriteOncePod"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
"""The provisioner of classes whose volumes somebody else makes beforehand."""

_BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
_BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_DEFAULT_CLASS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
_STABLE = {**{old: new for old, new in DEPRECATED_LABELS.items() if new in (ZONE, REGION)}, ZONE: ZONE, REGION: REGION}
"""The labels of a volume that VolumeZone reads, and the label that nodes may have in their place."""

IN_TREE = {
    "awsElasticBlockStore": ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    "azureDisk": ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    "cinder": ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    "gcePersistentDisk": ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    "portworxVolume": ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
}
"""Sources of volumes that are attached by a CSI driver now: the provisioner's old name, and the driver (upstream:
k8s.io/csi-translation-lib)."""
_DRIVER_OF = dict(IN_TREE.values())
UNSHARED = ("awsElasticBlockStore", "gcePersistentDisk", "iscsi", "rbd")
"""Sources of disks that two pods on one node must not share (upstream: the plugin VolumeRestrictions)."""
_NAMES_OF_DISKS = ("volumeID", "pdName", "diskURI", "diskName", "id")


def driver_of(provisioner: str) -> str:
    """Return the CSI driver of a provisioner: itself, or the one that an in-tree plugin was migrated to."""
    return _DRIVER_OF.get(provisioner, provisioner)


@dataclass(frozen=True, slots=True)
class VolumeClaimSpec:
    """What a claim asks for."""

    class_name: str | None = None
    """None for the default class; empty for none."""
    access_modes: tuple[str, ...] = ()
    size: int = 0
    """The size in bytes."""
    mode: str = "Filesystem"
    selector: tuple[Requirement, ...] = ()
    attributes_class: str = ""

    @property
    def of_one_pod(self) -> bool:
        return READ_WRITE_ONCE_POD in self.access_modes

    @property
    def of_one_node(self) -> bool:
        return bool(self.access_modes) and {*self.access_modes} <= {READ_WRITE_ONCE, READ_WRITE_ONCE_POD}


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    """A v1.PersistentVolumeClaim."""

    key: str
    """`namespace/name`."""
    spec: VolumeClaimSpec
    uid: str = ""
    volume: str = ""
    """The name of its volume; it is bound once `bound` as well."""
    bound: bool = False
    lost: bool = False
    deleted: bool = False
    selected_node: str = ""
    """Where the scheduler has a volume made for it."""
    owner: str = ""
    """The UID of its controlling owner: the pod, of an ephemeral volume's."""

    @property
    def namespace(self) -> str:
        return self.key.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Volume:
    """A v1.PersistentVolume."""

    name: str
    node_terms: tuple[tuple[NodeSelectorTerm, ...], ...] = ()
    """Its node affinity, and one member for each of its zone and region labels, as in `PodSpec.node_terms`."""
    affinity: tuple[NodeSelectorTerm, ...] | None = None
    """The former alone: what counts before it is bound."""
    driver: str = ""
    """The CSI driver that attaches it; empty where none does."""
    handle: str = ""
    """What its driver knows it by: volumes of one handle are one to a node. Empty where that is not known."""
    class_name: str = ""
    claim: str = ""
    """`namespace/name` of the claim that it is bound to, or kept for."""
    claim_uid: str = ""
    """The UID of that claim, where it is known."""
    available: bool = False
    deleted: bool = False
    access_modes: tuple[str, ...] = ()
    size: int = 0
    mode: str = "Filesystem"
    labels: Labels = field(default_factory=dict)
    attributes_class: str = ""

    @property
    def disk(self) -> str:
        """What tells it from other volumes of its driver."""
        return self.handle or self.name

    def kept_for(self, claim: VolumeClaim) -> bool:
        return self.claim == claim.key and self.claim_uid in ("", claim.uid)


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A storage.k8s.io/v1 StorageClass."""

    name: str
    provisioner: str
    waits: bool = False
    """WaitForFirstConsumer: its volumes are made, or chosen, where the first pod goes."""
    topologies: tuple[NodeSelectorTerm, ...] = ()
    """Terms of which a node must match one for a volume to be made for it; none for all nodes."""
    default: bool = False
    created_at: str = ""

    @property
    def provisions(self) -> bool:
        return self.provisioner not in ("", NO_PROVISIONER)


@dataclass(frozen=True, slots=True)
class PodVolume:
    """A claim that a pod uses."""

    claim: str
    """Its name, in the pod's namespace."""
    template: VolumeClaimSpec | None = None
    """What it asks for once it is made, of a claim that is made for the pod."""
    ephemeral: bool = False
    """Whether it must be the pod's own."""


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """What a pod uses of volumes that may not be everywhere."""

    claims: tuple[PodVolume, ...] = ()
    inline: tuple[tuple[str, str], ...] = ()
    """Disks named in the pod itself: driver and disk."""
    unshared: tuple[tuple[str, bool], ...] = ()
    """Those of them that no other pod on its node may have, and whether it only reads them, as it may with others that
    do."""

    def __bool__(self) -> bool:
        return bool(self.claims or self.inline or self.unshared)


NO_VOLUMES = PodVolumes()


def of_default_class(found: VolumeClaim, default: StorageClass | None) -> VolumeClaim:
    """Return a claim with the class that it gets where it names none: the default one, which Kubernetes also sets later
    on a claim that waits for a volume (assignDefaultStorageClass of the volume controller)."""
    if found.spec.class_name is not None or found.volume:
        return found
    return replace(found, spec=replace(found.spec, class_name=default.name if default else ""))


def pod_volumes(spec: Mapping[str, Any], name: str, path: str, problems: Problems) -> PodVolumes:
    """Read the `volumes` of a v1.PodSpec; `name` is the pod's."""
    claims: dict[str, PodVolume] = {}
    inline, unshared = set(), dict[str, bool]()
    for volume, at in members(spec, "volumes", path, problems):
        source = volume.get("volumeSource") or volume  # of a message of protobuf, and in JSON
        if source.get("persistentVolumeClaim") is not None:
            used = str(mapping(source, "persistentVolumeClaim", at, problems).get("claimName") or "")
            claims.setdefault(used, PodVolume(used))
        elif source.get("ephemeral") is not None:
            template = mapping(mapping(source, "ephemeral", at, problems), "volumeClaimTemplate", at, problems)
            made = f"{name}-{volume.get('name')}"
            asked = claim_spec(template, f"{at}.ephemeral.volumeClaimTemplate", problems)
            claims.setdefault(made, PodVolume(made, asked, ephemeral=True))
        for kind in IN_TREE.keys() & source.keys():
            disk = mapping(source, kind, at, problems)
            inline.add((IN_TREE[kind][1], _disk_of(disk, at)))
        for name_of_disk, reads in _unshared(source, at, problems):
            unshared[name_of_disk] = reads and unshared.get(name_of_disk, True)
    return PodVolumes(tuple(claims.values()), tuple(sorted(inline)), tuple(sorted(unshared.items())))


def _disk_of(disk: Mapping[str, Any], otherwise: str) -> str:
    return next((str(disk[name]) for name in _NAMES_OF_DISKS if disk.get(name)), otherwise)


def _unshared(source: Mapping[str, Any], path: str, problems: Problems) -> Iterable[tuple[str, bool]]:
    """Yield what tells a disk that two pods must not share from others, and whether it is only read. An RBD image is
    another's that has one of its monitors."""
    for kind in UNSHARED:
        if source.get(kind) is None:
            continue
        disk = mapping(source, kind, path, problems)
        reads = disk.get("readOnly") is True and kind != "awsElasticBlockStore"
        if kind == "rbd":
            image = f"{disk.get('pool') or 'rbd'}/{disk.get('image')}"
            yield from ((f"rbd/{image}@{each}", reads) for each in texts(disk, "monitors", f"{path}.rbd", problems))
        else:
            name = next((str(disk[each]) for each in ("volumeID", "pdName", "iqn", "id") if disk.get(each)), path)
            yield f"{kind}/{name}", reads


def with_templates(
    volumes: PodVolumes, templates: Iterable[Mapping[str, Any]], workload: str, ordinal: int
) -> PodVolumes:
    """Return the volumes of a StatefulSet's pod with this ordinal: each of the `volumeClaimTemplates` becomes a claim
    of its own, which replaces a volume of the same name."""
    found = {each.claim: each for each in volumes.claims}
    for template in templates:
        of = mapping(template, "metadata").get("name")
        claim = f"{of}-{workload}-{ordinal}"
        found[claim] = PodVolume(claim, claim_spec(template, "", []))
    return replace(volumes, claims=tuple(found.values()))


def claim_spec(holder: Mapping[str, Any], path: str, problems: Problems) -> VolumeClaimSpec:
    """Read the `spec` of a claim or of a template of claims."""
    spec, at = mapping(holder, "spec", path, problems), f"{path}.spec".removeprefix(".")
    annotations = strings(mapping(holder, "metadata"), "annotations")
    class_name = annotations.get(_BETA_CLASS, spec.get("storageClassName"))
    requests = mapping(mapping(spec, "resources", at, problems), "requests", at, problems)
    return VolumeClaimSpec(
        class_name=None if class_name is None else str(class_name),
        access_modes=tuple(sorted(texts(spec, "accessModes", at, problems))),
        size=_size(requests, f"{at}.resources.requests", problems, round_up=True),
        mode=str(spec.get("volumeMode") or "Filesystem"),
        selector=label_selector(spec, "selector", at, problems) or (),
        attributes_class=str(spec.get("volumeAttributesClassName") or ""),
    )


def _size(amounts: Mapping[str, Any], path: str, problems: Problems, *, round_up: bool) -> int:
    try:
        return amount("storage", amounts.get("storage", 0), round_up=round_up)
    except (ValueError, TypeError) as error:
        problems.append(f"{path}.storage: {error}")
        return 0


def claim(document: Mapping[str, Any], problems: Problems) -> VolumeClaim:
    """Read a v1.PersistentVolumeClaim."""
    metadata = mapping(document, "metadata", "", problems)
    annotations = strings(metadata, "annotations", "metadata", problems)
    volume = str(mapping(document, "spec", "", problems).get("volumeName") or "")
    owners = members(metadata, "ownerReferences", "metadata", problems)
    return VolumeClaim(
        key=f"{metadata.get('namespace') or 'default'}/{metadata.get('name')}",
        spec=claim_spec(document, "", problems),
        uid=str(metadata.get("uid") or ""),
        volume=volume,
        bound=bool(volume) and _BIND_COMPLETED in annotations,
        lost=mapping(document, "status", "", problems).get("phase") == "Lost",
        deleted=metadata.get("deletionTimestamp") is not None,
        selected_node=annotations.get(_SELECTED_NODE, ""),
        owner=next((str(owner.get("uid")) for owner, _ in owners if owner.get("controller")), ""),
    )


def volume(document: Mapping[str, Any], problems: Problems) -> Volume:
    """Read a v1.PersistentVolume."""
    metadata, spec = mapping(document, "metadata", "", problems), mapping(document, "spec", "", problems)
    labels = strings(metadata, "labels", "metadata", problems)
    annotations = strings(metadata, "annotations", "metadata", problems)
    affinity = _affinity(spec, problems)
    of = mapping(spec, "claimRef", "spec", problems)
    csi = mapping(spec, "csi", "spec", problems)
    kind = next(iter(sorted(IN_TREE.keys() & spec.keys())), "")
    disk = mapping(spec, kind, "spec", problems) if kind else {}
    return Volume(
        name=str(metadata.get("name") or ""),
        node_terms=(*(() if affinity is None else (affinity,)), *_zones(labels)),
        affinity=affinity,
        driver=str(csi.get("driver") or IN_TREE.get(kind, ("", ""))[1]),
        handle=str(csi.get("volumeHandle") or _disk_of(disk, "")),
        class_name=annotations.get(_BETA_CLASS, str(spec.get("storageClassName") or "")),
        claim=f"{of.get('namespace')}/{of.get('name')}" if of else "",
        claim_uid=str(of.get("uid") or ""),
        available=mapping(document, "status", "", problems).get("phase") == "Available",
        deleted=metadata.get("deletionTimestamp") is not None,
        access_modes=tuple(sorted(texts(spec, "accessModes", "spec", problems))),
        size=_size(mapping(spec, "capacity", "spec", problems), "spec.capacity", problems, round_up=False),
        mode=str(spec.get("volumeMode") or "Filesystem"),
        labels=labels,
        attributes_class=str(spec.get("volumeAttributesClassName") or ""),
    )


def _affinity(spec: Mapping[str, Any], problems: Problems) -> tuple[NodeSelectorTerm, ...] | None:
    holder = mapping(spec, "nodeAffinity", "spec", problems)
    if holder.get("required") is None:
        return None
    required, at = mapping(holder, "required", "spec.nodeAffinity", problems), "spec.nodeAffinity.required"
    terms = (node_term(term, here, problems) for term, here in members(required, "nodeSelectorTerms", at, problems))
    # The scheduler compares volumes with the labels of nodes alone: to them every node is without a name.
    return tuple(NodeSelectorTerm((*term.match_expressions, *term.match_fields)) for term in terms)


def _zones(labels: Labels) -> Iterable[tuple[NodeSelectorTerm, ...]]:
    """Yield what VolumeZone requires: of a node that has any of the labels, one of the volume's values. Nodes may have
    the stable label in place of the beta one."""
    nowhere = NodeSelectorTerm(tuple(Requirement(key, Operator.DOES_NOT_EXIST) for key in _STABLE))
    for key in sorted(_STABLE.keys() & labels.keys()):
        values = tuple(sorted(labels[key].split("__")))
        own = NodeSelectorTerm((Requirement(key, Operator.IN, values),))
        if _STABLE[key] == key:
            yield own, nowhere
        else:
            absent = Requirement(key, Operator.DOES_NOT_EXIST)
            yield own, NodeSelectorTerm((Requirement(_STABLE[key], Operator.IN, values), absent)), nowhere


def storage_class(document: Mapping[str, Any], problems: Problems) -> StorageClass:
    """Read a StorageClass."""
    metadata = mapping(document, "metadata", "", problems)
    annotations = strings(metadata, "annotations", "metadata", problems)
    topologies = []
    for term, at in members(document, "allowedTopologies", "", problems):
        asked = members(term, "matchLabelExpressions", at, problems)
        conditions = [(str(each.get("key")), texts(each, "values", here, problems)) for each, here in asked]
        topologies.append(NodeSelectorTerm(tuple(Requirement(key, Operator.IN, found) for key, found in conditions)))
    return StorageClass(
        name=str(metadata.get("name") or ""),
        provisioner=str(document.get("provisioner") or ""),
        waits=document.get("volumeBindingMode") == "WaitForFirstConsumer",
        topologies=tuple(topologies),
        default=any(annotations.get(key) == "true" for key in _DEFAULT_CLASS),
        created_at=str(metadata.get("creationTimestamp") or ""),
    )


def attach_limits(document: Mapping[str, Any], problems: Problems) -> dict[str, int]:
    """Read a CSINode: how many volumes each driver may attach to the node, of the drivers that say so."""
    found = {}
    for driver, at in members(mapping(document, "spec", "", problems), "drivers", "spec", problems):
        count = mapping(driver, "allocatable", at, problems).get("count")
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            found[str(driver.get("name"))] = count
    return found


@dataclass(frozen=True, slots=True)
class Attachment:
    """A VolumeAttachment: a volume that a driver keeps attached to a node, whether a pod uses it or not."""

    node: str
    driver: str
    volume: str


def attachment(document: Mapping[str, Any], problems: Problems) -> Attachment:
    """Read a storage.k8s.io/v1 VolumeAttachment; without a volume where it attaches one that is no object."""
    spec = mapping(document, "spec", "", problems)
    source = mapping(spec, "source", "spec", problems)
    return Attachment(
        str(spec.get("nodeName") or ""),
        str(spec.get("attacher") or ""),
        str(source.get("persistentVolumeName") or ""),
    )


Reach = tuple[NodeSelectorTerm, ...] | None
"""Terms of which a node must match one; none: no node. None in its place: all nodes."""


@dataclass(frozen=True, slots=True)
class StorageCapacity:
    """A storage.k8s.io/v1 CSIStorageCapacity."""

    class_name: str
    topology: tuple[Requirement, ...] | None = None
    """What the labels of a node in reach match; None for no node."""
    largest: int | None = None
    """The size of the largest volume in bytes: `maximumVolumeSize`, else `capacity`; None where neither is known."""


def storage_capacity(document: Mapping[str, Any], problems: Problems) -> StorageCapacity:
    """Read a CSIStorageCapacity."""
    largest = None
    for name in ("maximumVolumeSize", "capacity"):
        if largest is None and document.get(name) is not None:
            try:
                largest = amount("storage", document[name], round_up=False)
            except (ValueError, TypeError) as error:
                problems.append(f"{name}: {error}")
    return StorageCapacity(
        str(document.get("storageClassName") or ""), label_selector(document, "nodeTopology", "", problems), largest
    )


def keeps_count(document: Mapping[str, Any], problems: Problems) -> bool:
    """Return whether a CSIDriver has the scheduler look at its CSIStorageCapacities."""
    return mapping(document, "spec", "", problems).get("storageCapacity") is True


def reach(capacities: Iterable[StorageCapacity], class_name: str, size: int) -> Reach:
    """Return where a volume of the class can be made, `size` bytes large."""
    found: dict[NodeSelectorTerm, None] = {}
    for each in capacities:
        enough = each.class_name == class_name and each.largest is not None and each.largest >= size
        if enough and each.topology is not None:
            if not each.topology:
                return None
            found[NodeSelectorTerm(each.topology)] = None
    return tuple(sorted(found, key=repr))
