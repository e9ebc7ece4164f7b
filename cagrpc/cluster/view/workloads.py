"""Workloads, PodGroups, PriorityClasses and ResourceQuotas: what planning reads of each; and what the API server says
where a controller may not create a pod. ReplicaSets and Deployments have that in a condition; of Jobs and StatefulSets
only Events say it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cagrpc.api.core.gangs import GangKind, PodGroup, gang_name, pod_group
from cagrpc.api.core.pods import ADDED_BY_ADMISSION, Pod, PodDecoder, is_nowhere
from cagrpc.api.core.resources import amounts
from cagrpc.api.core.selectors import Conditions
from cagrpc.api.core.slack import PLACEHOLDER, Mark, mark
from cagrpc.api.encoding.json_documents import LARGEST_INT32, Problems, epoch_seconds, mapping, members, whole
from cagrpc.api.encoding.messages import known_to_message, message_to_dict, parse
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.api.provisioning.objects import conditions
from cagrpc.cluster.view.context import ReadingContext
from cagrpc.cluster.view.objects import Named, ObservedPod, PodReader, PodStage, workload_of
from cagrpc.cluster.view.sinks import Values
from cagrpc.errors import InvalidInput
from cagrpc.kube.client.envelopes import ObjectIdentity
from solver.model import PODS, PodSpec

_Any = kubernetes_pb2.Deployment | kubernetes_pb2.ReplicaSet | kubernetes_pb2.StatefulSet | kubernetes_pb2.Job

_NO_MORE_PODS = ("Complete", "Completed", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet")
"""Conditions with which a JobSet or a Job makes no pods, whatever it wants."""
_CREATION_FAILED = (("ReplicaFailure", "True", "FailedCreate"), ("Progressing", "False", "ReplicaSetCreateError"))
"""Conditions of a ReplicaSet, and of a Deployment that has none yet: their messages are the API server's."""
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
_KUEUE = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/managed")
"""Labels of pods that Kueue holds back until it admits them."""

EVENTS = "/api/v1/events"
_REFUSALS = (" is forbidden: ", " denied the request", " is invalid: ")
"""What messages of admission (quotas, policies, webhooks, namespaces that end) and of validation have: the same pod
would be refused again."""


def _name(metadata: kubernetes_pb2.ObjectMeta) -> str:
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


@dataclass(frozen=True, slots=True)
class WorkloadPart:
    """Pods that a workload has other workloads create: a Deployment its ReplicaSets, a JobSet the Jobs of one
    replicatedJob."""

    name: str
    """Empty for a Deployment."""
    pods: int
    """How many pods it has in total."""
    template: ObservedPod | None


@dataclass(frozen=True, slots=True)
class Workload:
    """A controller of pods: a Deployment, ReplicaSet, StatefulSet, Job or JobSet."""

    key: str
    """`kind/namespace/name`."""
    wants: int = 0
    """How many pods it creates and replaces itself."""
    parent: str = ""
    """The workload that owns it, `kind/namespace/name`."""
    part: str = ""
    """The parent's part that it belongs to."""
    share: int = 0
    """How many pods of that part it creates, now or later."""
    parts: tuple[WorkloadPart, ...] = ()
    fails: bool = False
    """Whether its controller has tried to create a pod and could not, and will try again."""
    template: ObservedPod | None = None
    """One of its pods, as long as some are still to be created."""
    mark: Mark | None = None
    """Its slack annotations, as long as it creates pods."""
    pod: Pod | None = None
    """One of its pods, where these are mirrored."""
    claims: tuple[Mapping[str, Any], ...] = ()
    """A StatefulSet's templates of claims, in JSON shape, of which each pod gets its own."""
    first_ordinal: int = 0
    """The first ordinal of a StatefulSet's pods."""
    source: tuple[str, Any] | None = None
    """What it was read from, with the name of the reader's method, where Namespaces or RuntimeClasses count."""
    namespace_selectors: frozenset[Conditions] = frozenset()
    """The conditions on labels of Namespaces that its pods depend on."""


