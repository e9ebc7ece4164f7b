"""Claims, volumes and storage classes, in Kubernetes' JSON shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ZONE = "topology.kubernetes.io/zone"
EBS = "ebs.csi.aws.com"
LOCAL = "kubernetes.io/no-provisioner"


def storage_class(name: str = "fast", provisioner: str = EBS, *, waits: bool = True, zones: Sequence[str] = ()) -> Any:
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}] if zones else None
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate",
        **({"allowedTopologies": topologies} if topologies else {}),
    }


def claim(
    name: str,
    volume: str = "",
    class_name: str | None = "fast",
    *,
    modes: Sequence[str] = ("ReadWriteOnce",),
    namespace: str = "default",
    size: str = "1Gi",
    bound: bool | None = None,
    owner: str = "",
    **status: Any,
) -> Any:
    """Return a claim; it is bound where it has a volume, unless `bound` says otherwise. `status` is its status and, as
    `annotations`, more of its metadata."""
    annotations = dict(status.pop("annotations", {}))
    if volume if bound is None else bound:
        annotations["pv.kubernetes.io/bind-completed"] = "yes"
    spec: dict[str, Any] = {"accessModes": list(modes), "resources": {"requests": {"storage": size}}}
    if volume:
        spec["volumeName"] = volume
    if class_name is not None:
        spec["storageClassName"] = class_name
    owners = [{"kind": "Pod", "name": "p", "uid": owner, "controller": True}] if owner else []
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "annotations": annotations,
            "ownerReferences": owners,
        },
        "spec": spec,
        "status": status,
    }


def volume(
    name: str,
    zone: str = "",
    *,
    of: str = "",
    driver: str = "",
    class_name: str = "fast",
    size: str = "10Gi",
    key: str = ZONE,
    labels: dict[str, str] | None = None,
    handle: str = "",
    **spec: Any,
) -> Any:
    """Return a volume of a zone, available unless it is kept for the claim `of`."""
    if zone:
        condition = {"key": key, "operator": "In", "values": [zone]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [condition]}]}}
    if of:
        spec["claimRef"] = {"namespace": "default", "name": of}
    if driver:
        spec["csi"] = {"driver": driver, "volumeHandle": handle or name}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class_name,
            **spec,
        },
        "status": {"phase": "Bound" if of else "Available"},
    }


def csi_node(name: str, driver: str = EBS, count: int | None = 2) -> Any:
    allocatable = {} if count is None else {"allocatable": {"count": count}}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name},
        "spec": {"drivers": [{"name": driver, "nodeID": name, **allocatable}]},
    }


def attachment(name: str, node: str, volume: str, driver: str = EBS) -> Any:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": volume}},
    }


def csi_driver(name: str = EBS, **spec: Any) -> Any:
    """Return a CSIDriver; unless said otherwise, one that has the scheduler look at its capacities."""
    said = {"storageCapacity": True, **spec}
    known = {key: value for key, value in said.items() if value is not None}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name}, "spec": known}


def capacity(
    zone: str,
    size: str | None = "10Gi",
    *,
    largest: str = "",
    class_name: str = "fast",
    name: str = "",
    key: str = ZONE,
) -> Any:
    """Return the CSIStorageCapacity of a zone; without one, of all nodes."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIStorageCapacity",
        "metadata": {"name": name or f"in-{zone}-{class_name}", "namespace": "driver"},
        "storageClassName": class_name,
        "nodeTopology": {"matchLabels": {key: zone}} if zone else {},
        **({"capacity": size} if size else {}),
        **({"maximumVolumeSize": largest} if largest else {}),
    }
