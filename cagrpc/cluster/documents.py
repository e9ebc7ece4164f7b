"""Kubernetes objects of files to the cluster that they describe: put into a `ClusterModel` as if the API server had
admitted and listed them, and the controllers of workloads had created their pods. What objects mean is the model's;
here is what those two do first, and which problem is whose.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from cagrpc.api.capacity_quotas import RESOURCE
from cagrpc.api.core.constraints import Surroundings
from cagrpc.api.core.consumption import CONSUME_KEYS, consumes
from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL, gang_of_pod, incomplete
from cagrpc.api.core.movability import MovingRules
from cagrpc.api.core.nodes import node_of_document
from cagrpc.api.core.pods import is_placeholder, pod_spec
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULER, DEFAULT_SCHEDULERS, EXPENDABLE_BELOW
from cagrpc.api.core.selectors import NoNamespaces, PodIdentity
from cagrpc.api.core.slack import PLACEHOLDER
from cagrpc.api.core.volumes import pod_volumes, with_templates
from cagrpc.api.devices.objects import GROUP, VERSIONS, Device, ResourceClaim
from cagrpc.api.encoding.json_documents import Problems, mapping, members, strings
from cagrpc.api.encoding.messages import known_to_message
from cagrpc.api.files.documents import ManifestDocument
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.admission import Admission
from cagrpc.cluster.bound_pods import ENDED, AlikePods, StandingPods
from cagrpc.cluster.markers import NAMESPACE
from cagrpc.cluster.node_info import PlaceholderOwner, Reservation, Reservations
from cagrpc.cluster.state import ClusterState, PodRef
from cagrpc.cluster.view.model import NODES, POD_GROUPS, PODS, ClusterModel, ModelSettings
from cagrpc.cluster.view.objects import MIRROR, Named, ObservedPod, PodReader, PodStage
from cagrpc.cluster.view.sinks import Followed
from cagrpc.cluster.view.workloads import REPLICATED_JOB, let_in, quota, replicated_jobs
from cagrpc.errors import InvalidInput, shown
from cagrpc.fleet.model import PodKey
from cagrpc.kube.client.envelopes import Encoding, ObjectIdentity
from cagrpc.runtime.clock import EpochSeconds, monotonic
from solver.model import PODS as PODS_RESOURCE
from solver.model import PodSet, Resources, Taint
from solver.model.quantities import pluralize

_REPLICATED = ("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController")
_JOBS = ("Job", "CronJob")
_JOB_SET = "JobSet"
KINDS: Mapping[str, str] = {
    "nodes": "Node",
    "pods": "Pod",
    "namespaces": "Namespace",
    "daemonsets": "DaemonSet",
    "priorityclasses": "PriorityClass",
    "poddisruptionbudgets": "PodDisruptionBudget",
    "runtimeclasses": "RuntimeClass",
    "storageclasses": "StorageClass",
    "persistentvolumes": "PersistentVolume",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "csinodes": "CSINode",
    "csistoragecapacities": "CSIStorageCapacity",
    "csidrivers": "CSIDriver",
    "volumeattachments": "VolumeAttachment",
    "resourceclaims": "ResourceClaim",
    "resourceclaimtemplates": "ResourceClaimTemplate",
    "deviceclasses": "DeviceClass",
    "resourceslices": "ResourceSlice",
    "podgroups": "PodGroup",
    RESOURCE: "CapacityQuota",
    "deployments": "Deployment",
    "replicasets": "ReplicaSet",
    "statefulsets": "StatefulSet",
    "jobs": "Job",
}
"""The kinds of objects, by the plural of their collection."""
_WHERE_VOLUMES_ARE = ("persistentvolumeclaims", "persistentvolumes", "storageclasses")
_LABELS_OF_CONTROLLERS = {
    "Deployment": ("pod-template-hash",),
    "StatefulSet": ("controller-revision-hash",),
    "Job": ("batch.kubernetes.io/job-name", "job-name"),
    "JobSet": ("jobset.sigs.k8s.io/jobset-name",),
}
"""The labels that a controller adds to all pods of a template, by kind. Hashes are unknown; the workload's name stands
for them, which distinguishes its pods from those of other workloads and of earlier revisions."""
_LEFT_OUT: Mapping[str, str] = {
    "gated": "left out {pods} with schedulingGates, not schedulable yet, for example {example}",
    "ending": "left out pods that are being deleted: {count}, for example {example}",
    "later": "left out replicated jobs that start after others of their JobSet: {count}, for example {example}",
    "beyond": "left out {pods} that a ResourceQuota has no room for, for example of {example}",
    "expendable": f"left out {{pods}} of a priority below {EXPENDABLE_BELOW}, for which no nodes are added, for example"
    " {example}",
    "nominated": "left out {pods} that the scheduler has nominated to a node, where room is kept, for example"
    " {example}",
    "foreign": "left out {pods} of schedulers that are not planned for, for example {example}; --scheduler names those"
    " that are",
}
"""What is said of pods that are not planned, by reason."""
_COPY = "#"
"""Comes between the key of a pod and the number of a further one."""
_NOT_OF_NODES = {
    *_REPLICATED,
    *_JOBS,
    "Pod",
    "DaemonSet",
    "PriorityClass",
    "RuntimeClass",
    "PodGroup",
    "PodDisruptionBudget",
}
_SAY_WHERE = ("PersistentVolumeClaim", "StorageClass")
WITH_PODS = frozenset({*_REPLICATED, *_JOBS, _JOB_SET, "Pod", "ProvisioningRequest"})
"""Kinds of which each object has pods, or asks for some."""
_OF_PODS = (*WITH_PODS, "PodTemplate", "PodGroup", "ResourceQuota")
"""Kinds that say which pods should be, where it is known which are."""
READ = frozenset({*KINDS.values(), *_OF_PODS, "LimitRange"})
"""Kinds that planning reads."""
_OF_NO_PODS = ("Event", "Secret", "ConfigMap", "Lease", "Endpoints", "EndpointSlice", "Service", "ServiceAccount")
"""What a dump of a cluster has besides, which is passed over where it is read what runs."""
_OF_DEVICES = ("resourceclaims", "resourceclaimtemplates", "deviceclasses", "resourceslices")
_DEVICE_VERSIONS = tuple(f"{GROUP}/{version}" for version in VERSIONS)


@dataclass(frozen=True, slots=True)
class Described:
    """The cluster that documents describe. `warnings` are messages about what was read but not (fully) taken into
    account."""

    state: ClusterState
    placeholders: tuple[PodSet, ...] = ()
    """Pods of the resource slack, by their annotation."""
    warnings: tuple[str, ...] = ()
    pause_pods: Reservations = field(default_factory=dict)
    """The room of the slack's pause pods, which give way to others."""
    mirrors: Mapping[str, Resources] = field(default_factory=dict)
    """What static pods ask for, by node."""
    other_schedulers: frozenset[str] = frozenset()
    """Nodes with pods that others have bound than those that planning is for."""


