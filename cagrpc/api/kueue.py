"""Kueue's objects (kueue.x-k8s.io, v1beta1 and v1beta2) in Kubernetes' JSON shape: the fields that an admission check
controller reads, as plain values, and the patches that it writes. The controller is in `controllers.admission_checks`.

Source: Kueue's apis/kueue/v1beta2 and v1beta1, which agree in the fields that are read here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cagrpc.api.encoding.json_documents import (
    LARGEST,
    LARGEST_INT32,
    Problems,
    mapping,
    members,
    one_of,
    strings,
    texts,
    timestamp,
    whole,
)
from cagrpc.api.provisioning.objects import Condition, condition_body, conditions, cut
from cagrpc.errors import InvalidInput, in_one_line

T = TypeVar("T")

GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""Supported versions, in order of preference."""
CONFIG_KIND = "ProvisioningRequestConfig"
PARAMETER_ANNOTATIONS = f"provreq.{GROUP}/"
"""Annotations of a Workload with this prefix are parameters of its requests."""

PENDING, READY, RETRY, REJECTED = "Pending", "Ready", "Retry", "Rejected"
"""States of a check on a Workload."""
ACTIVE = "Active"
"""The condition of an AdmissionCheck that states whether its controller runs and is configured."""

IDENTICAL_TEMPLATES = "IdenticalPodTemplates"
SIMILAR_REQUIREMENTS = "IdenticalWorkloadSchedulingRequirements"

_LONGEST_MESSAGE = 32_768


def collection(version: str, resource: str) -> str:
    """Return the path of a resource in all namespaces."""
    return f"/apis/{GROUP}/{version}/{resource}"


@dataclass(frozen=True, slots=True)
class WorkloadPods:
    """One of a Workload's pod sets."""

    name: str
    written: str
    """Its v1.PodTemplateSpec as JSON text, a tenth of the memory of what it says: all Workloads are kept."""
    count: int

    @property
    def template(self) -> Mapping[str, Any]:
        """Return the v1.PodTemplateSpec in JSON shape, read anew."""
        found: Mapping[str, Any] = json.loads(self.written)
        return found


@dataclass(frozen=True, slots=True)
class PodSetAssignment:
    """The admitted part of a pod set."""

    flavors: tuple[str, ...]
    """Names of ResourceFlavors, sorted, without duplicates."""
    count: int | None = None
    """None for all of its pods; fewer with partial admission."""


