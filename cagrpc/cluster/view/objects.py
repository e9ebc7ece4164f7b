"""Single objects of the cluster view: v1.Pod and v1.Node bytes to small values. Their sums are in `classes` and
`nodes`; what planning reads of a spec is decided in `cagrpc.api`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from cagrpc.api.core.movability import DO_NOT_DISRUPT, EvictionFacts, eviction_facts
from cagrpc.api.core.nodes import START_UP_TAINT, is_of_starting, node_of_document
from cagrpc.api.core.pods import Pod, PodDecoder, UnreadablePod, unread
from cagrpc.api.core.resources import amounts
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULER, EXPENDABLE_BELOW
from cagrpc.api.core.selectors import KnownNamespaces, NoNamespaces
from cagrpc.api.core.slack import SHAPE, Mark, is_pause_pod, mark
from cagrpc.api.encoding.json_documents import Problems, mapping, object_key
from cagrpc.api.encoding.messages import message_to_dict, parse
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.api.provisioning.objects import cut
from cagrpc.cluster.markers import PLACEMENT_FIELD_MANAGER, SCALE_DOWN_DISABLED, SCALE_DOWN_DISABLED_BY_US, TOKEN
from cagrpc.cluster.state import ClusterNode, ConsumerStage, NodeCondition, PendingPod, PodRef
from cagrpc.errors import InvalidInput, in_one_line

V = TypeVar("V")

_LONGEST_WARNING = 500
MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a static pod's mirror."""
_JOB_TRACKING = "batch.kubernetes.io/job-tracking"


class PodStage(Enum):
    """What a pod means to planning."""

    WAITING = auto()
    """Pending, and to be planned."""
    HELD_BACK = auto()
    """Pending, and not to be planned yet: it has scheduling gates."""
    NOMINATED = auto()
    """Pending, and nominated by the scheduler to an existing node (preemption). Not by a nomination of our own, which
    follows the plan."""
    MOVABLE = auto()
    """Bound, and to be rescheduled if its node is removed."""
    FIXED = auto()
    """Bound, and removed with its node: a DaemonSet's or a mirror pod."""
    ENDING = auto()
    """Bound, and being deleted: it is there until it is gone, and topology spread does not count it any more."""
    DAEMON = auto()
    """A DaemonSet's, not yet bound to its node: it takes capacity there if there is enough."""
    SUCCEEDED = auto()
    """It is on no node any more, and counts as served in its gang."""


class Keyed(Protocol):
    """An object with a key in a table."""

    @property
    def key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ObservedPod:
    key: str
    ref: PodRef
    pod: Pod
    priority_class: str
    """Its PriorityClass, only where the value of that is not in `pod.priority`."""
    stage: PodStage | None
    """None: planning ignores it."""
    node: str
    nominated: str
    """The node that the scheduler has nominated while it waits; that may be gone."""
    pending: PendingPod | None
    """While a scheduler that we plan for has to bind it, planned or not."""
    warning: str
    life: ConsumerStage | None = None
    """The stage of a pod with annotations of a ProvisioningRequest. None of any other, of one that has failed, and of
    one that is deleted without having been bound."""
    counted: bool = False
    """Whether its workload counts it among its replicas, and creates no other in its stead."""
    mark: Mark | None = None
    """Its slack annotations, unless it has finished or is being deleted."""
    pause_shape: str | None = None
    """The shape of a pause pod of the slack; None of any other pod."""
    admitted: bool = True
    """Whether the API server's admission has set its priority; False of an expected pod."""
    source: bytes | None = None
    """Its v1.Pod, where its spec depends on the labels of Namespaces: it is read again when these change."""
    eviction: EvictionFacts | None = None
    """What keeps it on its node; None where it is not bound, has finished, or goes with its node (DaemonSets' and
    mirror pods), and where nobody asks."""


@dataclass(frozen=True, slots=True)
class ObservedNode:
    bare: ClusterNode
    """The node as if nothing ran there, without taints that go by themselves once it has started."""
    held_at: int
    """The index of our start-up taint among its taints; -1 without it."""
    dedicated: bool
    """Whether that taint has a value, which some pods tolerate."""

    @property
    def key(self) -> str:
        return self.bare.node.name


@dataclass(frozen=True, slots=True)
class Named(Generic[V]):
    """Any other object: its name, and the value read from it."""

    key: str
    value: V


def reader_of(kind: str, read: Callable[[Mapping[str, Any], Problems], V]) -> Callable[[Mapping[str, Any]], Named[V]]:
    """Return a decoder of objects of a kind in JSON shape by their keys. It raises InvalidInput for an invalid one."""

    def named(document: Mapping[str, Any]) -> Named[V]:
        problems: Problems = []
        mapping(document, "metadata", "", problems)
        found, key = read(document, problems), object_key(document)
        if problems:
            raise InvalidInput(f"{kind} {key}: {in_one_line(problems)}")
        return Named(key, found)

    return named