class _Bound(NamedTuple):
    """A bound pod as it was read, and those that are like it, itself among them."""

    seen: ObservedPod
    body: Mapping[str, Any]
    """The pod as the API server keeps it."""
    pods: Sequence[tuple[PodRef, str]]
    """Each pod, with its node."""


@dataclass
class DocumentReader:
    """Collects all documents first (`add`), because they refer to each other in any order and across files; `read`
    reads them."""

    now_seconds: float = 0.0
    """The time since the epoch; with 0 pods' ages do not count."""
    gang_label: str = DEFAULT_GANG_LABEL
    schedulers: AbstractSet[str] = DEFAULT_SCHEDULERS
    moving: MovingRules | None = None
    """The rules for moving pods; with these it is read who is bound, and why it may not be moved. Where any is, those
    that should be besides are no part of the cluster."""
    bound: StandingPods = field(default_factory=StandingPods, init=False)
    """Those that were reduced as they came; they are no documents."""
    documents: list[ManifestDocument] = field(default_factory=list, init=False)
    listed: AbstractSet[str] | None = field(default=None, init=False)
    """Kinds of which all objects are among the documents, of a cluster that was listed. None of files, which may have
    some of a kind: then what they refer to is known as far as they say it."""
    problems: Problems = field(default_factory=list, init=False)
    out_of_place: Counter[str] = field(default_factory=Counter, init=False)
    """Objects by kind that do not belong into their file."""

    def __post_init__(self) -> None:
        self._by_kind: defaultdict[str, list[ManifestDocument]] = defaultdict(list)
        self._admission = Admission(self.problems)
        self._devices: Mapping[str, tuple[Device, ...]] | None = None
        self._startup_taints: AbstractSet[Taint] = frozenset()
        self._decoded: dict[str, tuple[Sequence[Any], bool]] = {}
        """Objects other than pods, and whether they are all that there are, by path."""
        self._waiting: list[ObservedPod] = []
        """Pods without a node, and those that have ended."""
        self._bound: list[_Bound] = []
        self._keys: Counter[str] = Counter()
        self._copies: dict[str, list[tuple[PodRef, str]]] = {}
        """Further pods of the template of one that waits, by its key."""
        self._placeholder_keys: set[str] = set()
        self._left_out: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """By the key of `_LEFT_OUT`, how many pods of whom are not planned."""
        self._quotas: defaultdict[str, dict[str, int]] = defaultdict(dict)
        """What ResourceQuotas leave for expected pods, by namespace and resource."""
        self._volumes_of = ""
        """A pod with volumes."""
        self._notes: list[str] = []
        self._ignored: Counter[str] = Counter()
        self._again: Counter[str] = Counter()
        """Objects that came more than once, and how often beyond the first time."""

    def add(self, documents: Iterable[ManifestDocument]) -> None:
        """Take objects as they come."""
        passed_over = () if self.moving is None else _OF_NO_PODS
        self.documents += (each for each in documents if each.kind not in passed_over and not self.bound.add(each))

    def of_nodes(self, found: Iterable[ManifestDocument]) -> Iterable[ManifestDocument]:
        """Yield the documents that count in a file of nodes; the rest is counted for a warning."""
        other = set(KINDS.values()) - _NOT_OF_NODES
        for document in found:
            if document.kind in other or (document.kind == "Pod" and document.spec.get("nodeName")):
                yield document
            else:
                self.out_of_place[document.kind] += 1

    def read(
        self,
        devices: Mapping[str, tuple[Device, ...]] | None = None,
        startup_taints: AbstractSet[Taint] = frozenset(),
    ) -> Described:
        """Return the cluster; what is wrong is in `problems`. `devices` are configured of new nodes, by node group;
        nodes lose `startup_taints` by themselves."""
        self._devices, self._startup_taints = devices, startup_taints
        if self.moving is not None and self.bound:
            self._those_read = [each for each in self.documents if each.kind not in _OF_PODS]
            self._those_read += _daemon_sets(self._those_read, self.bound)
        else:
            self._those_read = self.documents
        self._those_read = list(self._each_once(self._those_read))
        for document in self._those_read:
            self._by_kind[document.kind].append(document)
        self._names_of_nodes = {document.name for document in self._by_kind["Node"]}
        for kind in ("PriorityClass", "RuntimeClass", "LimitRange"):
            for document in self._by_kind[kind]:
                self._report(document, self._admission.add(document))
        model, followed = self._model(self.moving)
        named = {document.name for document in self._by_kind["Namespace"]}
        with_pods = (each for each in self._those_read if each.kind in (*_OF_PODS, "DaemonSet"))
        namespaces = {each.namespace for each in (*with_pods, *(alike.like for alike in self.bound.alike))}
        self._complete = namespaces <= named if self.listed is None else "Namespace" in self.listed
        self._reader = PodReader(self.gang_label, self.schedulers, NAMESPACE, evictions=self.moving is not None)
        taken = {
            "Pod",
            "LimitRange",
            "PodTemplate",
            "ProvisioningRequest",
            "ResourceQuota",
            _JOB_SET,
            *_REPLICATED,
            *_JOBS,
        }
        for path, each in followed.items():
            kind = KINDS[path.rpartition("/")[2]]
            if kind != "Pod":
                taken.add(kind)
                self._decode(each, kind)
        self._read_pods()
        self._ignored.update({kind: len(of) for kind, of in self._by_kind.items() if kind not in taken})
        strangers = [each for each in self._by_kind["PodGroup"] if each.body.get("apiVersion") not in POD_GROUPS]
        self._ignored += Counter({"PodGroup": len(strangers)})
        self._fill(followed, self._decoded)
        copies = {**self._copies, **self._put_bound(followed[PODS], self._bound)}
        state, placeholders = self._divided(self._state(model, copies, with_bound=self.moving is not None))
        return Described(
            state,
            placeholders,
            tuple(self._warnings(state, self._strangers(state))),
            self._pause_pods(),
            self._mirrors(),
            frozenset(
                node
                for each in self._bound
                if each.seen.eviction is not None and each.seen.eviction.scheduler
                for _, node in each.pods
            ),
        )

    def _each_once(self, documents: Iterable[ManifestDocument]) -> Iterator[ManifestDocument]:
        """Yield the documents without workloads and pods of a kind, namespace and name that came before: a server has
        one of each."""
        seen: set[tuple[str, str, str]] = set()
        for each in documents:
            if each.kind in WITH_PODS and each.metadata.get("name"):
                if each.identity in seen:
                    self._again[f"{each.kind} {each.namespace}/{each.name}"] += 1
                    continue
                seen.add(each.identity)
            yield each

    def drained(self, kept: AbstractSet[str]) -> Described:
        """Return the cluster that was read without its nodes but those that are `kept`, by name: pods of the others
        wait, each by itself whatever gang it came with, and have their claims on devices still to be allocated. What
        nodes that are gone told of their instance types is known."""
        model, followed = self._model(None)
        stays = {ref.uid for each in self._bound for ref, node in each.pods if node in kept}
        self._fill(followed, {path: (_free(found, stays), all_) for path, (found, all_) in self._decoded.items()})
        reader = PodReader("", self.schedulers, NAMESPACE)
        copies = dict(self._copies)
        for each in self._bound:
            staying = [pod for pod in each.pods if pod[1] in kept]
            copies |= self._put_bound(followed[PODS], [each._replace(pods=staying)] if staying else ())
            leaving = [(ref, "") for ref, node in each.pods if node not in kept]
            if leaving and (each.seen.stage is PodStage.MOVABLE or each.seen.pause_shape is not None):
                copies |= self._put_waiting(followed[PODS], reader, each._replace(pods=leaving))
        model.state()  # what the nodes tell of their instance types is known once they were shown
        for each in self._decoded[NODES][0]:
            if each.key not in kept:
                followed[NODES].deleted(ObjectIdentity("", "", each.key))
        state, placeholders = self._divided(self._state(model, copies, with_bound=False))
        return Described(state, placeholders, tuple(self._warnings(state, Counter())))

    @property
    def waiting(self) -> int:
        """Return how many pods without a node there are among the objects."""
        return sum(each.kind == "Pod" and not each.spec.get("nodeName") for each in self.documents)

    @property
    def has_left_out(self) -> bool:
        """Return whether there are pods, among those that were read, that could be planned and are not."""
        ended = (PodStage.SUCCEEDED, PodStage.DAEMON)
        return any(each.total() for each in self._left_out.values()) or any(
            each.stage not in ended for each in self._waiting
        )

    def node_of(self) -> dict[PodKey, str]:
        """Return the node of each bound pod that was read."""
        return {ref.key: node for each in self._bound for ref, node in each.pods}

    # The model

    def _model(self, moving: MovingRules | None) -> tuple[ClusterModel, Mapping[str, Followed[Any]]]:
        model = ClusterModel(
            ModelSettings(
                gang_label=self.gang_label,
                schedulers=self.schedulers,
                devices=self._devices,
                moving=moving,
                startup_taints=self._startup_taints,
            ),
            monotonic,
            lambda: EpochSeconds(self.now_seconds),
        )
        return model, {each.resource.path: each for each in model.followed}

    def _fill(self, followed: Mapping[str, Followed[Any]], objects: Mapping[str, tuple[Sequence[Any], bool]]) -> None:
        """Put all objects, and all pods that are not bound."""
        for path, (found, all_) in objects.items():
            sink = followed[path]
            if all_:
                sink.replaced(found)
            else:
                for each in found:
                    sink.applied(each)
        for seen in self._waiting:
            followed[PODS].applied(seen)

    def _put_bound(self, followed: Followed[ObservedPod], found: Iterable[_Bound]) -> Mapping[str, list[Any]]:
        """Put the first of pods that are alike; return the others, by its key."""
        copies = {}
        for seen, _, pods in found:
            (ref, node), *others = pods
            followed.applied(seen if ref == seen.ref else replace(seen, key=ref.uid, ref=ref, node=node))
            copies[ref.uid] = others
        return copies

    def _put_waiting(
        self, followed: Followed[ObservedPod], reader: PodReader, found: _Bound
    ) -> Mapping[str, list[Any]]:
        """Put bound pods as if they waited; return the same."""
        (ref, _), *others = found.pods
        metadata, spec = found.body["metadata"], found.body["spec"]
        labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != PLACEHOLDER}
        body = {
            "metadata": {**metadata, "labels": labels, "annotations": {}},
            "spec": {key: value for key, value in spec.items() if key not in ("nodeName", "schedulingGroup")},
            "status": found.body["status"],
        }
        seen = reader.read(known_to_message(kubernetes_pb2.Pod, body).SerializeToString())
        followed.applied(replace(seen, key=ref.uid, ref=ref, pending=None))
        return {ref.uid: others}

    def _state(
        self, model: ClusterModel, copies: Mapping[str, list[tuple[PodRef, str]]], *, with_bound: bool
    ) -> ClusterState:
        """Return the state with copies of pods."""
        if any(copies.values()):
            model.state()  # the class of a pod is known for good once all that it refers to was read
        for key, others in copies.items():
            model.put_copies(key, others)
        return model.state(with_bound=with_bound)

    # Objects

    @property
    def _says_where(self) -> bool:
        """Whether files say where volumes are; else it is as if they could not be listed."""
        return any(self._by_kind[each] for each in _SAY_WHERE)

    def _decode(self, followed: Followed[Any], kind: str) -> None:
        of_protobuf = followed.resource.encoding is Encoding.PROTOBUF
        message = getattr(kubernetes_pb2, kind) if of_protobuf else None
        version, _, plural = followed.resource.path.rpartition("/")
        version = version.removeprefix("/apis/").removeprefix("/api/")
        found = []
        for document in self._by_kind[kind]:
            if not _is_of(document, version, plural):
                continue
            if kind == "Node":
                self._check_node(document)
            body = self._admission.admitted(document)
            try:
                item: Any = known_to_message(message, body).SerializeToString() if message else dict(body)
                found.append(followed.resource.decode(item))
            except InvalidInput as error:
                said = str(error).removeprefix(f"{kind} {document.namespace}/{document.name}: ")
                said = said.removeprefix(f"{kind} {document.name}: ").removeprefix(f"{kind} of {version}: ")
                self._report(document, self._where(document) or [said])
        if self.listed is not None:
            all_ = kind in self.listed
        elif plural in _WHERE_VOLUMES_ARE:
            all_ = self._says_where
        else:
            all_ = plural != "namespaces" or self._complete
        self._decoded[followed.resource.path] = found, all_

    def _where(self, document: ManifestDocument) -> Problems:
        """Return what is wrong with an object that cannot be read, with its path."""
        here: Problems = []
        _labels(document.body, "", here)
        if document.kind == "DaemonSet":
            template = mapping(document.spec, "template", "spec", here)
            here += self._problems_of(document, template, "spec.template")
        return here

    def _check_node(self, document: ManifestDocument) -> None:
        here: Problems = []
        if not node_of_document(document.body, here).allocatable and not here:
            here.append("status.allocatable: missing; planning needs what pods may use of the node")
        self._report(document, here)

    def _report(self, document: ManifestDocument, problems: Iterable[str]) -> None:
        self.problems.extend(f"{document.place}: {problem}" for problem in problems)

    # Pods

    def _read_pods(self) -> None:
        requests = {each.identity[1:] for each in self._by_kind["ProvisioningRequest"]}
        templates = {each.identity[1:]: each for each in self._by_kind["PodTemplate"]}
        for document in self._by_kind["Pod"]:
            self._pod(document, requests)
        for alike in self.bound.alike:
            self._bound_pods(alike)
        for document in self._by_kind["ProvisioningRequest"]:
            self._provisioning_request(document, templates)
        owners = {
            (str(owner.get("kind")), document.namespace, str(owner.get("name")))
            for document in (*self._those_read, *(each.like for each in self.bound.alike))
            for owner, _ in members(document.metadata, "ownerReferences")
        }
        # Whose pods (or replica sets) are there as well has created them.
        self._read_quotas()
        for kind in (*_REPLICATED, *_JOBS, _JOB_SET):
            for document in self._by_kind[kind]:
                if document.identity not in owners:
                    (self._job_set if kind == _JOB_SET else self._workload)(document, requests)

    def _read_quotas(self) -> None:
        """Read what ResourceQuotas leave for expected pods. One of a file that has no status has the one that it would
        get."""
        for document in self._by_kind["ResourceQuota"]:
            body = document.body
            if not mapping(body, "status"):
                hard = mapping(document.spec, "hard")
                body = {**body, "status": {"hard": hard}}
            here: Problems = []
            left = quota(body, here).left
            if here:
                self._report(document, ["; ".join(here)])
                continue
            used = Counter[str]() if body is document.body else self._requested(document.namespace)
            of = self._quotas[document.namespace]
            of.update({name: min(of.get(name, amount), amount - used[name]) for name, amount in left.items()})

    def _requested(self, namespace: str) -> Counter[str]:
        """Return what the pods of a namespace request that are there."""
        found: Counter[str] = Counter()
        there = [(each, 1) for each in self._waiting if each.stage is not PodStage.SUCCEEDED]
        for seen, count in (*there, *((each.seen, len(each.pods)) for each in self._bound)):
            if seen.ref.namespace == namespace:
                found.update({name: count * of for name, of in (*seen.pod.spec.requests, (PODS_RESOURCE, 1))})
        return found

    def _pod(self, document: ManifestDocument, requests: AbstractSet[tuple[str, str]]) -> None:
        phase = mapping(document.body, "status").get("phase")
        waits = phase not in ENDED
        if waits and consumes(document.namespace, document.body, requests):
            return
        said = document.metadata
        body = self._kept(document, str(said.get("uid") or self._key_of(f"{document.namespace}/{document.name}")))
        seen = self._read(document, document.body, body, "")
        if waits and said.get("deletionTimestamp"):
            self._left_out["ending"][f"{document.namespace}/{document.name}"] += 1
        elif waits:
            self._note_passed_over(document, body["spec"], 1)
        if seen is not None:
            if seen.nominated in self._names_of_nodes:
                self._left_out["nominated"][f"{document.namespace}/{document.name}"] += 1
            self._add(document, seen, body["metadata"])

    def _bound_pods(self, alike: AlikePods) -> None:
        document = alike.like
        body = self._kept(document, str(document.metadata.get("uid") or f"{document.namespace}/{document.name}"))
        seen = self._read(document, document.body, body, "")
        if seen is None:
            return
        self._note_volumes(document, seen)
        seen = replace(seen, pending=None)
        pods, namespace = [], document.namespace
        for each in alike.pods:
            uid = each.uid or self._key_of(f"{namespace}/{each.name}")
            ref = PodRef(uid, seen.ref.namespace, each.name, each.created_at_seconds, seen.ref.workload)
            pods.append((ref, each.node))
        self._bound.append(_Bound(seen, body, pods))

    def _kept(self, document: ManifestDocument, uid: str) -> Mapping[str, Any]:
        """Return a pod as the API server keeps it."""
        said = document.metadata
        owners = [dict(each) for each, _ in members(said, "ownerReferences")]
        if owners and not any(each.get("controller") for each in owners):
            owners[0]["controller"] = True
        who = {"name": document.name, "namespace": document.namespace, "uid": uid}
        is_kept = bool(said.get("uid") or said.get("resourceVersion"))
        spec = self._admission.admitted_spec(document, document.body, "", is_kept=is_kept)
        status = document.body.get("status") or {}
        return {"metadata": {**said, **who, "ownerReferences": owners}, "spec": spec, "status": status}

    def _key_of(self, name: str) -> str:
        """Return the key of a pod without UID; those that only have a `generateName` are several."""
        self._keys[name] += 1
        return f"{name}{_COPY}{self._keys[name] - 1}" if self._keys[name] > 1 else name

    def _workload(self, document: ManifestDocument, requests: AbstractSet[tuple[str, str]]) -> None:
        spec, path = document.spec, "spec"
        here: Problems = []
        if document.kind == "CronJob":  # one run
            path = "spec.jobTemplate.spec"
            spec = mapping(mapping(spec, "jobTemplate", "spec", here), "spec")
        if document.spec.get("suspend") or spec.get("suspend"):
            return
        if document.kind in _REPLICATED:
            count = self._count(document, spec, "replicas", path)
        else:  # a job runs `parallelism` pods at a time, at most `completions`
            count = self._count(document, spec, "parallelism", path)
            if spec.get("completions") is not None:
                count = min(count, self._count(document, spec, "completions", path))
        template = mapping(spec, "template", path, here)
        self._report(document, here)
        # The annotation belongs on the pods; on the workload itself it has the same effect.
        if not any(consumes(document.namespace, annotated, requests) for annotated in (template, document.body)):
            self._create(document, document.name, template, f"{path}.template", count)

    def _job_set(self, document: ManifestDocument, requests: AbstractSet[tuple[str, str]]) -> None:
        here: Problems = []
        for each in replicated_jobs(document.body, here):
            name = f"{document.name}-{each.name}"
            if not each.starts:
                self._left_out["later"][f"{document.namespace}/{name}"] += 1
                continue
            said = mapping(each.template, "metadata", each.path, here)
            labels = {REPLICATED_JOB: each.name, **mapping(said, "labels", f"{each.path}.metadata", here)}
            template = {**each.template, "metadata": {**said, "labels": labels}}
            if not any(consumes(document.namespace, annotated, requests) for annotated in (template, document.body)):
                self._create(document, name, template, each.path, each.pods)
        self._report(document, here)

    def _provisioning_request(
        self, document: ManifestDocument, templates: Mapping[tuple[str, str], ManifestDocument]
    ) -> None:
        here: Problems = []
        pod_sets = list(members(document.spec, "podSets", "spec", here))
        if not pod_sets and not here:
            here.append("spec.podSets: missing; a ProvisioningRequest has 1 to 32 pod sets")
        self._report(document, here)
        for pod_set, path in pod_sets:
            name = mapping(pod_set, "podTemplateRef", path, here).get("name")
            template = templates.get((document.namespace, str(name)))
            if template is None:
                self.problems.append(
                    f"{document.place}: {path}.podTemplateRef.name: there is no PodTemplate {document.namespace}/{name}"
                    " in the files"
                )
                continue
            count = self._count(document, pod_set, "count", path)
            pods = mapping(template.body, "template", "", here)
            self._create(template, template.name, pods, "template", count, request=document.name)

    def _create(
        self,
        document: ManifestDocument,
        name: str,
        template: Mapping[str, Any],
        path: str,
        count: int,
        request: str = "",
    ) -> None:
        """Add the pods that a controller creates of a template."""
        here: Problems = []
        metadata = mapping(template, "metadata", path, here)
        given = dict.fromkeys(_LABELS_OF_CONTROLLERS.get(document.kind, ()), document.name)
        labels = {**given, **mapping(metadata, "labels")}
        annotations = mapping(metadata, "annotations")
        if request:
            annotations = {**annotations, CONSUME_KEYS[0]: request}
        spec = self._admission.admitted_spec(document, template, path)
        claims = [each for each, _ in members(document.spec, "volumeClaimTemplates", "spec", [])]
        claims = claims if document.kind == "StatefulSet" else []
        start = mapping(document.spec, "ordinals", "spec", []).get("start") or 0
        own = claims or spec.get("resourceClaims") or pod_volumes(spec, "", "", [])
        if request:  # whose pods are planned as they are once their gates are removed
            spec = {key: value for key, value in spec.items() if key not in ("schedulingGates", "schedulerName")}
        else:
            self._note_passed_over(document, spec, count)
        for index in range(count or 1) if own else (0,):
            who = f"{name}-{start + index}" if own else name
            uid = f"{document.namespace}/{who}"
            said = {"name": who, "namespace": document.namespace, "uid": uid, "labels": labels}
            body = {"metadata": {**said, "annotations": annotations}, "spec": spec}
            seen = self._read(document, template, body, path)
            if seen is None:
                return
            if claims:
                volumes = with_templates(seen.pod.volumes, claims, name, start + index)
                seen = replace(seen, pod=replace(seen.pod, volumes=volumes))
            wanted = count if not (own and count) else 1
            allowed = wanted if request else let_in(self._quotas[document.namespace], seen.pod.spec, wanted)
            self._left_out["beyond"][f"{document.namespace}/{name}"] += wanted - allowed
            if allowed:
                self._add(document, seen, {"annotations": annotations}, allowed)

    def _note_passed_over(self, document: ManifestDocument, spec: Mapping[str, Any], count: int) -> None:
        """Note pods that wait and are not planned."""
        name = f"{document.namespace}/{document.name}"
        scheduler = str(spec.get("schedulerName") or DEFAULT_SCHEDULER)
        if scheduler not in self.schedulers:
            self._left_out["foreign"][f"{name} of {scheduler}"] += count
        elif spec["priority"] < EXPENDABLE_BELOW:
            self._left_out["expendable"][name] += count
        elif spec.get("schedulingGates"):
            self._left_out["gated"][name] += count

    def _add(self, document: ManifestDocument, seen: ObservedPod, metadata: Mapping[str, Any], count: int = 1) -> None:
        annotations = mapping(metadata, "annotations")
        if seen.stage is PodStage.WAITING and is_placeholder({str(k): str(v) for k, v in annotations.items()}):
            self._placeholder_keys.add(seen.key)
            seen = replace(seen, pod=replace(seen.pod, gang=None))
        self._note_volumes(document, seen)
        self._waiting.append(replace(seen, pending=None))
        copies = (replace(seen.ref, key=f"{seen.key}{_COPY}{index}") for index in range(1, count))
        self._copies[seen.key] = [(ref, "") for ref in copies]

    def _note_volumes(self, document: ManifestDocument, seen: ObservedPod) -> None:
        if seen.pod.volumes and not self._volumes_of:
            self._volumes_of = f"{document.namespace}/{document.name}"

    def _read(
        self, document: ManifestDocument, written: Mapping[str, Any], body: Mapping[str, Any], path: str
    ) -> ObservedPod | None:
        if not mapping(written, "spec", path, []).get("containers"):
            self._report(document, self._problems_of(document, written, path))
            return None
        try:
            seen = self._reader.read(known_to_message(kubernetes_pb2.Pod, body).SerializeToString())
            warning = seen.warning
        except InvalidInput as error:
            seen, warning = None, str(error)
        if warning:
            told = self._problems_of(document, written, path)
            added = () if told else self._problems_of(document, {**written, "spec": body["spec"]}, path)
            self._report(document, told or [f"{each} (with what admission adds)" for each in added] or [warning])
        if seen is None:
            return None
        if seen.pod.namespace_selectors and not self._complete:
            around = Surroundings(PodIdentity(document.namespace, {}), NoNamespaces())
            pod_spec(mapping(written, "spec", path, []), f"{path}.spec".removeprefix("."), [], around)
            self._notes.extend(f"{document.place}: {note}" for note in around.notes)
        return seen

    def _problems_of(self, document: ManifestDocument, pod: Mapping[str, Any], path: str) -> Problems:
        """Return what is wrong with a pod, or with the pods of a template, each with its path."""
        here: Problems = []
        labels = _labels(pod, path, here)
        spec, at = mapping(pod, "spec", path, here), f"{path}.spec".removeprefix(".")
        if not spec.get("containers"):
            here.append(f"{at}.containers: missing; a pod has at least one container")
        pod_spec(
            spec, at, here, Surroundings(PodIdentity(document.namespace, labels)), mapping(pod, "status", "", here)
        )
        pod_volumes(spec, document.name, at, here)
        annotations = strings(mapping(pod, "metadata"), "annotations")
        group = mapping(spec, "schedulingGroup", at, here).get("podGroupName")
        gang_of_pod(document.namespace, labels, annotations, str(group or ""), self.gang_label, here, path)
        return here

    def _count(self, document: ManifestDocument, spec: Mapping[str, Any], name: str, path: str) -> int:
        count = spec.get(name, 1)
        if count is None:
            return 1
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            return count
        self.problems.append(f"{document.place}: {path}.{name}: {shown(count)} is not a whole number of 0 or more")
        return 0

    # The result

    def _strangers(self, state: ClusterState) -> Counter[str]:
        """Return how many pods run on nodes that are not there, by node."""
        there = {"", *(each.node.name for each in state.nodes)}
        found = Counter(each.node for each in self._waiting if each.stage is not None and each.node not in there)
        found.update(node for each in self._bound if each.seen.stage for _, node in each.pods if node not in there)
        return found

    def _pause_pods(self) -> Reservations:
        found: defaultdict[str, list[Reservation]] = defaultdict(list)
        for seen, _, pods in self._bound:
            if seen.pause_shape is not None:
                for node, count in Counter(node for _, node in pods).items():
                    found[node].append(Reservation(PlaceholderOwner(seen.pause_shape), seen.pod.spec, count))
        return {node: tuple(of) for node, of in found.items()}

    def _mirrors(self) -> Mapping[str, Resources]:
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for seen, body, pods in self._bound:
            if MIRROR in mapping(body["metadata"], "annotations") and seen.stage in (PodStage.FIXED, PodStage.ENDING):
                for _, node in pods:
                    found[node].update({**dict(seen.pod.spec.requests), PODS_RESOURCE: 1})
        return found

    def _divided(self, state: ClusterState) -> tuple[ClusterState, tuple[PodSet, ...]]:
        """Return the state without the placeholders, and these."""
        if not self._placeholder_keys:
            return state, ()
        waiting, placeholders = [], []
        for each in state.waiting:
            others = tuple(ref for ref in each.pods if ref.uid.partition(_COPY)[0] not in self._placeholder_keys)
            mine = len(each.pods) - len(others)
            if mine:
                placeholders.append(replace(each.pod_set, count=mine, placeholder=True))
            if others:
                waiting.append(replace(each, pod_set=replace(each.pod_set, count=len(others)), pods=others))
        return replace(state, waiting=tuple(waiting)), tuple(placeholders)

    def _warnings(self, state: ClusterState, strangers: Counter[str]) -> Iterator[str]:
        yield from self._of_pods()
        for gang in state.incomplete_gangs:
            yield f"{incomplete(gang.name, gang.there, gang.needed)}; nothing of it is planned"
        yield from self._admission.warnings()
        unready = [each.node.name for each in state.nodes if not each.ready]
        if unready:
            yield f"nothing is planned onto nodes that are not Ready: {len(unready)}, for example {unready[0]}"
        if self._again:
            count = pluralize(self._again.total(), "object")
            yield f"ignored {count} of the name of another one of its kind, for example {next(iter(self._again))}"
        if strangers:
            yield (
                f"ignored {pluralize(strangers.total(), 'running pod')}, since the files do not have the nodes, for"
                f" example {next(iter(strangers))}"
            )
        if self.out_of_place:
            yield (
                "objects other than nodes and pods bound to them in files of --nodes were ignored:"
                f" {counted(self.out_of_place)}; pass the pods to plan with --pods"
            )
        if self._ignored:
            yield f"objects that planning does not read were ignored: {counted(self._ignored)}"

    def _of_pods(self) -> Iterator[str]:
        if self._volumes_of and self.listed is None and not self._says_where:
            yield (
                f"the volumes of pods, for example of {self._volumes_of}, were not looked at: neither claims nor"
                " storage classes are in the files; pass those of the cluster as well (kubectl get"
                " pvc,pv,sc,csinodes,csidrivers,csistoragecapacities -A -o yaml)"
            )
        if self._notes:
            more = f" (and {len(self._notes) - 1} more such)" if len(self._notes) > 1 else ""
            yield f"{self._notes[0]}{more}; pass the Namespace objects as well"
        for reason, said in _LEFT_OUT.items():
            if found := +self._left_out[reason]:
                yield said.format(pods=pluralize(found.total(), "pod"), count=found.total(), example=next(iter(found)))