@dataclass(frozen=True, slots=True)
class KueueWorkload:
    """A Workload, as last observed."""

    version: str
    """The version of the API by which it was read."""
    uid: str
    namespace: str
    name: str
    resource_version: str
    pod_sets: tuple[WorkloadPods, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters from its annotations."""
    reserved_at: str = ""
    """The last transition time of `QuotaReserved`, as written; empty where no quota is reserved."""
    assignments: Mapping[str, PodSetAssignment] = field(default_factory=dict)
    """What each pod set was assigned."""
    checks: tuple[Mapping[str, Any], ...] = ()
    """status.admissionChecks, in JSON shape."""
    active: bool = True
    admitted: bool = False
    evicted: bool = False
    finished: bool = False
    deleting: bool = False
    writers: frozenset[str] = frozenset()
    """Field managers that have written to it."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Check:
    """An AdmissionCheck."""

    name: str
    uid: str
    resource_version: str
    controller: str
    parameters: tuple[str, str, str] | None = None
    """API group, kind and name of its configuration; None where it has none."""
    active: Condition | None = None
    generation: int = 1
    raw_conditions: tuple[Mapping[str, Any], ...] = ()
    status_writers: frozenset[str] = frozenset()
    """Field managers that have written to its status."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a request is retried, with exponential back-off from base to longest."""

    limit: int = 3
    base_seconds: int = 60
    longest_seconds: int = 1800

    def pause_seconds(self, attempt: int) -> int:
        """Return the back-off after this failed attempt, counted from 1."""
        return min(self.longest_seconds, self.base_seconds << max(0, min(attempt - 1, 31)))


@dataclass(frozen=True, slots=True)
class RequestConfig:
    """A ProvisioningRequestConfig."""

    class_name: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    managed_resources: frozenset[str] = frozenset()
    """Empty for all."""
    retries: Retries = Retries()
    selectors: tuple[tuple[str, str], ...] = ()
    """podSetUpdates.nodeSelector: the label's key, and the key of the request's detail with the value."""
    merge_policy: str = ""
    """`IDENTICAL_TEMPLATES`, `SIMILAR_REQUIREMENTS` or empty."""


@dataclass(frozen=True, slots=True)
class Flavor:
    """A ResourceFlavor: the node labels and tolerations of the pods that are admitted to it."""

    name: str
    node_labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    topology: str = ""
    """The Topology by which its pods are placed; empty without topology-aware scheduling."""


def workload(document: Mapping[str, Any]) -> KueueWorkload:
    """Read a Workload. Raises InvalidInput with every invalid field and its path."""
    problems: Problems = []
    metadata = mapping(document, "metadata", "", problems)
    spec = mapping(document, "spec", "", problems)
    status = mapping(document, "status", "", problems)
    true = {each.type for each in conditions(status) if each.status}
    admission = mapping(status, "admission", "status", problems)
    annotations = strings(metadata, "annotations", "metadata", problems)
    found = KueueWorkload(
        version=str(document.get("apiVersion") or "").rpartition("/")[2] or VERSIONS[0],
        **_identity(metadata),
        namespace=str(metadata.get("namespace") or ""),
        pod_sets=tuple(
            WorkloadPods(
                str(each.get("name") or "main"),
                json.dumps(mapping(each, "template", path, problems), separators=(",", ":")),
                whole(each, "count", path, problems, 0, LARGEST_INT32, default=1),
            )
            for each, path in members(spec, "podSets", "spec", problems)
        ),
        parameters={
            key.removeprefix(PARAMETER_ANNOTATIONS): value
            for key, value in sorted(annotations.items())
            if key.startswith(PARAMETER_ANNOTATIONS)
        },
        reserved_at=_since(status, "QuotaReserved"),
        assignments={
            str(each.get("name") or "main"): PodSetAssignment(
                tuple(sorted(set(strings(each, "flavors", path, problems).values()))),
                whole(each, "count", path, problems, 0, LARGEST_INT32) if each.get("count") is not None else None,
            )
            for each, path in members(admission, "podSetAssignments", "status.admission", problems)
        },
        checks=tuple(each for each, _ in members(status, "admissionChecks", "status", problems)),
        active=spec.get("active") is not False,
        admitted="Admitted" in true,
        evicted="Evicted" in true,
        finished="Finished" in true,
        deleting=bool(metadata.get("deletionTimestamp")),
        writers=_writers(metadata),
    )
    return _validated(found, problems)


def check(document: Mapping[str, Any]) -> Check:
    """Read an AdmissionCheck. Raises InvalidInput with every invalid field and its path."""
    problems: Problems = []
    metadata = mapping(document, "metadata", "", problems)
    spec = mapping(document, "spec", "", problems)
    status = mapping(document, "status", "", problems)
    named = mapping(spec, "parameters", "spec", problems)
    # The KEP has group and version; the API server accepts the group alone.
    parts = (str(named.get("apiGroup") or "").partition("/")[0], *(str(named.get(k) or "") for k in ("kind", "name")))
    found = Check(
        **_identity(metadata),
        controller=str(spec.get("controllerName") or ""),
        parameters=(parts[0], parts[1], parts[2]) if named else None,
        active=next((each for each in conditions(status) if each.type == ACTIVE), None),
        generation=whole(metadata, "generation", "metadata", [], 1, LARGEST, default=1),
        raw_conditions=tuple(each for each, _ in members(status, "conditions", "status", problems)),
        status_writers=_writers(metadata, "status"),
    )
    return _validated(found, problems)


def request_config(document: Mapping[str, Any]) -> RequestConfig:
    """Read a ProvisioningRequestConfig. Raises InvalidInput with every invalid field and its path."""
    problems: Problems = []
    spec = mapping(document, "spec", "", problems)
    retries, path = mapping(spec, "retryStrategy", "spec", problems), "spec.retryStrategy"
    updates = mapping(spec, "podSetUpdates", "spec", problems)
    usual = Retries()
    policies = ("", IDENTICAL_TEMPLATES, SIMILAR_REQUIREMENTS)
    found = RequestConfig(
        class_name=str(spec.get("provisioningClassName") or spec.get("provisioningClass") or ""),
        parameters=strings(spec, "parameters", "spec", problems),
        managed_resources=frozenset(texts(spec, "managedResources", "spec", problems)),
        retries=Retries(
            whole(retries, "backoffLimitCount", path, problems, 0, LARGEST_INT32, default=usual.limit),
            whole(retries, "backoffBaseSeconds", path, problems, 0, LARGEST_INT32, default=usual.base_seconds),
            whole(retries, "backoffMaxSeconds", path, problems, 0, LARGEST_INT32, default=usual.longest_seconds),
        ),
        selectors=tuple(
            (str(each.get("key") or ""), str(each.get("valueFromProvisioningClassDetail") or ""))
            for each, _ in members(updates, "nodeSelector", "spec.podSetUpdates", problems)
        ),
        merge_policy=one_of(spec, "podSetMergePolicy", "spec", problems, policies),
    )
    if not found.class_name:
        problems.append("spec.provisioningClassName: missing; write the name of a provisioning class")
    return _validated(found, problems)


def flavor(document: Mapping[str, Any]) -> Flavor:
    """Read a ResourceFlavor. Raises InvalidInput with every invalid field and its path."""
    problems: Problems = []
    spec = mapping(document, "spec", "", problems)
    found = Flavor(
        str(mapping(document, "metadata", "", problems).get("name") or ""),
        strings(spec, "nodeLabels", "spec", problems),
        tuple(each for each, _ in members(spec, "tolerations", "spec", problems)),
        str(spec.get("topologyName") or ""),
    )
    return _validated(found, problems)


@dataclass(frozen=True, slots=True)
class CheckUpdate:
    """The desired state of a check on a Workload, comparable with its observed state."""

    state: str
    message: str
    pod_set_updates: tuple[Mapping[str, Any], ...] = ()
    requeue_seconds: int | None = None
    """The least time before Kueue admits the Workload again, with `Retry`."""

    def differs(self, written: Mapping[str, Any]) -> bool:
        """Return whether the observed entry of the check has to be written."""
        same = (
            written.get("state") == self.state
            and written.get("message", "") == cut(self.message, _LONGEST_MESSAGE)
            and list(written.get("podSetUpdates") or ()) == list(self.pod_set_updates)
            and (self.state != RETRY or written.get("requeueAfterSeconds") == self.requeue_seconds)
        )
        return not same

    def merged(self, written: Mapping[str, Any], now: str) -> dict[str, Any]:
        """Return the entry to write; fields that cagrpc does not own are unchanged."""
        ours = {"podSetUpdates": list(self.pod_set_updates), "requeueAfterSeconds": self.requeue_seconds}
        return {
            **{key: value for key, value in written.items() if key not in ours},
            "state": self.state,
            "message": cut(self.message, _LONGEST_MESSAGE),
            "lastTransitionTime": now if written.get("state") != self.state else written.get("lastTransitionTime", now),
            **{key: value for key, value in ours.items() if value not in (None, [])},
        }


def checks_patch(workload: KueueWorkload, updates: Mapping[str, CheckUpdate], now_seconds: float) -> dict[str, Any]:
    """Return a merge patch of a Workload's status with these checks updated. The server refuses it (a conflict) if the
    Workload has changed since it was observed."""
    now = timestamp(now_seconds)
    entries = [
        updates[str(each.get("name"))].merged(each, now) if str(each.get("name")) in updates else dict(each)
        for each in workload.checks
    ]
    return {
        "metadata": {"resourceVersion": workload.resource_version, "uid": workload.uid},
        "status": {"admissionChecks": entries},
    }


def active_patch(of: Check, active: bool, reason: str, message: str, now_seconds: float) -> dict[str, Any]:
    """Return a merge patch of an AdmissionCheck's status that sets `Active` and leaves other conditions unchanged."""
    before = of.active
    since = before.since_seconds if before is not None and before.status == active else now_seconds
    condition = condition_body(Condition(ACTIVE, active, reason, message, since), of.generation)
    others = [dict(each) for each in of.raw_conditions if each.get("type") != ACTIVE]
    return {
        "metadata": {"resourceVersion": of.resource_version, "uid": of.uid},
        "status": {"conditions": [*others, condition]},
    }


def _identity(metadata: Mapping[str, Any]) -> dict[str, str]:
    keys = {"uid": "uid", "name": "name", "resource_version": "resourceVersion"}
    return {ours: str(metadata.get(theirs) or "") for ours, theirs in keys.items()}


def _since(status: Mapping[str, Any], type_: str) -> str:
    """Return the last transition time of a true condition, as written; empty where it is not true."""
    for each, _ in members(status, "conditions", "status", []):
        if each.get("type") == type_ and each.get("status") == "True":
            return str(each.get("lastTransitionTime") or "unknown")
    return ""


def _writers(metadata: Mapping[str, Any], subresource: str | None = None) -> frozenset[str]:
    entries = members(metadata, "managedFields", "metadata", [])
    return frozenset(
        str(each.get("manager") or "")
        for each, _ in entries
        if subresource is None or each.get("subresource") == subresource
    )


def _validated(found: T, problems: Problems) -> T:
    if problems:
        raise InvalidInput(in_one_line(problems))
    return found
