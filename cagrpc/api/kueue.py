"""Kueue's objects (kueue.x-k8s.io, v1beta1 and v1beta2) in Kubernetes' JSON shape: what an admission check controller
reads of them, as plain values, and the bodies that it writes. What they mean is `controllers.admission_checks`'s.

Source: Kueue's apis/kueue/v1beta2 and v1beta1, which have the same fields as far as they are read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cagrpc.api.core.resources import Problems, mapping, members, one_of, strings, texts, whole
from cagrpc.api.encoding.times import timestamp
from cagrpc.api.encoding.untrusted import LARGEST
from cagrpc.api.provisioning.objects import ConditionParts, conditions, cut
from cagrpc.errors import InvalidInput

T = TypeVar("T")

GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""That can be read, the best first."""
CONFIG_KIND = "ProvisioningRequestConfig"
PARAMETER_ANNOTATIONS = f"provreq.{GROUP}/"
"""Annotations of a Workload with this prefix are parameters of its requests."""

PENDING, READY, RETRY, REJECTED = "Pending", "Ready", "Retry", "Rejected"
"""States of a check on a Workload."""
ACTIVE = "Active"
"""The condition of an AdmissionCheck whose controller is there and can work."""

IDENTICAL_TEMPLATES = "IdenticalPodTemplates"
SIMILAR_REQUIREMENTS = "IdenticalWorkloadSchedulingRequirements"

_LARGEST = 2**31 - 1
_LONGEST_MESSAGE = 32_768
_LONGEST_REASON = 1024


def collection(version: str, resource: str) -> str:
    """Of all namespaces."""
    return f"/apis/{GROUP}/{version}/{resource}"


@dataclass(frozen=True, slots=True)
class WorkloadPods:
    """One of a Workload's pod sets."""

    name: str
    template: Mapping[str, Any]
    """v1.PodTemplateSpec, as it is written."""
    count: int


@dataclass(frozen=True, slots=True)
class PodSetAssignment:
    """The admitted part of a pod set."""

    flavors: tuple[str, ...]
    """Names of ResourceFlavors, sorted, each once."""
    count: int | None = None
    """None for all of its pods; fewer with partial admission."""