class WorkloadReader:
    """Decodes workloads from protobuf bytes, JobSets from JSON. Not thread-safe."""

    def __init__(self, pods: PodReader, context: ReadingContext) -> None:
        self._pods = pods
        self._context = context
        self._depends = False
        self._selectors: frozenset[Conditions] = frozenset()

    def read(self, kind: str, document: Any) -> Named[Workload]:
        """Decode with the method of this name; the result says what it was read from where that is to be read again."""
        self._depends, self._selectors = False, frozenset()
        found: Named[Workload] = getattr(self, kind)(document)
        if not (self._depends or self._selectors):
            return found
        read_with = replace(found.value, source=(kind, document), namespace_selectors=self._selectors)
        return replace(found, value=read_with)

    def replica_set(self, data: bytes) -> Named[Workload]:
        found = parse(kubernetes_pb2.ReplicaSet, data)
        wants, there = found.spec.replicas, found.status.replicas
        named = self._workload("ReplicaSet", found, wants, creates=there < wants, share=wants)
        return Named(named.key, replace(named.value, fails=any(_failed_to_create(found))))

    def deployment(self, data: bytes) -> Named[Workload]:
        """Decode a Deployment. Its ReplicaSets create its pods; none exists for a while after its own creation."""
        found = parse(kubernetes_pb2.Deployment, data)
        parts: tuple[WorkloadPart, ...] = ()
        # `Recreate` creates no pods before all of the last revision are gone; a paused one may change its template.
        if not (_makes_none(found) or found.spec.paused or found.spec.strategy.type == "Recreate"):
            creates = found.status.replicas < found.spec.replicas
            template = self._template(found.metadata, found.spec.template) if creates else None
            parts = (WorkloadPart("", found.spec.replicas, template),)
        named = self._workload("Deployment", found, 0, parts=parts)
        return Named(named.key, replace(named.value, fails=any(_failed_to_create(found))))

    def stateful_set(self, data: bytes) -> Named[Workload]:
        found = parse(kubernetes_pb2.StatefulSet, data)
        wants, there = found.spec.replicas, found.status.replicas
        if found.spec.podManagementPolicy != "Parallel":  # one after the other, once all before are ready
            wants = min(wants, there + (found.status.readyReplicas == there))
        named = self._workload("StatefulSet", found, wants, creates=there < wants)
        claims = tuple(message_to_dict(each) for each in found.spec.volumeClaimTemplates)
        return Named(named.key, replace(named.value, claims=claims, first_ordinal=found.spec.ordinals.start))

    def job(self, data: bytes) -> Named[Workload]:
        found = parse(kubernetes_pb2.Job, data)
        spec, status = found.spec, found.status
        share = min(spec.parallelism, spec.completions) if spec.HasField("completions") else spec.parallelism
        wants = spec.parallelism
        if spec.HasField("completions"):
            wants = min(wants, spec.completions - status.succeeded)
        elif status.succeeded:
            wants = 0  # a work queue: one success ends it
        # After failures it backs off from 10 s to 6 min, and does not report for how long.
        waits = spec.suspend or status.failed or _makes_none(found)
        return self._workload("Job", found, 0 if waits else wants, creates=status.active < wants, share=share)

    def job_set(self, document: dict[str, Any]) -> Named[Workload]:
        """Decode a JobSet. Raises InvalidInput for an invalid one."""
        problems: Problems = []
        said = mapping(document, "metadata", "", problems)
        named = {each: said.get(each) for each in ("namespace", "name")}
        metadata = known_to_message(kubernetes_pb2.ObjectMeta, named)
        parts = []
        for each in replicated_jobs(document, problems):
            if each.starts:
                template = known_to_message(kubernetes_pb2.PodTemplateSpec, each.template).SerializeToString()
                parts.append(WorkloadPart(each.name, each.pods, self._template(metadata, template)))
        if problems:
            raise InvalidInput(f"JobSet {_name(metadata)}: {'; '.join(problems)}")
        return Named(_name(metadata), Workload(f"JobSet/{metadata.namespace}/{metadata.name}", parts=tuple(parts)))

    def _workload(
        self,
        kind: str,
        found: _Any,
        wants: int,
        *,
        creates: bool = False,
        share: int = 0,
        parts: tuple[WorkloadPart, ...] = (),
    ) -> Named[Workload]:
        metadata = found.metadata
        key = f"{kind}/{metadata.namespace}/{metadata.name}"
        none = _makes_none(found)
        goes = metadata.HasField("deletionTimestamp") or (kind == "Job" and none)
        said, pod = None if goes else mark(metadata.annotations), None
        if said is not None and said.mirrors:
            try:
                mirrored = _first_pod(metadata, found.spec.template)
                self._depends |= bool(mirrored.spec.runtimeClassName)
                self._context.admit(mirrored)
                pod = PodDecoder().read(mirrored)
            except InvalidInput as error:
                said = replace(said, mirrors=0, warning=f"its pods cannot be mirrored: {error}")
        template = self._template(metadata, found.spec.template) if creates and not none else None
        value = Workload(
            key,
            0 if none else max(0, wants),
            workload_of(metadata),
            metadata.labels.get(REPLICATED_JOB, ""),
            share,
            parts,
            template=template,
            mark=said,
            pod=pod,
        )
        return Named(_name(metadata), value)

    def _template(self, metadata: kubernetes_pb2.ObjectMeta, template: bytes) -> ObservedPod | None:
        """Return a pod as the API server's admission would leave it; None where it is not planned before it exists:
        members of gangs, pods with gates or of Kueue, consumers of ProvisioningRequests, pods of other schedulers."""
        pod = _first_pod(metadata, template)
        if any(label in pod.metadata.labels for label in _KUEUE):
            return None
        if pod.metadata.namespace == self._pods.namespace and PLACEHOLDER in pod.metadata.labels:  # the slack's own
            return None
        for key in ADDED_BY_ADMISSION:
            if not any(each.key == key or not each.key for each in pod.spec.tolerations):
                pod.spec.tolerations.add(key=key, operator="Exists", effect="NoExecute")
        self._depends |= bool(pod.spec.runtimeClassName)
        if not self._context.admit(pod):
            return None
        class_name = pod.spec.priorityClassName
        pod.spec.ClearField("priority")  # admission sets it, whatever the template has
        seen = replace(self._pods.read(pod.SerializeToString()), priority_class=class_name, admitted=False)
        self._selectors |= seen.pod.namespace_selectors
        return seen if expectable(seen) and seen.stage is PodStage.WAITING else None