def _free(objects: Sequence[Any], stays: AbstractSet[str]) -> Sequence[Any]:
    """Return the objects with claims on devices as they are once all pods have gone but those that stay, by UID."""
    return [_free_claim(each, stays) if isinstance(each, Named) else each for each in objects]


def _free_claim(named: Named[Any], stays: AbstractSet[str]) -> Named[Any]:
    claim = named.value
    if not isinstance(claim, ResourceClaim) or not stays.isdisjoint(claim.reserved_for):
        return named
    return Named(named.key, ResourceClaim(claim.namespace, claim.name, claim.spec, claim.uid, claim.owner_uid))


def followed_kinds() -> Iterator[tuple[str, str]]:
    """Yield the path of each collection that the cluster model reads, the newest version of a group first, and the kind
    of its objects."""
    _, followed = DocumentReader()._model(None)  # noqa: SLF001 - of this module
    yield from ((path, KINDS[path.rpartition("/")[2]]) for path in followed)


def _daemon_sets(documents: Iterable[ManifestDocument], bound: StandingPods) -> Iterator[ManifestDocument]:
    """Yield the DaemonSets that are known by their pods alone."""
    known = {each.identity for each in documents if each.kind == "DaemonSet"}
    for each in bound.alike:
        pod = each.like
        owners = [of for of, _ in members(pod.metadata, "ownerReferences")]
        name = next((str(of.get("name")) for of in owners if of.get("kind") == "DaemonSet"), "")
        identity = ("DaemonSet", pod.namespace, name)
        if name and identity not in known:
            known.add(identity)
            metadata = {"namespace": pod.namespace, "name": name}
            labels = {"labels": pod.metadata.get("labels") or {}}
            spec = {"template": {"metadata": labels, "spec": _on_any_node(pod.spec)}}
            body = {"kind": "DaemonSet", "metadata": metadata, "spec": spec}
            yield ManifestDocument(f"DaemonSet {'/'.join(identity[1:])}", body)


