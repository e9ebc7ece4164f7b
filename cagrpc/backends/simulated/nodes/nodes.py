"""Simulated Nodes: their registration, how they are decoded, and the store of all of them. They are created and removed
in `controller`.

Their Leases are renewed evenly over time as kubelets would; the node lifecycle controller reads them to know that a
Node is alive.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cagrpc.api.core.nodes import READY, START_UP_TAINT, node_document, taint_document
from cagrpc.api.encoding.json_documents import Problems, mapping, members, micro_timestamp, timestamp, whole_number
from cagrpc.api.encoding.messages import message_to_dict, parse
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.backends.simulated.backend import ID_PREFIX
from cagrpc.errors import InvalidInput, NotFound
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.envelopes import ObjectIdentity
from cagrpc.kube.nodes import taint_keys
from cagrpc.runtime.clock import EpochClock, MonotonicClock, epoch, monotonic
from cagrpc.runtime.work_queue import WorkQueue
from solver.model import NodeGroup, Taint, TaintEffect

SIMULATED = "cagrpc.io/simulated"
"""The label of Nodes that cagrpc may change and remove; its value is "true". Their providerID has to match as well."""
NOT_READY_TAINT = "node.kubernetes.io/not-ready"
"""Admission adds it to every new Node; the node lifecycle controller, where there is one, removes it too."""

_VERSION = "cagrpc-simulated"

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_RENEWED_AFTER = 0.55
"""As a fraction of the duration: if one renewal fails, the next is still in time."""
_WORKERS = 16
"""Enough for 5,000 nodes with an API server that takes 70 ms for each."""


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A simulated Node as the API server has it."""

    name: str
    uid: str
    provider_id: str
    version: int
    """Its resourceVersion, an increasing number (KEP-5504)."""
    ready: bool
    cordoned: bool
    taint_keys: tuple[str, ...]
    label_keys: frozenset[str] = frozenset()

    @property
    def is_ours(self) -> bool:
        """Whether its providerID matches; the label alone is easily copied."""
        return self.provider_id == f"{ID_PREFIX}{self.name}"


def registration(group: NodeGroup, name: str, provider_id: str, now_seconds: float) -> dict[str, Any]:
    """Return the v1.Node with which an instance of `group` registers: ready, with the start-up taint, as from a kubelet
    with --register-with-taints, and without late labels."""
    node = node_document(group, name)
    labels = node["metadata"]["labels"]
    node["metadata"]["labels"] = {key: labels[key] for key in labels if key not in group.post_registration_labels}
    node["metadata"]["labels"][SIMULATED] = "true"
    node["spec"]["providerID"] = provider_id
    node["spec"]["taints"].append(taint_document(Taint(START_UP_TAINT, TaintEffect.NO_SCHEDULE)))
    status = node["status"]
    now = timestamp(now_seconds)
    status["conditions"] = [
        {**condition, "lastHeartbeatTime": now, "lastTransitionTime": now} for condition in status["conditions"]
    ]
    status["addresses"] = [{"type": "InternalIP", "address": address(name)}, {"type": "Hostname", "address": name}]
    identity = dict.fromkeys(("machineID", "systemUUID", "bootID"), name)
    versions = dict.fromkeys(("kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion"), _VERSION)
    status["nodeInfo"] = {**status["nodeInfo"], **identity, **versions, "kubeProxyVersion": ""}
    return node