class ReplicatedJob(NamedTuple):
    """One of the replicatedJobs of a JobSet."""

    name: str
    template: Mapping[str, Any]
    """The template of its pods, and its path."""
    path: str
    pods: int
    """How many run at a time, of all of its Jobs."""
    starts: bool
    """Whether its Jobs are created now: none that is suspended, and no other one that waits for those before it. Of
    these nothing else is read."""


def replicated_jobs(document: Mapping[str, Any], problems: Problems) -> Iterator[ReplicatedJob]:
    """Yield the replicatedJobs of a JobSet that has not ended."""
    said, spec = mapping(document, "metadata", "", problems), mapping(document, "spec", "", problems)
    in_order = mapping(spec, "startupPolicy", "spec", problems).get("startupPolicyOrder") == "InOrder"
    ended = any(
        each.status and each.type in _NO_MORE_PODS for each in conditions(mapping(document, "status", "", problems))
    )
    if ended or said.get("deletionTimestamp") or spec.get("suspend"):
        return
    first = True
    for each, at in members(spec, "replicatedJobs", "spec", problems):
        name, path = str(each.get("name") or ""), f"{at}.template.spec"
        if each.get("dependsOn") or (in_order and not first):
            yield ReplicatedJob(name, {}, path, 0, starts=False)
            continue
        first = False
        of_jobs = mapping(mapping(each, "template", at, problems), "spec", f"{at}.template", problems)
        pods = whole(of_jobs, "parallelism", path, problems, 0, LARGEST_INT32, default=1)
        pods = min(pods, whole(of_jobs, "completions", path, problems, 0, LARGEST_INT32, default=pods))
        replicas = whole(each, "replicas", at, problems, 0, LARGEST_INT32, default=1)
        template = mapping(of_jobs, "template", path, problems)
        yield ReplicatedJob(name, template, f"{path}.template", replicas * pods, starts=True)