@dataclass(frozen=True, slots=True)
class KueueWorkload:
    """A Workload, as it was seen last."""

    version: str
    """Of the API by which it was read."""
    uid: str
    namespace: str
    name: str
    resource_version: str
    pod_sets: tuple[WorkloadPods, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    """By its annotations."""
    reserved_at: str = ""
    """Since when quota is reserved, as it is written; empty where none is."""
    assignments: Mapping[str, PodSetAssignment] = field(default_factory=dict)
    """By pod set."""
    checks: tuple[Mapping[str, Any], ...] = ()
    """status.admissionChecks, as they are written."""
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
    """API group, kind and name of its configuration; None where it names none."""
    conditions: tuple[ConditionParts, ...] = ()
    generation: int = 1
    raw_conditions: tuple[Mapping[str, Any], ...] = ()
    status_writers: frozenset[str] = frozenset()
    """Field managers that have written to its status."""

    @property
    def active(self) -> ConditionParts | None:
        return next((each for each in self.conditions if each.type == ACTIVE), None)


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a request is tried again, and after how long: doubled from base to longest."""

    limit: int = 3
    base_seconds: int = 60
    longest_seconds: int = 1800

    def pause_seconds(self, attempt: int) -> int:
        """After this attempt, counted from 1, has failed."""
        return min(self.longest_seconds, self.base_seconds << max(0, min(attempt - 1, 31)))


@dataclass(frozen=True, slots=True)
class RequestConfig:
    """A ProvisioningRequestConfig."""

    name: str
    class_name: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    managed_resources: frozenset[str] = frozenset()
    """Empty for all."""
    retries: Retries = Retries()
    selectors: tuple[tuple[str, str], ...] = ()
    """podSetUpdates.nodeSelector: the label's key, and the detail of the request that has its value."""
    merge_policy: str = ""
    """One of the two above, or empty."""


@dataclass(frozen=True, slots=True)
class Flavor:
    """A ResourceFlavor: what the pods that are admitted to it are given."""

    name: str
    node_labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()


def workload(document: Mapping[str, Any]) -> KueueWorkload:
    """Raises InvalidInput for an invalid field, with its path."""
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
                mapping(each, "template", path, problems),
                whole(each, "count", path, problems, 0, _LARGEST, default=1),
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
                whole(each, "count", path, problems, 0, _LARGEST) if each.get("count") is not None else None,
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
    return _sound(found, problems)


def check(document: Mapping[str, Any]) -> Check:
    """Read an AdmissionCheck. Raises InvalidInput for an invalid field, with its path."""
    problems: Problems = []
    metadata = mapping(document, "metadata", "", problems)
    spec = mapping(document, "spec", "", problems)
    status = mapping(document, "status", "", problems)
    named = mapping(spec, "parameters", "spec", problems)
    # The KEP writes group and version, the API server lets the group pass alone.
    parts = (str(named.get("apiGroup") or "").partition("/")[0], *(str(named.get(k) or "") for k in ("kind", "name")))
    found = Check(
        **_identity(metadata),
        controller=str(spec.get("controllerName") or ""),
        parameters=(parts[0], parts[1], parts[2]) if named else None,
        conditions=conditions(status),
        generation=whole(metadata, "generation", "metadata", [], 1, LARGEST, default=1),
        raw_conditions=tuple(each for each, _ in members(status, "conditions", "status", problems)),
        status_writers=_writers(metadata, "status"),
    )
    return _sound(found, problems)


def request_config(document: Mapping[str, Any]) -> RequestConfig:
    """Raises InvalidInput for an invalid field, with its path."""
    problems: Problems = []
    spec = mapping(document, "spec", "", problems)
    retries, path = mapping(spec, "retryStrategy", "spec", problems), "spec.retryStrategy"
    updates = mapping(spec, "podSetUpdates", "spec", problems)
    usual = Retries()
    policies = ("", IDENTICAL_TEMPLATES, SIMILAR_REQUIREMENTS)
    found = RequestConfig(
        name=str(mapping(document, "metadata", "", problems).get("name") or ""),
        class_name=str(spec.get("provisioningClassName") or spec.get("provisioningClass") or ""),
        parameters=strings(spec, "parameters", "spec", problems),
        managed_resources=frozenset(texts(spec, "managedResources", "spec", problems)),
        retries=Retries(
            whole(retries, "backoffLimitCount", path, problems, 0, _LARGEST, default=usual.limit),
            whole(retries, "backoffBaseSeconds", path, problems, 0, _LARGEST, default=usual.base_seconds),
            whole(retries, "backoffMaxSeconds", path, problems, 0, _LARGEST, default=usual.longest_seconds),
        ),
        selectors=tuple(
            (str(each.get("key") or ""), str(each.get("valueFromProvisioningClassDetail") or ""))
            for each, _ in members(updates, "nodeSelector", "spec.podSetUpdates", problems)
        ),
        merge_policy=one_of(spec, "podSetMergePolicy", "spec", problems, policies),
    )
    if not found.class_name:
        problems.append("spec.provisioningClassName: missing; write the name of a provisioning class")
    return _sound(found, problems)


def flavor(document: Mapping[str, Any]) -> Flavor:
    """Raises InvalidInput for an invalid field, with its path."""
    problems: Problems = []
    spec = mapping(document, "spec", "", problems)
    found = Flavor(
        str(mapping(document, "metadata", "", problems).get("name") or ""),
        strings(spec, "nodeLabels", "spec", problems),
        tuple(each for each, _ in members(spec, "tolerations", "spec", problems)),
    )
    return _sound(found, problems)


@dataclass(frozen=True, slots=True)
class CheckUpdate:
    """The desired state of a check on a Workload, comparable with its present one."""

    state: str
    message: str
    pod_set_updates: tuple[Mapping[str, Any], ...] = ()
    requeue_seconds: int | None = None
    """With `Retry`: how long Kueue waits at least before it admits the Workload again."""

    def differs(self, written: Mapping[str, Any]) -> bool:
        """Return the present state of a check."""
        same = (
            written.get("state") == self.state
            and written.get("message", "") == cut(self.message, _LONGEST_MESSAGE)
            and list(written.get("podSetUpdates") or ()) == list(self.pod_set_updates)
            and (self.state != RETRY or written.get("requeueAfterSeconds") == self.requeue_seconds)
        )
        return not same

    def merged(self, written: Mapping[str, Any], now: str) -> dict[str, Any]:
        """The entry to write: fields that are not ours stay as they are written."""
        ours = {"podSetUpdates": list(self.pod_set_updates), "requeueAfterSeconds": self.requeue_seconds}
        return {
            **{key: value for key, value in written.items() if key not in ours},
            "state": self.state,
            "message": cut(self.message, _LONGEST_MESSAGE),
            "lastTransitionTime": now if written.get("state") != self.state else written.get("lastTransitionTime", now),
            **{key: value for key, value in ours.items() if value not in (None, [])},
        }


def checks_patch(workload: KueueWorkload, updates: Mapping[str, CheckUpdate], now_seconds: float) -> dict[str, Any]:
    """A merge patch of a Workload's status: its list of checks, in which these say something else. The server refuses
    it (a conflict) where the Workload has changed since it was seen."""
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
    """A merge patch of an AdmissionCheck's status, which sets `Active` and leaves other conditions."""
    before = of.active
    since = before.since_seconds if before is not None and before.status == active else now_seconds
    condition = {
        "type": ACTIVE,
        "status": "True" if active else "False",
        "reason": cut(reason, _LONGEST_REASON),
        "message": cut(message, _LONGEST_MESSAGE),
        "lastTransitionTime": timestamp(since),
        "observedGeneration": of.generation,
    }
    others = [dict(each) for each in of.raw_conditions if each.get("type") != ACTIVE]
    return {
        "metadata": {"resourceVersion": of.resource_version, "uid": of.uid},
        "status": {"conditions": [*others, condition]},
    }


def _identity(metadata: Mapping[str, Any]) -> dict[str, str]:
    keys = {"uid": "uid", "name": "name", "resource_version": "resourceVersion"}
    return {ours: str(metadata.get(theirs) or "") for ours, theirs in keys.items()}


def _since(status: Mapping[str, Any], type_: str) -> str:
    """The last change of a condition that is true, as it is written; empty where it is not true."""
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


def _sound(found: T, problems: Problems) -> T:
    if problems:
        raise InvalidInput("; ".join(problems))
    return found
