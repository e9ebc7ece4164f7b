"""Pods of a cluster reduced to what planning reads, with equal ones counted: a hundred thousand pods of a few thousand
workloads take as much memory as the workloads. Where they are read from is said in `live` and in `cagrpc.report`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cagrpc.api.core.constraints import Surroundings
from cagrpc.api.core.consumption import CONSUME_KEYS
from cagrpc.api.core.gangs import VOLCANO_GROUP
from cagrpc.api.core.movability import ORDINARY, EvictionFacts
from cagrpc.api.core.pods import pod_spec
from cagrpc.api.core.resources import effective_requests
from cagrpc.api.core.selectors import PodIdentity
from cagrpc.api.core.volumes import IN_TREE
from cagrpc.offline.eviction import CREATED, facts_of, said_of_eviction
from solver.model import CPU, MEMORY, PODS, PodSpec

MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a static pod's mirror."""

_OF_CONTAINERS = ("name", "resources", "ports", "restartPolicy")
_OF_PODS = (
    "affinity", "hostNetwork", "nodeSelector", "overhead", "priority", "priorityClassName", "resourceClaims",
    "resources", "runtimeClassName", "schedulerName", "tolerations", "topologySpreadConstraints",
)  # fmt: skip
_CLAIMING = ("persistentVolumeClaim", "ephemeral", *IN_TREE)
_OF_ONE_POD = (
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
)
"""Labels by which controllers number the pods of one workload."""
_ENDED = ("Succeeded", "Failed")
_OF_GANGS = (*CONSUME_KEYS, VOLCANO_GROUP)
"""Annotations that name a pod's gang."""


@dataclass(eq=False, slots=True)
class PodTemplate:
    """Pods that planning cannot tell apart, as one v1.Pod in JSON shape without name and node. Compared by identity."""

    namespace: str
    owner: tuple[str, str]
    """Kind and name of the controller; empty texts for a pod without one."""
    body: Mapping[str, Any]
    mirror: bool = False
    requests: Mapping[str, int] = field(default_factory=dict)
    """With `pods`: 1."""
    claiming: bool = False
    """Whether its pods have volumes or claims, so that each is one of its own."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Those that name a gang."""
    scheduling_group: str = ""
    """`spec.schedulingGroup.podGroupName`."""
    eviction: EvictionFacts = ORDINARY
    created_at_seconds: int = 0
    """Since the epoch, where it matters for moving pods; else 0."""

    @property
    def daemon(self) -> bool:
        return self.owner[0] == "DaemonSet"

    @property
    def overhead(self) -> bool:
        """Whether its pods come with the node."""
        return self.daemon or self.mirror

    @property
    def scheduler(self) -> str:
        return str(self.body["spec"].get("schedulerName") or "default-scheduler")

    def spec(self) -> PodSpec:
        """Return the planner's spec, without namespace and labels."""
        labels = self.body["metadata"].get("labels") or {}
        return pod_spec(self.body["spec"], "spec", [], Surroundings(PodIdentity(self.namespace, labels)))


class RunningPod(NamedTuple):
    """A pod on a node."""

    template: PodTemplate
    node: str
    name: str
    uid: str
    status: Mapping[str, Any]
    """Which claims were made for it; empty for most."""

    @property
    def workload(self) -> str:
        """Return the namespace and name that people know it by: its controller's, or its own."""
        return f"{self.template.namespace}/{self.template.owner[1] or self.name}"


