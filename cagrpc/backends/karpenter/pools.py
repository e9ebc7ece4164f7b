"""NodePools that would fight us, of a name that our nodes carry in `karpenter.sh/nodepool` and not frozen: Karpenter
disrupts our nodes then (an empty one within half a minute), and launches its own for the pods that ours are for. And
NodeClasses, as far as they are read: whether one is Ready, asked only for NodeClaims that went without an Event, and
the disk of its nodes, for the import of NodePools."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from cagrpc.api.encoding.json_documents import mapping, members, object_key, texts
from cagrpc.backends.karpenter.plugin import NodeClass
from cagrpc.cluster.view.objects import Named
from cagrpc.cluster.view.sinks import Followed, Values
from cagrpc.errors import CagrpcError, InvalidConfiguration, NotFound
from cagrpc.fleet.catalogue import EPHEMERAL_STORAGE
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.envelopes import Encoding
from cagrpc.kube.informer.informers import InformerStore
from cagrpc.kube.informer.resource import Resource
from solver.model.quantities import amount, parse_quantity

NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
_DISRUPTIONS = frozenset({"Underutilized", "Empty", "Drifted"})
_ALL_LIMITS = ("cpu", "memory")


def why_not_ready(client: Client, found: NodeClass) -> str | None:
    """Return what is wrong with a NodeClass; None where it is Ready, or cannot be read."""
    document = _read(client, found)
    for condition, _ in members(mapping(document, "status"), "conditions"):
        if condition.get("type") == "Ready" and condition.get("status") == "False":
            return f"{found.kind} {found.name} is not Ready: {condition.get('message') or condition.get('reason')}"
    return None


def disk_bytes(client: Client, found: NodeClass) -> int | None:
    """Return the size of the disk that pods share; None where it is not said, or the NodeClass cannot be read."""
    spec = mapping(_read(client, found), "spec")
    disk: Any = None
    if found.kind == "EC2NodeClass":
        devices = [device for device, _ in members(spec, "blockDeviceMappings")]
        # With instanceStorePolicy the disks of the instance type are used, which the catalogue does not know.
        if devices and not spec.get("instanceStorePolicy"):
            disk = mapping(_shared_by_pods(spec, devices), "ebs").get("volumeSize")
    elif found.kind == "AKSNodeClass" and isinstance(spec.get("osDiskSizeGB"), int):
        disk = f"{spec['osDiskSizeGB']}Gi"
    try:
        return None if disk is None else amount(EPHEMERAL_STORAGE, disk, round_up=False)
    except (ValueError, TypeError):
        return None


def _shared_by_pods(spec: Mapping[str, Any], devices: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the device whose size Karpenter takes: the root volume, or that of the image's family, or the last."""
    aliases = [str(term.get("alias") or "") for term, _ in members(spec, "amiSelectorTerms")]
    usual = "/dev/xvdb" if any(alias.startswith("bottlerocket") for alias in aliases) else "/dev/xvda"
    of_family = [device for device in devices if device.get("deviceName") == usual]
    return next((device for device in devices if device.get("rootVolume")), [*devices, *of_family][-1])


def _read(client: Client, found: NodeClass) -> Mapping[str, Any]:
    """Return the object; empty where it cannot be read. Its collection is called as kubebuilder calls those of kinds
    that end in "Class"."""
    try:
        group = client.get(f"/apis/{found.group}")
        version = mapping(group, "preferredVersion").get("groupVersion")
        return client.get(f"/apis/{version}/{found.kind.lower()}es/{found.name}")
    except CagrpcError:
        return {}


@dataclass(frozen=True, slots=True)
class NodePoolState:
    name: str
    faults: tuple[str, ...]
    """What has to change before it leaves our nodes alone, each with its field; empty where it is frozen."""


def node_pool(document: Mapping[str, Any]) -> NodePoolState:
    """Decode a karpenter.sh/v1 NodePool."""
    metadata = mapping(document, "metadata")
    spec = mapping(document, "spec")
    name = str(metadata.get("name") or "")
    if spec.get("replicas") is not None:
        fault = (
            f"spec.replicas: found {spec['replicas']}, a static NodePool, which deletes all nodes of its name above"
            " that number; give the provisioner another name, or delete the NodePool"
        )
        return NodePoolState(name, (fault,))
    return NodePoolState(name, tuple(_faults(spec)))


def _faults(spec: Mapping[str, Any]) -> Iterable[str]:
    limits = mapping(spec, "limits")
    if not any(is_zero(limits.get(resource)) for resource in _ALL_LIMITS):
        yield f'spec.limits: found {dict(limits) or "none"}, expected cpu "0", so that it launches nothing'
    disruption = mapping(spec, "disruption")
    covered: set[str] = set()
    for budget, _ in members(disruption, "budgets"):
        if str(budget.get("nodes")) in ("0", "0%") and budget.get("schedule") is None:
            covered |= set(texts(budget, "reasons")) or _DISRUPTIONS
    if not covered >= _DISRUPTIONS:
        yield 'spec.disruption.budgets: expected one of nodes "0" at all times, so that it disrupts no node'
    after = disruption.get("consolidateAfter")
    if after != "Never":
        yield f'spec.disruption.consolidateAfter: found {after}, expected "Never"'


def is_zero(quantity: Any) -> bool:
    """Return whether this limit of a NodePool keeps it from launching anything."""
    try:
        return quantity is not None and parse_quantity(str(quantity)) == 0
    except ValueError:
        return False


def explained(pools: Iterable[NodePoolState]) -> list[str]:
    """Return what to change of each NodePool that fights, one line each."""
    return [f'NodePool "{pool.name}": {fault}' for pool in pools for fault in pool.faults]


def check(client: Client, names: AbstractSet[str]) -> None:
    """Raise InvalidConfiguration with every NodePool of these names that would fight us; Unavailable where the cluster
    cannot be reached."""
    try:
        listed = client.get(NODE_POOLS)
    except NotFound as error:
        raise InvalidConfiguration(
            ["backend.karpenter: the cluster has no NodePools of karpenter.sh/v1; install Karpenter 1.0 or newer"]
        ) from error
    found = [node_pool(document) for document, _ in members(listed, "items")]
    fighting = [pool for pool in found if pool.name in names]
    if problems := explained(fighting):
        raise InvalidConfiguration([*problems, "docs/guides/karpenter.md says how NodePools are frozen, and thawed"])


class NodePools(InformerStore):
    """Holds the NodePools as they are now."""

    def __init__(self, client: Client, names: AbstractSet[str]) -> None:
        """`names` are those that are ours."""
        self._names = names
        self._lock = threading.Lock()
        self._pools: Values[NodePoolState] = Values()
        resource = Resource(NODE_POOLS, lambda found: Named(object_key(found), node_pool(found)), Encoding.JSON)
        self.followed = Followed(resource, self._pools, self._lock)
        self.informers = (self.followed.informer(client),)

    @property
    def fighting(self) -> Mapping[str, NodePoolState]:
        """Return the NodePools that would fight us, by name."""
        with self._lock:
            return {name: pool for name, pool in self._pools.of.items() if pool.faults and name in self._names}
