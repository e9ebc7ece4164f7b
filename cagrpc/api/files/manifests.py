"""Kubernetes manifests and pod tables to the pods, nodes and daemon sets of an offline problem (`cagrpc plan`).

Decides which kinds are read, what each contributes, and what is ignored with a warning. The fields of pods and nodes
are read in `pods` and `nodes`, files in `documents`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cagrpc.api.core.constraints import Surroundings
from cagrpc.api.core.consumption import consumes
from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL, GangKind, gang_name
from cagrpc.api.core.nodes import facts_of_document, free
from cagrpc.api.core.observed_labels import PodProjection, projection_of
from cagrpc.api.core.pods import daemon, is_placeholder, pod_spec
from cagrpc.api.core.resources import Problems, mapping, members, strings
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULER, DEFAULT_SCHEDULERS
from cagrpc.api.core.selectors import NOBODY, Namespaces, PodIdentity
from cagrpc.api.devices.matching import NodeMatching
from cagrpc.api.devices.selectors import Matcher
from cagrpc.api.encoding.times import epoch_seconds
from cagrpc.api.files.documents import ManifestDocument, documents, read_text
from cagrpc.api.files.manifest_devices import KINDS, DevicesOfFiles, with_devices
from cagrpc.api.files.manifest_gangs import GangsOfFiles
from cagrpc.api.files.manifest_runtime_classes import RuntimeClassesOfFiles
from cagrpc.api.files.manifest_storage import STORAGE_KINDS, StorageOfFiles
from cagrpc.api.files.tables import pods_of_table
from cagrpc.errors import InvalidInput
from solver.model import Node, PodSet, PodSpec
from solver.model.quantities import several

_REPLICATED = ("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController")
_JOBS = ("Job", "CronJob")
_READ_BY_OTHERS = ("PriorityClass", "RuntimeClass", "PodTemplate", "Node", "Namespace")
_LABELS_OF_CONTROLLERS = {
    "Deployment": ("pod-template-hash",),
    "StatefulSet": ("controller-revision-hash",),
    "Job": ("batch.kubernetes.io/job-name", "job-name"),
}
"""The labels that a controller adds to all pods of a template, by kind. Hashes are unknown; the workload's name stands
for them, which distinguishes its pods from those of other workloads and of earlier revisions."""
_BUILT_IN_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_SUCCEEDED, _FAILED = "Succeeded", "Failed"


@dataclass(frozen=True, slots=True)
class Manifests:
    """The content of the files. `warnings` are messages about what was read but not (fully) taken into account."""

    pod_sets: tuple[PodSet, ...] = ()
    nodes: tuple[Node, ...] = ()
    daemon_sets: tuple[PodSpec, ...] = ()
    warnings: tuple[str, ...] = ()
    devices: NodeMatching = field(default_factory=lambda: NodeMatching(Matcher()), compare=False)
    """What the devices of nodes, and of new ones, are to the pods' claims."""
    storage: StorageOfFiles = field(default_factory=StorageOfFiles, compare=False)
    """How many volumes nodes attach, and new ones."""


def read(
    paths: Sequence[Path],
    paths_of_nodes: Sequence[Path] = (),
    *,
    now_seconds: float = 0.0,
    gang_label: str = DEFAULT_GANG_LABEL,
    schedulers: AbstractSet[str] = DEFAULT_SCHEDULERS,
) -> Manifests:
    """Read all files together: YAML or JSON manifests, or CSV by the suffix `.csv`; of `paths_of_nodes` only nodes and
    the pods bound to one. A file named twice is read once. With `now_seconds` (since the epoch) pods have waited since
    their creation. `gang_label` is the key of the label that names a pod's gang. Pods of other `schedulers` count where
    they run, and are not planned.

    Raises InvalidInput with every problem of every file, one a line, each with file, index, object and path.
    """
    reader = ManifestReader(now_seconds, gang_label, schedulers)
    for path in dict.fromkeys((*paths, *paths_of_nodes)):
        text = read_text(path, reader.problems)
        if text is None:
            continue
        before = len(reader.problems)
        found: list[ManifestDocument] = []
        if path.suffix.lower() == ".csv" and path in paths:
            reader.pod_sets += [(pod_set, NOBODY) for pod_set in pods_of_table(path, text, reader.problems)]
        else:
            found = list(documents(path, text, reader.problems))
            reader.documents += found if path in paths else reader.of_nodes(found)
        if path in paths_of_nodes and len(reader.problems) == before and not any(d.kind == "Node" for d in found):
            reader.problems.append(f"{path}: has no Node; --nodes takes Kubernetes nodes, and pods bound to them")
    result = reader.resolve()
    if reader.problems:
        raise InvalidInput("\n".join(dict.fromkeys(reader.problems)))  # a template may be used twice
    return result