def _on_any_node(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a DaemonSet's pod without the name of its node, which the DaemonSet controller requires of it."""
    required_at = "requiredDuringSchedulingIgnoredDuringExecution"
    nodes = mapping(mapping(spec, "affinity"), "nodeAffinity")
    terms = [
        {"matchExpressions": each["matchExpressions"]}
        for each, _ in members(mapping(nodes, required_at), "nodeSelectorTerms")
        if each.get("matchExpressions")
    ]
    rest = {key: value for key, value in spec.items() if key not in ("affinity", "nodeName")}
    return {**rest, "affinity": {"nodeAffinity": {required_at: {"nodeSelectorTerms": terms}}}} if terms else rest


def _is_of(document: ManifestDocument, version: str, plural: str) -> bool:
    """Return whether an object is of this version of its group. One that does not say it, or says a version that is not
    followed, is of the first."""
    said = str(document.body.get("apiVersion") or "")
    if plural == "podgroups":
        return said == version
    if plural not in _OF_DEVICES:
        return True
    return said == version if said in _DEVICE_VERSIONS else version == _DEVICE_VERSIONS[0]


def _labels(labelled: Mapping[str, Any], path: str, problems: Problems) -> dict[str, str]:
    at = f"{path}.metadata".removeprefix(".")
    return strings(mapping(labelled, "metadata", path, problems), "labels", at, problems)


def counted(kinds: Counter[str]) -> str:
    """Return how many objects there are of each kind, for people."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