class Templates:
    """Reduces pods, and keeps one template of those that are alike."""

    def __init__(self) -> None:
        self._known: dict[str, PodTemplate] = {}

    def bound(self, pod: Mapping[str, Any]) -> RunningPod | None:
        """Return a pod of a node; None for one that has ended, or waits."""
        spec, metadata = _mapping(pod, "spec"), _mapping(pod, "metadata")
        node, status = str(spec.get("nodeName") or ""), _mapping(pod, "status")
        if not node or status.get("phase") in _ENDED:
            return None
        template = self._template(spec, metadata, said_of_eviction(pod))
        made = {"resourceClaimStatuses": status["resourceClaimStatuses"]} if status.get("resourceClaimStatuses") else {}
        return RunningPod(template, node, str(metadata.get("name") or ""), str(metadata.get("uid") or ""), made)

    def _template(self, spec: Mapping[str, Any], metadata: Mapping[str, Any], said: Mapping[str, Any]) -> PodTemplate:
        reduced = reduced_spec(spec)
        namespace = str(metadata.get("namespace") or "default")
        labels = {key: value for key, value in _mapping(metadata, "labels").items() if key not in _OF_ONE_POD}
        owner = _controller(metadata)
        annotations = _mapping(metadata, "annotations")
        mirror = MIRROR in annotations
        gangs = {key: str(annotations[key]) for key in _OF_GANGS if annotations.get(key)}
        group = str(_mapping(spec, "schedulingGroup").get("podGroupName") or "")
        if mirror or owner[0] == "DaemonSet":
            said = {"owner": owner[0]}  # nobody moves them
        key = json.dumps((namespace, owner, mirror, labels, gangs, group, said, reduced), sort_keys=True)
        found = self._known.get(key)
        if found is None:
            if owner[0] == "DaemonSet":
                reduced = _on_any_node(reduced)
            asked = {**dict(effective_requests(reduced, "spec", [])), PODS: 1}
            body = {"metadata": {"namespace": namespace, "labels": labels}, "spec": reduced}
            claiming = bool(reduced.get("volumes") or reduced.get("resourceClaims"))
            facts, created = facts_of(said), said.get(CREATED, 0)
            found = PodTemplate(namespace, owner, body, mirror, asked, claiming, gangs, group, facts, created)
            self._known[key] = found
        return found


def reduced_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what planning reads of a v1.PodSpec in JSON shape, but for its node."""
    found = {key: spec[key] for key in _OF_PODS if spec.get(key) is not None}
    host = bool(spec.get("hostNetwork"))
    for kind in ("containers", "initContainers"):
        if spec.get(kind):
            found[kind] = [_container(each, host) for each in spec[kind] if isinstance(each, Mapping)]
    volumes = [
        {key: each[key] for key in ("name", *_CLAIMING) if key in each}
        for each in spec.get("volumes") or ()
        if isinstance(each, Mapping) and any(key in each for key in _CLAIMING)
    ]
    return {**found, **({"volumes": volumes} if volumes else {})}


def _container(container: Mapping[str, Any], host: bool) -> dict[str, Any]:
    found = {key: container[key] for key in _OF_CONTAINERS if container.get(key)}
    ports = [each for each in found.pop("ports", ()) if isinstance(each, Mapping) and (host or each.get("hostPort"))]
    return {**found, **({"ports": ports} if ports else {})}


def _controller(metadata: Mapping[str, Any]) -> tuple[str, str]:
    owners = [each for each in metadata.get("ownerReferences") or () if isinstance(each, Mapping)]
    chosen = next((each for each in owners if each.get("controller")), owners[0] if owners else {})
    return str(chosen.get("kind") or ""), str(chosen.get("name") or "")


def _on_any_node(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a DaemonSet's pod without the name of its node, which the DaemonSet controller requires of it."""
    affinity = _mapping(spec, "affinity")
    nodes = _mapping(affinity, "nodeAffinity")
    required = _mapping(nodes, "requiredDuringSchedulingIgnoredDuringExecution")
    terms = [
        {"matchExpressions": each["matchExpressions"]}
        for each in required.get("nodeSelectorTerms") or ()
        if isinstance(each, Mapping) and each.get("matchExpressions")
    ]
    kept = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}} if terms else {}
    rest = {key: value for key, value in spec.items() if key != "affinity"}
    return {**rest, "affinity": {"nodeAffinity": kept}} if kept else rest


def _mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, Mapping) else {}


def cpu_and_memory(requests: Mapping[str, int]) -> tuple[int, int]:
    return requests.get(CPU, 0), requests.get(MEMORY, 0)
