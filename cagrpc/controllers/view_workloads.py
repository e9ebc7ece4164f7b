"""Workloads, priority classes, DaemonSets and PodGroups: the little that planning reads of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from cagrpc.controllers.view_objects import Named, PodReader, SeenPod, Stage, workload_of
from cagrpc.errors import InvalidInput
from cagrpc.wire.constraints import Surroundings
from cagrpc.wire.gangs import pod_group
from cagrpc.wire.gen import kubernetes_pb2
from cagrpc.wire.messages import known, packed, parse, plain
from cagrpc.wire.pods import ADDED_BY_ADMISSION, NOWHERE, Pod, PodDecoder, daemon, pod_spec
from cagrpc.wire.resources import Problems, amounts
from cagrpc.wire.selectors import Identity
from cagrpc.wire.slack import PLACEHOLDER, Mark, mark
from solver.model import PODS, PodSpec

V = TypeVar("V")

_Any = kubernetes_pb2.Deployment | kubernetes_pb2.ReplicaSet | kubernetes_pb2.StatefulSet | kubernetes_pb2.Job

_NO_MORE_PODS = (
    "Complete",
    "Completed",
    "Failed",
    "Suspended",
    "FailureTarget",
    "SuccessCriteriaMet",
    "ReplicaFailure",
)
"""Conditions with which a JobSet, a Job or a ReplicaSet makes no pods, whatever it wants."""
_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
_KUEUE = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/managed")
"""Labels of pods that Kueue holds back until it admits them."""


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
class Part:
    """Pods that a workload has other workloads create: a Deployment its ReplicaSets, a JobSet the Jobs of one
    replicatedJob."""

    name: str
    """Empty for a Deployment."""
    pods: int
    """That all of them together are to have."""
    template: SeenPod | None


@dataclass(frozen=True, slots=True)
class Workload:
    """What makes pods."""

    key: str
    """`kind/namespace/name`."""
    wants: int = 0
    """How many pods it makes sure there are, by itself."""
    parent: str = ""
    """The workload that has made it, `kind/namespace/name`."""
    part: str = ""
    """Which of the parent's parts it belongs to,"""
    share: int = 0
    """and how many pods of it are its to create, now or later."""
    parts: tuple[Part, ...] = ()
    template: SeenPod | None = None
    """One of its pods, as long as there are some to be created."""
    mark: Mark | None = None
    """What it says of the slack, as long as it makes pods."""
    pod: Pod | None = None
    """One of its pods, where these are mirrored."""


