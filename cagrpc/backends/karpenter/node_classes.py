"""NodeClasses, as far as they are read: whether one is Ready, asked only for NodeClaims that went without an Event; and
the disk of its nodes, for the import of NodePools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cagrpc.api.core.resources import mapping, members
from cagrpc.backends.karpenter.settings import NodeClass
from cagrpc.errors import CagrpcError
from cagrpc.fleet.catalogue import EPHEMERAL_STORAGE
from cagrpc.kube.client.client import Client
from solver.model.quantities import amount


def why_not_ready(client: Client, found: NodeClass) -> str | None:
    """Return what is wrong with a NodeClass; None where it is Ready, or cannot be read."""
    document = _read(client, found)
    for condition, _ in members(mapping(document, "status", "", []), "conditions", "", []):
        if condition.get("type") == "Ready" and condition.get("status") == "False":
            return f"{found.kind} {found.name} is not Ready: {condition.get('message') or condition.get('reason')}"
    return None


def disk_bytes(client: Client, found: NodeClass) -> int | None:
    """Return the size of the disk that pods share; None where it is not said, or the NodeClass cannot be read."""
    spec = mapping(_read(client, found), "spec", "", [])
    disk: Any = None
    if found.kind == "EC2NodeClass":
        devices = [device for device, _ in members(spec, "blockDeviceMappings", "", [])]
        # With instanceStorePolicy the disks of the instance type are used, which the catalogue does not know.
        if devices and not spec.get("instanceStorePolicy"):
            disk = mapping(_shared_by_pods(spec, devices), "ebs", "", []).get("volumeSize")
    elif found.kind == "AKSNodeClass" and isinstance(spec.get("osDiskSizeGB"), int):
        disk = f"{spec['osDiskSizeGB']}Gi"
    try:
        return None if disk is None else amount(EPHEMERAL_STORAGE, disk, round_up=False)
    except (ValueError, TypeError):
        return None


def _shared_by_pods(spec: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the device whose size Karpenter takes: the root volume, or that of the image's family, or the last."""
    aliases = [str(term.get("alias") or "") for term, _ in members(spec, "amiSelectorTerms", "", [])]
    usual = "/dev/xvdb" if any(alias.startswith("bottlerocket") for alias in aliases) else "/dev/xvda"
    of_family = [device for device in devices if device.get("deviceName") == usual]
    return next((device for device in devices if device.get("rootVolume")), [*devices, *of_family][-1])


def _read(client: Client, found: NodeClass) -> Mapping[str, Any]:
    """Return the object; empty where it cannot be read. Its collection is called as kubebuilder calls those of kinds
    that end in "Class"."""
    try:
        group = client.get(f"/apis/{found.group}")
        version = mapping(group, "preferredVersion", "", []).get("groupVersion")
        return client.get(f"/apis/{version}/{found.kind.lower()}es/{found.name}")
    except CagrpcError:
        return {}
