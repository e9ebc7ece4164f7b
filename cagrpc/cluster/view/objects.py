"""What the cluster view keeps of single objects: v1.Pod and v1.Node bytes to small values. What they add up to is in
`view_classes` and `view_nodes`; what planning reads of a spec is decided in `cagrpc.wire`."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from cagrpc.api.core.nodes import NodeFacts, facts_of_document
from cagrpc.api.core.pods import Pod, PodDecoder, UnreadablePod, unread
from cagrpc.api.core.slack import SHAPE, Mark, is_pause_pod, mark
from cagrpc.api.encoding.messages import parse, plain
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.api.provisioning.objects import cut
from cagrpc.cluster.markers import (
    PLACEMENT_FIELD_MANAGER,
    SCALE_DOWN_DISABLED,
    SCALE_DOWN_DISABLED_BY_US,
    START_UP_TAINT,
)
from cagrpc.cluster.state import ConsumerStage, PendingPod, PodRef
from cagrpc.errors import InvalidInput

V = TypeVar("V")

DEFAULT_SCHEDULER = "default-scheduler"
EXPENDABLE_BELOW = -10
"""CA's --expendable-pods-priority-cutoff: nothing is scaled up for pods of less priority."""
_LONGEST_WARNING = 500
_MIRROR = "kubernetes.io/config.mirror"
_JOB_TRACKING = "batch.kubernetes.io/job-tracking"


class PodStage(Enum):
    """What a pod is to planning."""

    WAITING = auto()
    """Pending, and to be planned."""
    HELD_BACK = auto()
    """Pending, and not to be planned yet: it has scheduling gates."""
    NOMINATED = auto()
    """Pending, and about to go to a node that there is: the scheduler makes room for it there (preemption). A
    nomination of our own is no such stage: it follows what is planned."""
    MOVABLE = auto()
    """On a node, and to go elsewhere if the node goes."""
    FIXED = auto()
    """On a node and of it: a DaemonSet's, a mirror pod; or going."""
    DAEMON = auto()
    """A DaemonSet's that is still to be bound to its node: it takes room there if there is enough."""
    SUCCEEDED = auto()
    """On no node any more. Its gang has been served with it."""


class Keyed(Protocol):
    """What has a place in a table."""

    @property
    def key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ObservedPod:
    key: str
    ref: PodRef
    pod: Pod
    priority_class: str
    """Only where its value is not in `pod.priority`."""
    stage: PodStage | None
    """None: it is no concern of planning."""
    node: str
    nominated: str
    """The node where the scheduler makes room for it while it waits; that may be gone."""
    pending: PendingPod | None
    """While it is to be bound by a scheduler that we plan for, whatever it is to planning."""
    warning: str
    life: ConsumerStage | None = None
    """Only of a pod that says something of a ProvisioningRequest. None: it has failed, or goes without ever having been
    on a node."""
    owner: str = ""
    """The workload that it is of: `kind/namespace/name`."""
    counted: bool = False
    """Whether its workload takes it for one of its pods, and creates no other in its stead."""
    mark: Mark | None = None
    """What it says of the slack, while it is there to stay."""
    pause_shape: str | None = None
    """Of a pause pod of the slack: the name of its shape. None of any other pod."""
    admitted: bool = True
    """Whether the API server's admission has set its priority; not of a pod that is still to be created."""


@dataclass(frozen=True, slots=True)
class ObservedNode:
    key: str
    facts: NodeFacts
    """Without our start-up taint."""
    provider_id: str
    ready: bool
    held_at: int
    """The index of our start-up taint among its taints; -1 without it."""
    scale_down_disabled: str
    scale_down_disabled_by_us: bool

    @property
    def held(self) -> bool:
        return self.held_at >= 0


@dataclass(frozen=True, slots=True)
class Named(Generic[V]):
    """Any other object: its name, and what is kept of it."""

    key: str
    value: V


