"""Workloads, priority classes, DaemonSets and PodGroups: the little that planning reads of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from cagrpc.controllers.view_objects import Named
from cagrpc.errors import InvalidInput
from cagrpc.wire.constraints import Surroundings
from cagrpc.wire.gangs import pod_group
from cagrpc.wire.gen import kubernetes_pb2
from cagrpc.wire.messages import parse, plain
from cagrpc.wire.pods import daemon, pod_spec
from cagrpc.wire.resources import Problems
from cagrpc.wire.selectors import Identity
from solver.model import PodSpec

V = TypeVar("V")

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


def replica_set(data: bytes) -> Named[int]:
    """How many pods it still has to create; the same of the others."""
    found = parse(kubernetes_pb2.ReplicaSet, data)
    missing = 0 if _makes_none(found) else found.spec.replicas - found.status.replicas
    return Named(_name(found.metadata), max(0, missing))


def stateful_set(data: bytes) -> Named[int]:
    found = parse(kubernetes_pb2.StatefulSet, data)
    missing = max(0, found.spec.replicas - found.status.replicas)
    if found.spec.podManagementPolicy != "Parallel":  # one after the other, once all before are ready
        missing = min(missing, 1) if found.status.readyReplicas == found.status.replicas else 0
    return Named(_name(found.metadata), 0 if _makes_none(found) else missing)


def job(data: bytes) -> Named[int]:
    found = parse(kubernetes_pb2.Job, data)
    spec, status = found.spec, found.status
    wanted = spec.parallelism
    if spec.HasField("completions"):
        wanted = min(wanted, spec.completions - status.succeeded)
    elif status.succeeded:
        wanted = 0  # a work queue: one success ends it
    # With failures it waits from 10 s to 6 min before it tries again, and does not say how long.
    waits = spec.suspend or status.failed or _makes_none(found)
    return Named(_name(found.metadata), 0 if waits else max(0, wanted - status.active))


def _makes_none(workload: kubernetes_pb2.ReplicaSet | kubernetes_pb2.StatefulSet | kubernetes_pb2.Job) -> bool:
    if workload.metadata.HasField("deletionTimestamp"):
        return True
    if isinstance(workload, kubernetes_pb2.StatefulSet):
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