def expectable(seen: ObservedPod) -> bool:
    """Return whether other pods like this one may be planned before they exist."""
    held_back = seen.stage in (None, PodStage.HELD_BACK)
    return not (held_back or seen.pod.gang or seen.pod.consumer or is_nowhere(seen.pod.spec))


def _first_pod(metadata: kubernetes_pb2.ObjectMeta, template: bytes) -> kubernetes_pb2.Pod:
    """Return a pod of the template, with the name of its workload."""
    found = parse(kubernetes_pb2.PodTemplateSpec, template)
    pod = kubernetes_pb2.Pod(metadata=found.metadata, spec=found.spec)
    pod.metadata.namespace, pod.metadata.name = metadata.namespace, metadata.name
    return pod


def _makes_none(workload: _Any) -> bool:
    if workload.metadata.HasField("deletionTimestamp"):
        return True
    if isinstance(workload, kubernetes_pb2.StatefulSet):
        return False
    if isinstance(workload, kubernetes_pb2.Job):
        return any(each.type in _NO_MORE_PODS and each.status == "True" for each in workload.status.conditions)
    return any(map(is_refusal, _failed_to_create(workload)))


def _failed_to_create(workload: kubernetes_pb2.ReplicaSet | kubernetes_pb2.Deployment) -> Iterator[str]:
    """Yield what the API server said when its controller could not create something."""
    for each in workload.status.conditions:
        if (each.type, each.status, each.reason) in _CREATION_FAILED:
            yield each.message


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota: what further pods may request."""

    namespace: str
    name: str
    left: Mapping[str, int]
    """What is left of each resource, in the planner's units; `pods` among them."""


def quota(document: Mapping[str, Any], problems: Problems) -> Quota:
    """Read a ResourceQuota. Scopes are not looked at: pods that a quota does not count are planned when they are
    there."""
    metadata, status = mapping(document, "metadata"), mapping(document, "status", "", problems)
    hard, used = mapping(status, "hard", "status", problems), mapping(status, "used", "status", problems)
    left: dict[str, int] = {}
    for name, most in hard.items():
        resource = _resource(name)
        if resource:  # `cpu` and `requests.cpu` are the same, and both hold
            offered = amounts({name: {resource: most}}, name, "status.hard", problems, round_up=False)
            taken = amounts({name: {resource: used.get(name, 0)}}, name, "status.used", problems)
            more = offered.get(resource, 0) - taken.get(resource, 0)
            left[resource] = min(left.get(resource, more), more)
    return Quota(str(metadata.get("namespace") or ""), str(metadata.get("name") or ""), left)


