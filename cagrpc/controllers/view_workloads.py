"""Workloads, priority classes, DaemonSets and PodGroups: the little that planning reads of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from cagrpc.controllers.view_objects import Named, workload_of
from cagrpc.errors import InvalidInput
from cagrpc.wire.constraints import Surroundings
from cagrpc.wire.gangs import pod_group
from cagrpc.wire.gen import kubernetes_pb2
from cagrpc.wire.messages import parse, plain
from cagrpc.wire.pods import Pod, PodDecoder, daemon, pod_spec
from cagrpc.wire.resources import Problems
from cagrpc.wire.selectors import Identity
from cagrpc.wire.slack import Mark, mark
from solver.model import PodSpec

V = TypeVar("V")

_Any = kubernetes_pb2.Deployment | kubernetes_pb2.ReplicaSet | kubernetes_pb2.StatefulSet | kubernetes_pb2.Job

_NO_MORE_PODS = ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet", "ReplicaFailure")
"""Conditions with which a Job or a ReplicaSet makes no pods, whatever it wants."""


class Values(Generic[V]):
    """A table of named values."""

    def __init__(self, changed: Callable[[V | None, V | None], None] | None = None) -> None:
        """`changed` is told of each change: what was, and what is."""
        self.of: dict[str, V] = {}
        self._changed = changed

    def keys(self) -> Iterable[str]:
        return list(self.of)

    def put(self, named: Named[V]) -> None:
        before = self.of.get(named.key)
        self.of[named.key] = named.value
        if self._changed:
            self._changed(before, named.value)

    def drop(self, key: str) -> None:
        before = self.of.pop(key, None)
        if self._changed:
            self._changed(before, None)


def _name(metadata: kubernetes_pb2.ObjectMeta) -> str:
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


@dataclass(frozen=True, slots=True)
class Workload:
    """What makes pods."""

    key: str
    """`kind/namespace/name`."""
    to_come: int = 0
    """How many pods it still has to create."""
    parent: str = ""
    """The workload that has made it, `kind/namespace/name`."""
    mark: Mark | None = None
    """What it says of the slack, as long as it makes pods."""
    pod: Pod | None = None
    """One of its pods, where these are mirrored."""


def replica_set(data: bytes) -> Named[Workload]:
    found = parse(kubernetes_pb2.ReplicaSet, data)
    missing = 0 if _makes_none(found) else found.spec.replicas - found.status.replicas
    return _workload("ReplicaSet", found, missing)


def deployment(data: bytes) -> Named[Workload]:
    """Its pods are its ReplicaSets' to create."""
    return _workload("Deployment", parse(kubernetes_pb2.Deployment, data), 0)


def stateful_set(data: bytes) -> Named[Workload]:
    found = parse(kubernetes_pb2.StatefulSet, data)
    missing = max(0, found.spec.replicas - found.status.replicas)
    if found.spec.podManagementPolicy != "Parallel":  # one after the other, once all before are ready
        missing = min(missing, 1) if found.status.readyReplicas == found.status.replicas else 0
    return _workload("StatefulSet", found, 0 if _makes_none(found) else missing)


def job(data: bytes) -> Named[Workload]:
    found = parse(kubernetes_pb2.Job, data)
    spec, status = found.spec, found.status
    wanted = spec.parallelism
    if spec.HasField("completions"):
        wanted = min(wanted, spec.completions - status.succeeded)
    elif status.succeeded:
        wanted = 0  # a work queue: one success ends it
    # With failures it waits from 10 s to 6 min before it tries again, and does not say how long.
    waits = spec.suspend or status.failed or _makes_none(found)
    return _workload("Job", found, 0 if waits else wanted - status.active)


def _workload(kind: str, found: _Any, to_come: int) -> Named[Workload]:
    metadata = found.metadata
    key = f"{kind}/{metadata.namespace}/{metadata.name}"
    goes = metadata.HasField("deletionTimestamp") or (kind == "Job" and _makes_none(found))
    said, pod = None if goes else mark(metadata.annotations), None
    if said is not None and said.mirrors:
        try:
            pod = _first_pod(metadata, found.spec.template)
        except InvalidInput as error:
            said = replace(said, mirrors=0, warning=f"its pods cannot be mirrored: {error}")
    return Named(_name(metadata), Workload(key, max(0, to_come), workload_of(metadata), said, pod))


def _first_pod(metadata: kubernetes_pb2.ObjectMeta, template: bytes) -> Pod:
    """Raises InvalidInput for a template that cannot be meant."""
    found = parse(kubernetes_pb2.PodTemplateSpec, template)
    pod = kubernetes_pb2.Pod(metadata=found.metadata, spec=found.spec)
    pod.metadata.namespace, pod.metadata.name = metadata.namespace, metadata.name
    return PodDecoder().read(pod)


def _makes_none(workload: _Any) -> bool:
    if workload.metadata.HasField("deletionTimestamp"):
        return True
    if isinstance(workload, kubernetes_pb2.StatefulSet | kubernetes_pb2.Deployment):
        return False
    return any(each.type in _NO_MORE_PODS and each.status == "True" for each in workload.status.conditions)


def priority_class(data: bytes) -> Named[int]:
    found = parse(kubernetes_pb2.PriorityClass, data)
    return Named(found.metadata.name, found.value)


def daemon_set(data: bytes) -> Named[PodSpec]:
    """What one of its pods is on a new node. Raises InvalidInput for one that cannot be meant."""
    found = parse(kubernetes_pb2.DaemonSet, data)
    template, name = found.spec.template, _name(found.metadata)
    problems: Problems = []
    labels = template.metadata.labels
    identity = Identity(found.metadata.namespace, {key: labels[key] for key in labels})
    converted = pod_spec(plain(template.spec), "spec.template.spec", problems, Surroundings(identity))
    if problems:
        raise InvalidInput(f"DaemonSet {name}: {'; '.join(problems)}")
    return Named(name, daemon(converted))


def pod_group_of(api_version: str) -> Callable[[dict[str, Any]], Named[int | None]]:
    """A reader of the PodGroups of one API group and version: the gang's name, and the minimum count where it is
    said."""

    def read(document: dict[str, Any]) -> Named[int | None]:
        problems: Problems = []
        # objects in a list do not say what they are
        found = pod_group({**document, "apiVersion": api_version, "kind": "PodGroup"}, problems)
        if found is None or problems:
            raise InvalidInput(f"PodGroup of {api_version}: {'; '.join(problems) or 'not known to planning'}")
        return Named(found.name, found.min_count)

    return read