class PodReader:
    """Decodes v1.Pods. Not thread-safe."""

    def __init__(
        self,
        gang_label: str,
        schedulers: AbstractSet[str],
        namespace: str,
        namespaces: Callable[[], KnownNamespaces] = NoNamespaces,
        *,
        evictions: bool = False,
        expendable_below: int = EXPENDABLE_BELOW,
    ) -> None:
        """Pods of other schedulers than these are never planned. `namespace` is cagrpc's own, where the slack's pause
        pods are. `namespaces` returns the Namespaces that are known (`PodDecoder`). With `evictions` it reads what
        keeps bound pods on their nodes. Pods of a priority below `expendable_below` are not planned."""
        self._evictions = evictions
        self._expendable_below = expendable_below
        self._gang_label = gang_label
        self._schedulers = schedulers
        self.namespace = namespace
        self._decoder = PodDecoder(gang_label, placeholders=False, namespaces=namespaces)

    def read(self, data: bytes) -> ObservedPod:
        """Decode a v1.Pod. Raises InvalidInput for bytes that are none; an invalid pod has a warning instead."""
        message = parse(kubernetes_pb2.Pod, data)
        metadata, spec = message.metadata, message.spec
        tolerated = _take_tolerated(spec)
        owner = workload_of(metadata)
        daemon = owner.startswith("DaemonSet/")
        pause_shape = metadata.annotations.get(SHAPE, "") if is_pause_pod(message, self.namespace) else None
        node = spec.nodeName or (_daemon_node(spec) if daemon else "")
        by_status = self._stage(message, node, daemon=daemon)
        priority_class = spec.priorityClassName if spec.priority == 0 else ""
        life = _life(message)
        rescheduled = self._evictions and _is_rescheduled(message, by_status, daemon=daemon)
        eviction = self._eviction(message) if rescheduled else None
        pod, problem = self._decode(data, message, by_status, daemon=daemon)  # after it the message's spec is cut
        stage = None if pause_shape is not None else _planned_stage(by_status, pod, readable=not problem)
        ref = PodRef(metadata.uid, metadata.namespace, metadata.name, pod.created_at_seconds, owner)
        pending = _pending(ref, message, tolerated) if by_status is PodStage.WAITING and pause_shape is None else None
        by_scheduler = stage is PodStage.WAITING and pending is not None and not pending.nominated_by_us
        marks_slack = not daemon and pause_shape is None and not _ends(message)
        return ObservedPod(
            key=pod.key,
            ref=ref,
            pod=pod,
            priority_class=priority_class,
            stage=stage,
            node="" if pause_shape is not None and _ends(message) else node,
            nominated=message.status.nominatedNodeName if by_scheduler else "",
            pending=pending,
            warning=cut(problem or pod.warning, _LONGEST_WARNING),
            life=life if pod.consumes else None,
            counted=_counted(message, owner),
            mark=mark(metadata.annotations) if marks_slack else None,
            pause_shape=pause_shape,
            source=data if pod.namespace_selectors else None,
            eviction=eviction if pause_shape is None else None,
        )

    def _decode(
        self, data: bytes, message: kubernetes_pb2.Pod, stage: PodStage | None, *, daemon: bool
    ) -> tuple[Pod, str]:
        """Return the pod as planning reads it, and why its spec is invalid, empty where it is valid. An invalid bound
        pod still takes its requests from its node."""
        try:
            return self._decoder.read(_without_node_affinity(message) if daemon else message), ""
        except UnreadablePod as error:
            pod = unread(data, self._gang_label, placeholders=False)
            if stage in (PodStage.MOVABLE, PodStage.FIXED, PodStage.ENDING):
                pod = replace(pod, spec=replace(pod.spec, requests=error.requests))
            return pod, str(error)

    def _eviction(self, message: kubernetes_pb2.Pod) -> EvictionFacts:
        scheduler = message.spec.schedulerName or DEFAULT_SCHEDULER
        return eviction_facts(message, "" if scheduler in self._schedulers else scheduler)

    def _stage(self, message: kubernetes_pb2.Pod, node: str, *, daemon: bool) -> PodStage | None:
        metadata, spec, phase = message.metadata, message.spec, message.status.phase
        if phase in ("Succeeded", "Failed"):
            return PodStage.SUCCEEDED if phase == "Succeeded" else None
        going = metadata.HasField("deletionTimestamp")
        if node:
            if daemon and not spec.nodeName:
                return None if going or spec.schedulingGates else PodStage.DAEMON
            if going:
                return PodStage.ENDING
            return PodStage.FIXED if daemon or MIRROR in metadata.annotations else PodStage.MOVABLE
        scheduled_by_us = (spec.schedulerName or DEFAULT_SCHEDULER) in self._schedulers
        if going or daemon or not scheduled_by_us or spec.priority < self._expendable_below:
            return None
        return PodStage.HELD_BACK if spec.schedulingGates else PodStage.WAITING


def _planned_stage(by_status: PodStage | None, pod: Pod, *, readable: bool) -> PodStage | None:
    """Return the stage of a decoded pod: an unreadable one is not planned, nor is the consumer of a
    ProvisioningRequest before it is bound."""
    not_planned = (by_status is PodStage.WAITING and not readable) or (
        by_status in (PodStage.WAITING, PodStage.HELD_BACK) and pod.consumer
    )
    return None if not_planned else by_status