def let_in(left: dict[str, int], spec: PodSpec, count: int) -> int:
    """Return how many of so many pods what quotas leave lets be created, and take them from it."""
    requests = {**dict(spec.requests), PODS: 1}
    room = (left[name] // amount for name, amount in requests.items() if name in left and amount)
    allowed = max(0, min((count, *room)))
    for name, amount in requests.items():
        if name in left:
            left[name] -= amount * allowed
    return allowed


def _resource(name: str) -> str:
    """Return the pods' resource for a name in a quota; empty for anything else."""
    if name in ("count/pods", PODS):
        return PODS
    if name in ("cpu", "memory"):
        return name
    return name.removeprefix("requests.") if name.startswith("requests.") else ""


@dataclass(frozen=True, slots=True)
class PriorityClass:
    value: int
    default: bool = False
    """Whether pods without a class have it (`globalDefault`)."""


class Priorities(Values[PriorityClass]):
    """The cluster's PriorityClasses."""

    def of_template(self, name: str) -> int | None:
        """Return the priority that the API server's admission gives pods whose template names this class, or none ("").
        None for an unknown class: admission would reject the pods."""
        if name:
            found = self.of.get(name)
            return found.value if found else None
        # 0 without a default; the lowest of several.
        return min((each.value for each in self.of.values() if each.default), default=0)


def priority_class(data: bytes) -> Named[PriorityClass]:
    found = parse(kubernetes_pb2.PriorityClass, data)
    return Named(found.metadata.name, PriorityClass(found.value, found.globalDefault))


def pod_group_key(api_version: str) -> Callable[[ObjectIdentity], str]:
    """Return what the PodGroups of one API group and version are known by: the gang's name."""
    kind = GangKind(f"podgroup.{api_version.partition('/')[0]}")
    return lambda of: gang_name(kind, of.namespace, of.name)


def pod_group_of(api_version: str) -> Callable[[dict[str, Any]], Named[PodGroup]]:
    """Return a reader of the PodGroups of one API group and version, by the gang's name."""

    def read(document: dict[str, Any]) -> Named[PodGroup]:
        problems: Problems = []
        # objects in a list do not say what they are
        found = pod_group({**document, "apiVersion": api_version, "kind": "PodGroup"}, problems)
        if found is None or problems:
            raise InvalidInput(
                f"PodGroup of {api_version}: {'; '.join(problems) or 'not a PodGroup that planning reads'}"
            )
        return Named(found.gang.name, found)

    return read


def ordinal(name: str) -> int:
    """Return the number at the end of the name of a StatefulSet's pod; -1 where there is none."""
    end = name.rpartition("-")[2]
    return int(end) if end.isdecimal() and end.isascii() else -1


FAILED_CREATE = "reason=FailedCreate"
"""The field selector of Events that are read."""

_FOR_A_MOMENT = ("error looking up service account", "status unknown for quota", "not yet ready to handle request")
"""What messages of a namespace, or an API server, have that is younger than its controllers' work: the next attempt
succeeds."""


def is_refusal(message: str) -> bool:
    """Return whether this is why a pod must not be created, rather than why it could not be at that moment: conflicts,
    time-outs, webhooks that cannot be reached."""
    return any(each in message for each in _REFUSALS) and not any(each in message for each in _FOR_A_MOMENT)


@dataclass(frozen=True, slots=True)
class FailedCreate:
    """An Event of a workload's controller."""

    workload: str
    """`kind/namespace/name`."""
    at_seconds: int
    """When it was seen last; since the epoch."""
    refused: bool


def failed_create(document: Mapping[str, Any], problems: Problems) -> FailedCreate:
    """Read an Event."""
    about, series = mapping(document, "involvedObject", "", problems), mapping(document, "series", "", problems)
    times = (document.get("lastTimestamp"), series.get("lastObservedTime"), document.get("eventTime"))
    return FailedCreate(
        "/".join(str(about.get(each) or "") for each in ("kind", "namespace", "name")),
        max(map(epoch_seconds, times)),
        is_refusal(str(document.get("message") or "")),
    )


class FailedCreates:
    """The table of these Events: none is kept, each is told of once it comes or is seen again."""

    def __init__(self, refused: Callable[[str, int], object]) -> None:
        """`refused` takes the workload, and when the API server refused a pod of it, in seconds since the epoch."""
        self._refused = refused

    def keys(self) -> Iterable[str]:
        return ()

    def put(self, named: Named[FailedCreate]) -> None:
        if named.value.refused:
            self._refused(named.value.workload, named.value.at_seconds)

    def drop(self, key: str) -> None:
        pass