@dataclass
class ManifestReader:
    """Collects all documents first, because they refer to each other in any order and across files; `resolve` reads
    them."""

    now_seconds: float
    gang_label: str
    schedulers: AbstractSet[str]
    problems: Problems = field(default_factory=list)
    documents: list[ManifestDocument] = field(default_factory=list)
    namespaces: Namespaces = field(default_factory=Namespaces)
    pod_sets: list[tuple[PodSet, PodIdentity]] = field(default_factory=list)
    daemon_sets: list[PodSpec] = field(default_factory=list)
    running_on: defaultdict[str, list[tuple[PodSpec, PodIdentity]]] = field(default_factory=lambda: defaultdict(list))
    notes: list[str] = field(default_factory=list)
    out_of_place: Counter[str] = field(default_factory=Counter)
    gated: dict[str, int] = field(default_factory=dict)
    foreign: dict[tuple[str, str], int] = field(default_factory=dict)
    """Pods of other schedulers, by example and scheduler."""
    ignored_kinds: Counter[str] = field(default_factory=Counter)
    priorities: dict[str, int] = field(default_factory=lambda: dict(_BUILT_IN_PRIORITIES))
    default_priority: int = 0
    unknown_priorities: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runtime_classes = RuntimeClassesOfFiles(self.problems)
        self.devices = DevicesOfFiles({}, self.problems)
        self.storage = StorageOfFiles()
        self.gangs = GangsOfFiles(self.gang_label, self.problems)

    def of_nodes(self, found: Iterable[ManifestDocument]) -> Iterable[ManifestDocument]:
        """Yield the documents that count in a file of nodes; the rest is counted for a warning."""
        for document in found:
            bound = document.kind == "Pod" and document.spec.get("nodeName")
            if bound or document.kind in ("Node", "Namespace", *KINDS, *STORAGE_KINDS):
                yield document
            else:
                self.out_of_place[document.kind] += 1

    def resolve(self) -> Manifests:
        by_kind = defaultdict(list)
        for document in self.documents:
            by_kind[document.kind].append(document)
        for document in by_kind["PriorityClass"]:
            self._priority_class(document)
        for document in by_kind["RuntimeClass"]:
            self.runtime_classes.add(document)
        unread_groups = [document for document in by_kind.pop("PodGroup", ()) if not self.gangs.add_object(document)]
        self.devices = DevicesOfFiles({kind: by_kind.pop(kind, ()) for kind in KINDS}, self.problems)
        stored = {kind: by_kind.pop(kind, ()) for kind in STORAGE_KINDS}
        self.storage = StorageOfFiles(stored, by_kind["Pod"], self.problems)
        labels_of = {document.name: self._labels(document, document.body, "") for document in by_kind["Namespace"]}
        self.namespaces = Namespaces(labels_of, frozenset(document.namespace for document in self.documents))
        templates = {d.identity[1:]: d for d in by_kind["PodTemplate"]}
        requests = {d.identity[1:] for d in by_kind["ProvisioningRequest"]}
        for pod in by_kind.pop("Pod", ()):
            self._pod(pod, requests)
        for request in by_kind.pop("ProvisioningRequest", ()):
            self._provisioning_request(request, templates)
        for daemon_set in by_kind.pop("DaemonSet", ()):
            self._daemon_set(daemon_set)
        owners = self._owners_of_others()
        for kind in (*_REPLICATED, *_JOBS):
            for workload in by_kind.pop(kind, ()):
                if workload.identity not in owners:
                    self._workload(workload, requests)
        self.pod_sets = list(self.gangs.divided(self.pod_sets))
        self.ignored_kinds.update(document.kind for document in unread_groups)
        self.ignored_kinds.update({kind: len(by_kind[kind]) for kind in by_kind if kind not in _READ_BY_OTHERS})
        running = (spec for pods in self.running_on.values() for spec, _ in pods)
        seen = projection_of([(each.spec, who) for each, who in self.pod_sets], running)
        matching = self.devices.matching()
        nodes = tuple(
            with_devices(self.storage.on_node(self._node(document, seen)), matching) for document in by_kind["Node"]
        )
        pod_sets = tuple(replace(each, spec=seen.planned(each.spec, who)) for each, who in self.pod_sets)
        return Manifests(pod_sets, nodes, tuple(self.daemon_sets), tuple(self._warnings(nodes)), matching, self.storage)

    def _owners_of_others(self) -> set[tuple[str, str, str]]:
        """Return workloads whose pods (or replica sets) are in the input as well: those are counted instead of their
        owner."""
        return {
            (str(owner.get("kind")), document.namespace, str(owner.get("name")))
            for document in self.documents
            for owner, _ in members(document.metadata, "ownerReferences", "", [])
        }

    def _pod(self, document: ManifestDocument, requests: set[tuple[str, str]]) -> None:
        phase = mapping(document.body, "status", "", []).get("phase")
        node_name = document.spec.get("nodeName")
        if phase == _SUCCEEDED or (node_name and phase != _FAILED):
            self.gangs.add_pods(document, document.body, "", bound=1)
        if phase in (_SUCCEEDED, _FAILED):
            return
        if node_name:
            self.running_on[str(node_name)].append(self._spec(document, document.body, ""))
            return
        owners = members(document.metadata, "ownerReferences", "", [])
        if any(owner.get("kind") == "DaemonSet" for owner, _ in owners):
            return  # it waits for one existing node
        if consumes(document.namespace, document.body, requests):
            return
        self._add(document, document.body, "", 1, since=epoch_seconds(document.metadata.get("creationTimestamp")))

    def _workload(self, document: ManifestDocument, requests: set[tuple[str, str]]) -> None:
        spec, path = document.spec, "spec"
        if document.kind == "CronJob":  # one run
            here: Problems = []
            path = "spec.jobTemplate.spec"
            spec = mapping(mapping(spec, "jobTemplate", "spec", here), "spec", "spec.jobTemplate", [])
            self._report(document, here)
        if document.spec.get("suspend") or spec.get("suspend"):
            return
        if document.kind in _REPLICATED:
            count = self._count(document, spec, "replicas", path)
        else:  # a job runs `parallelism` pods at a time, at most `completions`
            count = self._count(document, spec, "parallelism", path)
            if spec.get("completions") is not None:
                count = min(count, self._count(document, spec, "completions", path))
        template = self._template(document, spec, path)
        # The annotation belongs on the pods; on the workload itself it has the same effect.
        if not any(consumes(document.namespace, annotated, requests) for annotated in (template, document.body)):
            self._add(document, template, f"{path}.template", count)

    def _daemon_set(self, document: ManifestDocument) -> None:
        template = self._template(document, document.spec, "spec")
        spec, _ = self._spec(document, template, "spec.template")
        bound = self.storage.of_daemon(document, template, "spec.template", spec)
        bound = self.devices.of_daemon(bound, self.devices.demand(document, template, "spec.template"))
        self.daemon_sets.append(daemon(replace(bound, unschedulable="")))

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
            gang = gang_name(GangKind.PROVISIONING_REQUEST, document.namespace, document.name)
            pods = self._template(template, template.body, "")
            self._add(template, pods, "template", count, request=gang)

    def _add(
        self,
        document: ManifestDocument,
        pod: Mapping[str, Any],
        path: str,
        count: int,
        *,
        request: str | None = None,
        since: int = 0,
    ) -> None:
        spec, identity = self._spec(document, pod, path)
        scheduler = str(mapping(pod, "spec", "", []).get("schedulerName") or DEFAULT_SCHEDULER)
        if request is None and scheduler not in self.schedulers:
            example = f"{document.namespace}/{document.name}", scheduler
            self.foreign[example] = self.foreign.get(example, 0) + count
            return
        # The scheduler ignores gated pods. A request is for its pods once their gates are removed.
        gated = request is None and bool(mapping(pod, "spec", "", []).get("schedulingGates"))
        gang = request or self.gangs.add_pods(document, pod, path, held_back=count if gated else 0)
        if not count:
            return
        if gated:
            name = f"{document.namespace}/{document.name}"
            self.gated[name] = self.gated.get(name, 0) + count
            return
        annotations = strings(mapping(pod, "metadata", "", []), "annotations", "", [])
        pod_set = PodSet(
            name=f"{document.namespace}/{document.name}",
            spec=spec,
            count=count,
            priority=self._priority(document, mapping(pod, "spec", "", [])),
            waiting_seconds=max(0, int(self.now_seconds) - since) if since and self.now_seconds else 0,
            gang=gang,
            placeholder=is_placeholder(annotations),
        )
        demanded = self.devices.demand(document, pod, path)
        for bound, known, number in self.storage.divided(document, pod, path, spec, identity, count):
            for own, who, pods in self.devices.divided(bound, known, demanded, number):
                self.pod_sets.append((replace(pod_set, spec=own, count=pods), who))

    def _spec(self, document: ManifestDocument, pod: Mapping[str, Any], path: str) -> tuple[PodSpec, PodIdentity]:
        here: Problems = []
        given = dict.fromkeys(_LABELS_OF_CONTROLLERS.get(document.kind, ()), document.name)
        identity = PodIdentity(document.namespace, {**given, **self._labels(document, pod, path)})
        around = Surroundings(identity, self.namespaces)
        spec = self.runtime_classes.admitted(document, mapping(pod, "spec", path, here))
        path = f"{path}.spec".removeprefix(".")
        if not spec.get("containers"):
            here.append(f"{path}.containers: missing; a pod has at least one container")
        converted = pod_spec(spec, path, here, around, mapping(pod, "status", "", here))
        self._report(document, here)
        self.notes.extend(f"{document.place}: {note}" for note in around.notes)
        return converted, identity

    def _labels(self, document: ManifestDocument, labelled: Mapping[str, Any], path: str) -> dict[str, str]:
        here: Problems = []
        at = f"{path}.metadata".removeprefix(".")
        labels = strings(mapping(labelled, "metadata", path, here), "labels", at, here)
        self._report(document, here)
        return labels

    def _template(self, document: ManifestDocument, spec: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        here: Problems = []
        template = mapping(spec, "template", path, here)
        self._report(document, here)
        return template

    def _count(self, document: ManifestDocument, spec: Mapping[str, Any], name: str, path: str) -> int:
        count = spec.get(name, 1)
        if count is None:
            return 1
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            return count
        self.problems.append(f"{document.place}: {path}.{name}: {count!r:.40} is not a whole number of 0 or more")
        return 0

    def _priority_class(self, document: ManifestDocument) -> None:
        value = document.body.get("value")
        if not isinstance(value, int):
            self.problems.append(f"{document.place}: value: {value!r:.40} is not a whole number")
            return
        self.priorities[document.name] = value
        if document.body.get("globalDefault") is True:
            self.default_priority = value

    def _priority(self, document: ManifestDocument, spec: Mapping[str, Any]) -> int:
        priority, name = spec.get("priority"), spec.get("priorityClassName")
        if isinstance(priority, int):
            return priority
        if not name:
            return self.default_priority
        if str(name) not in self.priorities:
            self.unknown_priorities.setdefault(str(name), f"{document.namespace}/{document.name}")
        return self.priorities.get(str(name), 0)

    def _node(self, document: ManifestDocument, seen: PodProjection) -> Node:
        here: Problems = []
        facts = facts_of_document(document.body, "", here)
        if not facts.allocatable and not here:
            here.append("status.allocatable: missing; planning needs what pods may use of the node")
        self._report(document, here)
        pods = self.running_on.get(facts.name, ())
        left = free(facts.allocatable, (dict(spec.requests) for spec, _ in pods))
        return Node(facts.name, left, facts.labels, facts.taints, seen.running(pods), facts.allocatable)

    def _report(self, document: ManifestDocument, problems: Iterable[str]) -> None:
        self.problems.extend(f"{document.place}: {problem}" for problem in problems)

    def _warnings(self, nodes: Sequence[Node]) -> Iterable[str]:
        yield from self.storage.warnings()
        if self.notes:
            more = f" (and {len(self.notes) - 1} more such)" if len(self.notes) > 1 else ""
            yield f"{self.notes[0]}{more}; pass the Namespace objects as well"
        if self.gated:
            yield (
                f"left out {several(sum(self.gated.values()), 'pod')} with schedulingGates, not schedulable yet, for"
                f" example {next(iter(self.gated))}"
            )
        if self.foreign:
            (example, scheduler), *_ = self.foreign
            yield (
                f"left out {several(sum(self.foreign.values()), 'pod')} of schedulers that are not planned for, for"
                f" example {example} of {scheduler}; --scheduler names those that are"
            )
        yield from self.gangs.incomplete
        yield from self.runtime_classes.warnings()
        for name, example in self.unknown_priorities.items():
            yield f"PriorityClass {name} is not in the files; its pods, for example {example}, were given priority 0"
        strangers = {name: len(pods) for name, pods in self.running_on.items() if name not in {n.name for n in nodes}}
        if strangers:
            yield (
                f"ignored {several(sum(strangers.values()), 'running pod')}, since the files do not have the nodes, for"
                f" example {next(iter(strangers))}"
            )
        if self.out_of_place:
            yield (
                "objects other than nodes and pods bound to them in files of --nodes were ignored:"
                f" {_counted(self.out_of_place)}; pass the pods to plan with --pods"
            )
        if self.ignored_kinds:
            yield f"objects that planning does not read were ignored: {_counted(self.ignored_kinds)}"


def _counted(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