def _is_rescheduled(message: kubernetes_pb2.Pod, stage: PodStage | None, *, daemon: bool) -> bool:
    """Return whether the pod is bound, and has to go elsewhere if its node goes, or is being deleted."""
    bound = stage in (PodStage.MOVABLE, PodStage.FIXED, PodStage.ENDING)
    return bound and not daemon and MIRROR not in message.metadata.annotations


def _ends(message: kubernetes_pb2.Pod) -> bool:
    """Return whether the pod has finished or is being deleted."""
    return message.status.phase in ("Succeeded", "Failed") or message.metadata.HasField("deletionTimestamp")


def _without_node_affinity(message: kubernetes_pb2.Pod) -> kubernetes_pb2.Pod:
    """Return a DaemonSet's pod without the node affinity that names its node, so that all of its pods share one
    spec."""
    if not message.spec.affinity.HasField("nodeAffinity"):
        return message
    pod = kubernetes_pb2.Pod()
    pod.CopyFrom(message)
    pod.spec.affinity.ClearField("nodeAffinity")
    if not pod.spec.affinity.ListFields():
        pod.spec.ClearField("affinity")
    return pod


def workload_of(metadata: kubernetes_pb2.ObjectMeta) -> str:
    """Return the controller of an object, `kind/namespace/name`; empty where it has none."""
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


def _take_tolerated(spec: kubernetes_pb2.PodSpec) -> frozenset[str]:
    """Return the values of our start-up taint that a pod tolerates, and remove these tolerations: pods that differ in
    nothing else are alike."""
    ours = [at for at, toleration in enumerate(spec.tolerations) if toleration.key == START_UP_TAINT]
    found = frozenset(spec.tolerations[at].value for at in ours)
    for at in reversed(ours):
        del spec.tolerations[at]
    return found - {""}


def _pending(ref: PodRef, message: kubernetes_pb2.Pod, tolerated: frozenset[str]) -> PendingPod:
    node = message.status.nominatedNodeName
    return PendingPod(
        ref,
        node,
        bool(node) and _nominated_by_us(message.metadata.managed_fields),
        tolerated=tolerated,
    )


def _nominated_by_us(entries: Iterable[bytes]) -> bool:
    """Return whether we wrote `status.nominatedNodeName` last: of two managers that set a field, the later owns it."""
    for entry in entries:
        try:
            found = parse(kubernetes_pb2.ManagedFieldsEntry, entry)
        except InvalidInput:
            continue  # not ours, and no reason to drop the pod
        if found.manager == PLACEMENT_FIELD_MANAGER and b'"f:nominatedNodeName"' in found.fieldsV1.Raw:
            return True
    return False


def _daemon_node(spec: kubernetes_pb2.PodSpec) -> str:
    """Return the node that the DaemonSet controller has created the pod for."""
    required = spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution
    for term in required.nodeSelectorTerms:
        for condition in term.matchFields:
            if condition.key == "metadata.name" and len(condition.values) == 1:
                return condition.values[0]
    return ""


def read_node(data: bytes) -> ObservedNode:
    """Decode a v1.Node, without invalid fields. Raises InvalidInput for bytes that are none."""
    message = parse(kubernetes_pb2.Node, data)
    metadata = message.metadata
    document = message_to_dict(message)
    node = node_of_document(document, [])
    taints = tuple(taint for taint in node.taints if not is_of_starting(taint))
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in message.status.conditions)
    held_at = next((at for at, taint in enumerate(message.spec.taints) if taint.key == START_UP_TAINT), -1)
    bare = ClusterNode(
        node=replace(node, taints=taints),
        provider_id=message.spec.providerID,
        ready=ready and not metadata.HasField("deletionTimestamp"),
        held=held_at >= 0,
        scale_down_disabled=metadata.annotations.get(SCALE_DOWN_DISABLED, ""),
        scale_down_disabled_by_us=SCALE_DOWN_DISABLED_BY_US in metadata.annotations,
        created_at_seconds=metadata.creationTimestamp.seconds,
        # Karpenter copies a NodeClaim's annotations, and ours say so on purpose: to Karpenter.
        do_not_disrupt=metadata.annotations.get(DO_NOT_DISRUPT) == "true" and TOKEN not in metadata.annotations,
        conditions=tuple(
            _condition(each.type, each.status, each.lastTransitionTime.seconds) for each in message.status.conditions
        ),
        capacity=amounts(mapping(document, "status"), "capacity", "status", [], round_up=False),
    )
    return ObservedNode(bare, held_at, dedicated=held_at >= 0 and bool(message.spec.taints[held_at].value))


@lru_cache(maxsize=10_000)
def _condition(kind: str, status: str, since_seconds: int) -> NodeCondition:
    """Return one value for equal ones: every node has several, and most say that all is well."""
    return NodeCondition(kind, status, since_seconds)