class PodReader:
    """Not for several threads."""

    def __init__(self, gang_label: str, schedulers: AbstractSet[str], namespace: str) -> None:
        """Pods for other schedulers than these are never planned. `namespace` is cagrpc's own, where pause pods of the
        slack are."""
        self._gang_label = gang_label
        self._schedulers = schedulers
        self.namespace = namespace
        self._decoder = PodDecoder(gang_label, placeholders=False)

    def read(self, data: bytes) -> ObservedPod:
        """Raises InvalidInput for bytes that are no v1.Pod."""
        message = parse(kubernetes_pb2.Pod, data)
        metadata, spec = message.metadata, message.spec
        owner = workload_of(metadata)
        daemon = owner.startswith("DaemonSet/")
        pause_shape = metadata.annotations.get(SHAPE, "") if is_pause_pod(message, self.namespace) else None
        stays = not daemon and pause_shape is None and not metadata.HasField("deletionTimestamp")
        said = mark(metadata.annotations) if stays and message.status.phase not in ("Succeeded", "Failed") else None
        node = spec.nodeName or (_meant_for(spec) if daemon else "")
        priority_class = spec.priorityClassName if spec.priority == 0 else ""
        stage, life = self._stage(message, node, daemon=daemon), _life(message)
        waits = stage is PodStage.WAITING
        if daemon and spec.affinity.HasField("nodeAffinity"):
            spec.affinity.ClearField("nodeAffinity")  # it names the pod's node: one spec for each
            if not spec.affinity.ListFields():
                spec.ClearField("affinity")
        warning = ""
        try:
            pod = self._decoder.read(message)
        except UnreadablePod as error:
            pod, warning = unread(data, self._gang_label, placeholders=False), str(error)
            if stage in (PodStage.MOVABLE, PodStage.FIXED):  # its node has so much less all the same
                pod = replace(pod, spec=replace(pod.spec, requests=error.requests))
            stage = None if stage is PodStage.WAITING else stage
        if pod.consumer and stage in (PodStage.WAITING, PodStage.HELD_BACK):
            stage = None
        if pause_shape is not None:
            stage = None  # it gives way to whatever comes
            gone = message.status.phase in ("Succeeded", "Failed") or metadata.HasField("deletionTimestamp")
            node = "" if gone else node
        ref = PodRef(metadata.uid, metadata.namespace, metadata.name, pod.created_at_seconds, owner)
        pending = _pending(ref, message) if waits and pause_shape is None else None
        by_others = pending is not None and not pending.nominated_by_us
        nominated = message.status.nominatedNodeName if stage is PodStage.WAITING and by_others else ""
        return ObservedPod(
            pod.key,
            ref,
            pod,
            priority_class,
            stage,
            node,
            nominated,
            pending,
            cut(warning or pod.warning, _LONGEST_WARNING),
            life if pod.consumes else None,
            owner,
            _counted(message, owner),
            said,
            pause_shape,
        )

    def _stage(self, message: kubernetes_pb2.Pod, node: str, *, daemon: bool) -> PodStage | None:
        metadata, spec, phase = message.metadata, message.spec, message.status.phase
        if phase in ("Succeeded", "Failed"):
            return PodStage.SUCCEEDED if phase == "Succeeded" else None
        going = metadata.HasField("deletionTimestamp")
        if node:
            if daemon and not spec.nodeName:
                return None if going or spec.schedulingGates else PodStage.DAEMON
            return PodStage.FIXED if daemon or going or _MIRROR in metadata.annotations else PodStage.MOVABLE
        scheduled_by_us = (spec.schedulerName or DEFAULT_SCHEDULER) in self._schedulers
        if going or daemon or not scheduled_by_us or spec.priority < EXPENDABLE_BELOW:
            return None
        return PodStage.HELD_BACK if spec.schedulingGates else PodStage.WAITING


def workload_of(metadata: kubernetes_pb2.ObjectMeta) -> str:
    """The controller of an object, `kind/namespace/name`; empty where it has none."""
    return next(
        (f"{owner.kind}/{metadata.namespace}/{owner.name}" for owner in metadata.ownerReferences if owner.controller),
        "",
    )


def _counted(message: kubernetes_pb2.Pod, owner: str) -> bool:
    if message.status.phase in ("Succeeded", "Failed"):
        return _JOB_TRACKING in message.metadata.finalizers  # the Job's status does not have it yet
    return not message.metadata.HasField("deletionTimestamp") or owner.startswith("StatefulSet/")


def _life(message: kubernetes_pb2.Pod) -> ConsumerStage | None:
    phase = message.status.phase
    if phase in ("Succeeded", "Failed"):
        return ConsumerStage.SUCCEEDED if phase == "Succeeded" else None
    if message.spec.nodeName:
        return ConsumerStage.BOUND
    return None if message.metadata.HasField("deletionTimestamp") else ConsumerStage.PENDING


def _pending(ref: PodRef, message: kubernetes_pb2.Pod) -> PendingPod:
    node = message.status.nominatedNodeName
    return PendingPod(ref, node, bool(node) and _nominated_by_us(message.metadata.managed_fields))


def _nominated_by_us(entries: Iterable[bytes]) -> bool:
    """Whether it was us who wrote `status.nominatedNodeName` last: of two managers that set a field, the later owns
    it."""
    for entry in entries:
        try:
            found = parse(kubernetes_pb2.ManagedFieldsEntry, entry)
        except InvalidInput:
            continue  # not ours, and no reason to know nothing of the pod
        if found.manager == PLACEMENT_FIELD_MANAGER and b'"f:nominatedNodeName"' in found.fieldsV1.Raw:
            return True
    return False


def _meant_for(spec: kubernetes_pb2.PodSpec) -> str:
    """The node that the DaemonSet controller has made the pod for."""
    required = spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution
    for term in required.nodeSelectorTerms:
        for condition in term.matchFields:
            if condition.key == "metadata.name" and len(condition.values) == 1:
                return condition.values[0]
    return ""


def read_node(data: bytes) -> ObservedNode:
    """Raises InvalidInput for bytes that are no v1.Node; invalid fields are left out."""
    message = parse(kubernetes_pb2.Node, data)
    metadata = message.metadata
    facts = facts_of_document(plain(message), "", [])
    taints = tuple(taint for taint in facts.taints if taint.key != START_UP_TAINT)
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in message.status.conditions)
    return ObservedNode(
        key=metadata.name,
        facts=NodeFacts(facts.name, facts.labels, taints, facts.allocatable),
        provider_id=message.spec.providerID,
        ready=ready and not metadata.HasField("deletionTimestamp"),
        held_at=next((at for at, taint in enumerate(message.spec.taints) if taint.key == START_UP_TAINT), -1),
        scale_down_disabled=metadata.annotations.get(SCALE_DOWN_DISABLED, ""),
        scale_down_disabled_by_us=SCALE_DOWN_DISABLED_BY_US in metadata.annotations,
    )