class WorkloadReader:
    """Protobuf bytes, or JSON of a JobSet, to workloads. Not for several threads."""

    def __init__(self, pods: PodReader) -> None:
        self._pods = pods

    def replica_set(self, data: bytes) -> Named[Workload]:
        found = parse(kubernetes_pb2.ReplicaSet, data)
        wants, there = found.spec.replicas, found.status.replicas
        return self._workload("ReplicaSet", found, wants, creates=there < wants, share=wants)

    def deployment(self, data: bytes) -> Named[Workload]:
        """Its pods are its ReplicaSets' to create, and there are none for a while after its own creation."""
        found = parse(kubernetes_pb2.Deployment, data)
        parts: tuple[Part, ...] = ()
        # `Recreate` makes no pods before all of the last revision are gone; what a paused one makes next nobody knows.
        if not (_makes_none(found) or found.spec.paused or found.spec.strategy.type == "Recreate"):
            creates = found.status.replicas < found.spec.replicas
            template = self._template(found.metadata, found.spec.template) if creates else None
            parts = (Part("", found.spec.replicas, template),)
        return self._workload("Deployment", found, 0, parts=parts)

    def stateful_set(self, data: bytes) -> Named[Workload]:
        found = parse(kubernetes_pb2.StatefulSet, data)
        wants, there = found.spec.replicas, found.status.replicas
        if found.spec.podManagementPolicy != "Parallel":  # one after the other, once all before are ready
            wants = min(wants, there + (found.status.readyReplicas == there))
        return self._workload("StatefulSet", found, wants, creates=there < wants)

    def job(self, data: bytes) -> Named[Workload]:
        found = parse(kubernetes_pb2.Job, data)
        spec, status = found.spec, found.status
        share = min(spec.parallelism, spec.completions) if spec.HasField("completions") else spec.parallelism
        wants = spec.parallelism
        if spec.HasField("completions"):
            wants = min(wants, spec.completions - status.succeeded)
        elif status.succeeded:
            wants = 0  # a work queue: one success ends it
        # With failures it waits from 10 s to 6 min before it tries again, and does not say how long.
        waits = spec.suspend or status.failed or _makes_none(found)
        return self._workload("Job", found, 0 if waits else wants, creates=status.active < wants, share=share)

    def job_set(self, document: dict[str, Any]) -> Named[Workload]:
        """Raises InvalidInput for one that cannot be meant."""
        try:
            return self._job_set(document)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            name = (document.get("metadata") or {}).get("name", "")
            raise InvalidInput(f"JobSet {name}: {error!r:.200}") from error

    def _job_set(self, document: dict[str, Any]) -> Named[Workload]:
        said = document["metadata"]
        metadata = kubernetes_pb2.ObjectMeta(namespace=said["namespace"], name=said["name"])
        spec, conditions = document["spec"], (document.get("status") or {}).get("conditions") or ()
        ends = said.get("deletionTimestamp") or any(
            each["type"] in _NO_MORE_PODS and each["status"] == "True" for each in conditions
        )
        in_order = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
        parts: list[Part] = []
        for each in () if ends or spec.get("suspend") else spec.get("replicatedJobs") or ():
            if not (parts and in_order) and not each.get("dependsOn"):  # others wait for those before them
                parts.append(self._part(metadata, each))
        return Named(_name(metadata), Workload(f"JobSet/{metadata.namespace}/{metadata.name}", parts=tuple(parts)))

    def _part(self, metadata: kubernetes_pb2.ObjectMeta, replicated: Mapping[str, Any]) -> Part:
        of_jobs = replicated["template"]["spec"]
        pods = of_jobs.get("parallelism", 1)
        if of_jobs.get("completions") is not None:
            pods = min(pods, of_jobs["completions"])
        template = packed(kubernetes_pb2.PodTemplateSpec, known(kubernetes_pb2.PodTemplateSpec, of_jobs["template"]))
        seen = self._template(metadata, template.SerializeToString())
        return Part(replicated["name"], replicated.get("replicas", 1) * pods, seen)

    def _workload(
        self, kind: str, found: _Any, wants: int, *, creates: bool = False, share: int = 0, parts: tuple[Part, ...] = ()
    ) -> Named[Workload]:
        metadata = found.metadata
        key = f"{kind}/{metadata.namespace}/{metadata.name}"
        none = _makes_none(found)
        goes = metadata.HasField("deletionTimestamp") or (kind == "Job" and none)
        said, pod = None if goes else mark(metadata.annotations), None
        if said is not None and said.mirrors:
            try:
                pod = PodDecoder().read(_first_pod(metadata, found.spec.template))
            except InvalidInput as error:
                said = replace(said, mirrors=0, warning=f"its pods cannot be mirrored: {error}")
        template = self._template(metadata, found.spec.template) if creates and not none else None
        value = Workload(
            key,
            0 if none else max(0, wants),
            workload_of(metadata),
            metadata.labels.get(_REPLICATED_JOB, ""),
            share,
            parts,
            template,
            said,
            pod,
        )
        return Named(_name(metadata), value)

    def _template(self, metadata: kubernetes_pb2.ObjectMeta, template: bytes) -> SeenPod | None:
        """A pod as the API server's admission would leave it; None where it is not to be planned before it is there:
        members of gangs, pods with gates or of Kueue, consumers of ProvisioningRequests, pods of other schedulers."""
        pod = _first_pod(metadata, template)
        if any(label in pod.metadata.labels for label in _KUEUE):
            return None
        if pod.metadata.namespace == self._pods.namespace and PLACEHOLDER in pod.metadata.labels:  # the slack's own
            return None
        for key in ADDED_BY_ADMISSION:
            if not any(each.key == key or not each.key for each in pod.spec.tolerations):
                pod.spec.tolerations.add(key=key, operator="Exists", effect="NoExecute")
        class_name = pod.spec.priorityClassName
        pod.spec.ClearField("priority")  # whatever it says: that is for admission to set
        seen = replace(self._pods.read(pod.SerializeToString()), priority_class=class_name, admitted=False)
        return seen if expectable(seen) and seen.stage is Stage.WAITING else None