def ready_again(now_seconds: float) -> dict[str, Any]:
    """Return the strategic merge patch of a Node's status that sets its Ready condition."""
    now = timestamp(now_seconds)
    condition = {
        "type": READY,
        "status": "True",
        "reason": "KubeletReady",
        "message": "",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return {"status": {"conditions": [condition]}}


def address(name: str) -> str:
    """Return a made-up address for a simulated machine or pod."""
    digest = zlib.crc32(name.encode())
    return f"10.{digest >> 16 & 0xFF}.{digest >> 8 & 0xFF}.{1 + digest % 254}"


def decode(data: bytes) -> SimulatedNode:
    """Decode v1.Node bytes. Raises InvalidInput for malformed ones."""
    return read(message_to_dict(parse(kubernetes_pb2.Node, data)))


def read(document: Mapping[str, Any]) -> SimulatedNode:
    """Read a v1.Node in JSON shape. Raises InvalidInput for an invalid one."""
    problems: Problems = []
    metadata, spec = mapping(document, "metadata", "", problems), mapping(document, "spec", "", problems)
    status = mapping(document, "status", "", problems)
    conditions = [each for each, _ in members(status, "conditions", "status", problems)]
    version = whole_number(metadata.get("resourceVersion"))
    if version is None:
        problems.append("metadata.resourceVersion: is not a number")
    if problems:
        raise InvalidInput(f"node {metadata.get('name')}: {'; '.join(problems)}")
    return SimulatedNode(
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        provider_id=str(spec.get("providerID") or ""),
        version=version or 0,
        ready=any(each.get("type") == READY and each.get("status") == "True" for each in conditions),
        cordoned=bool(spec.get("unschedulable")),
        taint_keys=taint_keys(document),
        label_keys=frozenset(mapping(metadata, "labels")),
    )


def is_simulated(document: Mapping[str, Any]) -> bool:
    """Return whether a v1.Node in JSON shape has the label of simulated Nodes."""
    return bool(document["metadata"].get("labels", {}).get(SIMULATED) == "true")


class SimulatedNodes:
    """A store of all simulated Nodes: an informer's sink that also accepts the responses of writes; an older state
    never replaces a newer one. `changed` is called with the name of each changed Node. Thread-safe."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self.synced = False
        """Whether all of them are known."""
        self._changed = changed
        self._lock = threading.Lock()
        self._nodes: dict[str, SimulatedNode] = {}

    def get(self, name: str) -> SimulatedNode | None:
        return self._nodes.get(name)

    def names(self) -> set[str]:
        with self._lock:
            return set(self._nodes)

    def replaced(self, objects: Iterable[SimulatedNode]) -> None:
        listed = {node.name: node for node in objects if node.is_ours}
        with self._lock:
            before = self._nodes
            self._nodes = {name: _newer(before.get(name), node) for name, node in listed.items()}
            different = [name for name in {*before, *listed} if before.get(name) != self._nodes.get(name)]
            self.synced = True
        for name in different:
            self._changed(name)

    def applied(self, obj: SimulatedNode) -> None:
        if not obj.is_ours:
            return
        with self._lock:
            known = self._nodes.get(obj.name)
            if _newer(known, obj) is known:
                return
            self._nodes[obj.name] = obj
        self._changed(obj.name)

    def deleted(self, of: ObjectIdentity) -> None:
        with self._lock:
            known = self._nodes.get(of.name)
            if known is None or known.uid != of.uid:
                return
            del self._nodes[of.name]
        self._changed(of.name)


def _newer(known: SimulatedNode | None, found: SimulatedNode) -> SimulatedNode:
    """Return the newer state: watch events may arrive after the response to a later write."""
    return known if known is not None and known.version >= found.version else found


class NodeLeases:
    """One Lease for each Node that was passed to `keep` and that `node_of` still knows. Each Node has its own offset in
    the interval, which spreads renewals however many Nodes there are; after a start all are renewed at once."""

    def __init__(
        self,
        client: Client,
        node_of: Callable[[str], SimulatedNode | None],
        *,
        duration_seconds: float = 40.0,
        now: EpochClock = epoch,
        clock: MonotonicClock = monotonic,
    ) -> None:
        self._client = client
        self._node_of = node_of
        self._duration = duration_seconds
        self._interval = duration_seconds * _RENEWED_AFTER
        self._now = now
        self._names: set[str] = set()
        self.queue: WorkQueue[str] = WorkQueue(
            "node leases", self._renew, workers=_WORKERS, longest_pause_seconds=self._interval / 4, clock=clock
        )

    def keep(self, name: str) -> None:
        if name not in self._names:
            self._names.add(name)
            self.queue.add(name)

    def remove(self, name: str) -> None:
        self._names.discard(name)
        self._client.delete(f"{LEASES}/{name}")

    def _renew(self, name: str) -> float | None:
        node = self._node_of(name)
        if node is None or name not in self._names:
            self._names.discard(name)
            return None
        now = self._now()
        try:
            self._client.patch(f"{LEASES}/{name}", {"spec": {"renewTime": micro_timestamp(now)}})
        except NotFound:
            self._client.create(LEASES, self._lease(node, now))
            if name not in self._names:  # removed at the same time
                self._client.delete(f"{LEASES}/{name}")
        offset = zlib.crc32(name.encode()) / 2**32 * self._interval
        return self._interval - (now - offset) % self._interval

    def _lease(self, node: SimulatedNode, now: float) -> dict[str, Any]:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": node.name, "ownerReferences": [owner]},
            "spec": {
                "holderIdentity": node.name,
                "leaseDurationSeconds": max(1, round(self._duration)),
                "renewTime": micro_timestamp(now),
            },
        }