def expectable(seen: SeenPod) -> bool:
    """Whether others like this pod may be planned before they are there."""
    held_back = seen.stage in (None, Stage.HELD_BACK)
    return not (held_back or seen.pod.gang or seen.pod.consumer or seen.pod.spec is NOWHERE)


def _first_pod(metadata: kubernetes_pb2.ObjectMeta, template: bytes) -> kubernetes_pb2.Pod:
    """As the template has it, with the name of its workload."""
    found = parse(kubernetes_pb2.PodTemplateSpec, template)
    pod = kubernetes_pb2.Pod(metadata=found.metadata, spec=found.spec)
    pod.metadata.namespace, pod.metadata.name = metadata.namespace, metadata.name
    return pod


def _makes_none(workload: _Any) -> bool:
    if workload.metadata.HasField("deletionTimestamp"):
        return True
    if isinstance(workload, kubernetes_pb2.StatefulSet | kubernetes_pb2.Deployment):
        return False
    return any(each.type in _NO_MORE_PODS and each.status == "True" for each in workload.status.conditions)


def ending(data: bytes) -> Named[str]:
    """Of a Namespace: its name while it is being deleted, when no pods can be created there; else nothing."""
    metadata = parse(kubernetes_pb2.Namespace, data).metadata
    return Named(metadata.name, metadata.name if metadata.HasField("deletionTimestamp") else "")


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota: what pods that are still to be created may request."""

    namespace: str
    name: str
    left: Mapping[str, int]
    """By resource, in the planner's units; `pods` among them."""


def quota(document: dict[str, Any]) -> Named[Quota]:
    """Scopes are not looked at: pods that a quota does not count are planned when they are there. Raises InvalidInput
    for one that cannot be meant."""
    problems: Problems = []
    metadata, status = document["metadata"], document.get("status") or {}
    hard, used = status.get("hard") or {}, status.get("used") or {}
    left: dict[str, int] = {}
    for name, most in hard.items():
        resource = _resource(name)
        if resource:  # `cpu` and `requests.cpu` are the same, and both hold
            offered = amounts({name: {resource: most}}, name, "status.hard", problems, round_up=False)
            taken = amounts({name: {resource: used.get(name, 0)}}, name, "status.used", problems)
            more = offered.get(resource, 0) - taken.get(resource, 0)
            left[resource] = min(left.get(resource, more), more)
    namespace, name = metadata["namespace"], metadata["name"]
    if problems:
        raise InvalidInput(f"ResourceQuota {namespace}/{name}: {'; '.join(problems)}")
    return Named(f"{namespace}/{name}", Quota(namespace, name, left))


def _resource(name: str) -> str:
    """Of what pods request, by its name in a quota; empty for anything else."""
    if name in ("count/pods", PODS):
        return PODS
    if name in ("cpu", "memory"):
        return name
    return name.removeprefix("requests.") if name.startswith("requests.") else ""


@dataclass(frozen=True, slots=True)
class PriorityClass:
    value: int
    default: bool = False
    """Whether pods have it that name no class."""


class Priorities(Values[PriorityClass]):
    """The cluster's PriorityClasses."""

    def of_template(self, name: str) -> int | None:
        """The priority of pods whose template names this class, or none (""), as the API server's admission would set
        it. None for a class that is not there: admission would refuse the pods."""
        if name:
            found = self.of.get(name)
            return found.value if found else None
        # Without a default 0, and the least of several.
        return min((each.value for each in self.of.values() if each.default), default=0)


def priority_class(data: bytes) -> Named[PriorityClass]:
    found = parse(kubernetes_pb2.PriorityClass, data)
    return Named(found.metadata.name, PriorityClass(found.value, found.globalDefault))


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
