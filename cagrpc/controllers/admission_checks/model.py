"""The objects that the admission check controller owns, the writes that it is about to make as values, and their JSON
bodies; and the pods of a Workload that a request is for: pod sets that use managed resources, with what their
ResourceFlavors add, merged by the configuration's policy (KEP-1136, podSetMergePolicy). What is decided is in
`reconcile`.

The owner of a request is its first PodTemplate, whose owner is the Workload. Kueue's own controller deletes every
ProvisioningRequest with an owner of the Workload's name that it did not create, and it cannot be switched off. Garbage
collection removes all of them with the Workload either way."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import sha1
from typing import Any

from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS
from cagrpc.api.encoding.json_documents import mapping, members, strings, whole_number
from cagrpc.api.kueue import (
    GROUP,
    IDENTICAL_TEMPLATES,
    SIMILAR_REQUIREMENTS,
    CheckUpdate,
    Flavor,
    KueueWorkload,
    RequestConfig,
)
from cagrpc.api.provisioning import objects
from cagrpc.controllers.provisioning.model import ProvisioningRequest
from cagrpc.controllers.provisioning.store import read_request
from solver.model.quantities import parse_quantity

_CONTAINERS = ("initContainers", "containers")
_SCHEDULING = ("resources", "nodeSelector", "tolerations", "affinity", "resourceClaims")
"""Fields of a pod's spec that constrain where it may run, beside its containers' requests."""


@dataclass(frozen=True, slots=True)
class PodSetPods:
    """Pods of one PodTemplate."""

    pod_sets: tuple[str, ...]
    """Their names; several where pod sets were merged."""
    template: Mapping[str, Any]
    """v1.PodTemplateSpec."""
    count: int


def requested_pods(
    workload: KueueWorkload, config: RequestConfig, flavors: Mapping[str, Flavor]
) -> tuple[PodSetPods, ...] | str:
    """Return the pods in the Workload's order, none where no pod set uses a managed resource; or why they are not
    known."""
    found: list[PodSetPods] = []
    for pods in workload.pod_sets:
        written = pods.template
        if pods.count == 0 or not _managed(mapping(written, "spec"), config.managed_resources):
            continue
        assignment = workload.assignments.get(pods.name)
        if assignment is None:
            return f"pod set {pods.name} has no assignment in status.admission"
        count = pods.count if assignment.count is None else assignment.count
        if count == 0:
            continue
        template = _flavored(pods.name, written, assignment.flavors, flavors)
        if isinstance(template, str):
            return template
        _merge(found, PodSetPods((pods.name,), template, count), config.merge_policy)
    return tuple(found)


def _merge(found: list[PodSetPods], pods: PodSetPods, policy: str) -> None:
    for index, other in enumerate(found):
        if policy and _merge_key(other.template, policy) == _merge_key(pods.template, policy):
            found[index] = replace(other, pod_sets=(*other.pod_sets, *pods.pod_sets), count=other.count + pods.count)
            return
    found.append(pods)


def _managed(spec: Mapping[str, Any], managed: Collection[str]) -> bool:
    """Return whether a pod uses one of these resources; without any, every pod does."""
    return not managed or any(resource in managed for amounts in _resources(spec) for resource in amounts)


def _resources(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield all requests and limits, by resource."""
    for holder in (spec, *(each for name in _CONTAINERS for each, _ in members(spec, name))):
        resources = mapping(holder, "resources")
        yield mapping(resources, "requests")
        yield mapping(resources, "limits")


def _flavored(
    pod_set: str, template: Mapping[str, Any], names: Collection[str], flavors: Mapping[str, Flavor]
) -> dict[str, Any] | str:
    """Return the template with what its flavors add and the requests that the API server would default; or why there is
    none."""
    metadata = mapping(template, "metadata")
    spec = deepcopy(dict(mapping(template, "spec")))
    selector = dict(mapping(spec, "nodeSelector"))
    tolerations = list(spec.get("tolerations") or ())
    for name in names:
        flavor = flavors.get(name)
        if flavor is None:
            return f"pod set {pod_set} is admitted to ResourceFlavor {name}, which does not exist"
        for key, value in flavor.node_labels.items():
            if selector.setdefault(key, value) != value:
                return (
                    f"pod set {pod_set} selects nodes with {key}={selector[key]}, and its ResourceFlavor {name} has"
                    f" {key}={value}"
                )
        tolerations += [dict(each) for each in flavor.tolerations if each not in tolerations]
    spec |= {"nodeSelector": selector} if selector else {}
    spec |= {"tolerations": tolerations} if tolerations else {}
    for container in (each for name in _CONTAINERS for each in spec.get(name) or ()):
        resources = container.get("resources") or {}
        if resources.get("limits"):
            requests = {**resources["limits"], **(resources.get("requests") or {})}
            container["resources"] = {**resources, "requests": requests}
    head = {key: dict(metadata[key]) for key in ("labels", "annotations") if metadata.get(key)}
    return {**({"metadata": head} if head else {}), "spec": spec}


def _merge_key(template: Mapping[str, Any], policy: str) -> Any:
    """Return what is equal for two templates that are merged."""
    if policy == IDENTICAL_TEMPLATES:
        return _plain(template)
    assert policy == SIMILAR_REQUIREMENTS, policy
    spec = mapping(template, "spec")
    containers = {
        name: [_plain(mapping(mapping(each, "resources"), "requests"), quantities=True) for each in
               (found for found, _ in members(spec, name))]
        for name in _CONTAINERS
    }  # fmt: skip
    return containers, {name: _plain(spec.get(name)) for name in _SCHEDULING}


def _plain(value: Any, *, quantities: bool = False) -> Any:
    """Return the canonical form of a value: without empty members, and with 1000m as 1."""
    if isinstance(value, Mapping):
        inner = {
            key: _plain(each, quantities=quantities or key in ("requests", "limits")) for key, each in value.items()
        }
        return {key: each for key, each in inner.items() if each not in (None, {}, [])}
    if isinstance(value, list | tuple):
        return [_plain(each, quantities=quantities) for each in value]
    if quantities and isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return parse_quantity(value)
        except ValueError:
            return value
    return value


OWNED = "kueue.cagrpc.io/owned"
"""Label of every request and PodTemplate that was created for a Workload; its value is `true`."""
WORKLOAD_UID = "kueue.cagrpc.io/workload-uid"
CHECK = "kueue.cagrpc.io/check"
ATTEMPT = "kueue.cagrpc.io/attempt"
RESERVED_AT = "kueue.cagrpc.io/quota-reserved-at"
"""Annotations with the purpose of the object. Names may be truncated, so nothing is read from them."""
REQUEST = "kueue.cagrpc.io/request"
"""Annotation of a PodTemplate: the name of its request."""
CONTENT = "kueue.cagrpc.io/content"
"""Annotation of a PodTemplate: a hash of its content."""

_LONGEST_NAME = 253
_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Purpose:
    """The check, attempt and reservation that an object was created for."""

    workload_uid: str
    check: str
    attempt: int
    """Counted from 1 while the same quota is reserved."""
    reserved_at: str
    """When the Workload's quota was reserved; objects of an earlier reservation are out of date."""

    def annotations(self) -> dict[str, str]:
        """Return the annotations that `purpose_of` reads."""
        return {
            WORKLOAD_UID: self.workload_uid,
            CHECK: self.check,
            ATTEMPT: str(self.attempt),
            RESERVED_AT: self.reserved_at,
        }


@dataclass(frozen=True, slots=True)
class OwnRequest:
    """A ProvisioningRequest that this controller owns."""

    request: ProvisioningRequest
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class OwnTemplate:
    """A PodTemplate that this controller owns."""

    uid: str
    namespace: str
    name: str
    request: str
    """The name of the request that refers to it."""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Removal:
    """An object to delete."""

    resource: str
    """`provisioningrequests` or `podtemplates`."""
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Creation:
    """A request to create, with the PodTemplates that it refers to, which come first."""

    check: str
    namespace: str
    name: str
    templates: tuple[Mapping[str, Any], ...]
    request: Mapping[str, Any]
    """Without its owner, which is the first of the templates once that is created."""
    replaces: bool = False
    """Whether it replaces one that no longer matches the configuration."""


@dataclass(frozen=True, slots=True)
class CheckWrites:
    """The writes for one Workload, in this order. After an interruption the next reconciliation gives those that are
    left."""

    in_the_way: tuple[Removal, ...] = ()
    """Deleted first: their names are needed for the creations."""
    creations: tuple[Creation, ...] = ()
    updates: Mapping[str, CheckUpdate] = field(default_factory=dict)
    """By check; only those that change the status."""
    removals: tuple[Removal, ...] = ()
    again_seconds: float | None = None
    """When to reconcile again without a change; None for never."""


def request_name(workload: str, check: str, attempt: int) -> str:
    """Return `<workload>-<check>-<attempt>`; a longer name is truncated to its attempt and a hash of the whole."""
    return _truncated(f"{workload}-{check}", f"-{attempt}")


def template_name(request: str, pod_set: str) -> str:
    """Return `ppt-<request>-<pod set>`, truncated alike."""
    return _truncated(f"ppt-{request}", f"-{pod_set}")


def _truncated(text: str, end: str) -> str:
    if len(text) + len(end) <= _LONGEST_NAME:
        return text + end
    digest = sha1((text + end).encode(), usedforsecurity=False).hexdigest()[:_DIGITS]
    start = text[: _LONGEST_NAME - len(end) - len(digest) - 1]
    return f"{start.rstrip('-.')}-{digest}{end}"


def own_request(document: dict[str, Any]) -> OwnRequest:
    """Return the request of a ProvisioningRequest object."""
    return OwnRequest(read_request(document).value, purpose_of(document))


def own_template(document: Mapping[str, Any]) -> OwnTemplate:
    """Return the template of a PodTemplate object."""
    metadata = mapping(document, "metadata")
    uid, namespace, name = (str(metadata.get(key) or "") for key in ("uid", "namespace", "name"))
    annotations = strings(metadata, "annotations", "metadata", [])
    return OwnTemplate(uid, namespace, name, annotations.get(REQUEST, ""), annotations)


def purpose_of(document: Mapping[str, Any]) -> Purpose:
    """Return the purpose in the annotations; for an object that is not ours, one that matches no Workload."""
    found = strings(mapping(document, "metadata"), "annotations", "metadata", [])
    attempt = whole_number(found.get(ATTEMPT)) or 0
    return Purpose(found.get(WORKLOAD_UID, ""), found.get(CHECK, ""), attempt, found.get(RESERVED_AT, ""))


def template_body(workload: KueueWorkload, purpose: Purpose, request: str, pods: PodSetPods) -> dict[str, Any]:
    """Return a v1.PodTemplate."""
    owner = _owner(f"{GROUP}/{workload.version}", "Workload", workload.name, workload.uid)
    content = sha1(json.dumps(pods.template, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
    annotations = {**purpose.annotations(), REQUEST: request, CONTENT: content}
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {
            "name": template_name(request, pods.pod_sets[0]),
            "namespace": workload.namespace,
            "labels": {OWNED: "true"},
            "annotations": annotations,
            "ownerReferences": [owner],
        },
        "template": pods.template,
    }


def request_body(
    workload: KueueWorkload,
    purpose: Purpose,
    name: str,
    class_name: str,
    parameters: Mapping[str, str],
    pods: Sequence[PodSetPods],
) -> dict[str, Any]:
    """Return a ProvisioningRequest without its owner, which `owned_by` adds."""
    pod_sets = [
        {"podTemplateRef": {"name": template_name(name, each.pod_sets[0])}, "count": each.count} for each in pods
    ]
    return {
        "apiVersion": objects.API_VERSION,
        "kind": objects.KIND,
        "metadata": {
            "name": name,
            "namespace": workload.namespace,
            "labels": {OWNED: "true"},
            "annotations": purpose.annotations(),
        },
        "spec": {
            "provisioningClassName": class_name,
            **({"parameters": dict(parameters)} if parameters else {}),
            "podSets": pod_sets,
        },
    }


def owned_by(request: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request with this PodTemplate, as the API server returned it, for its owner."""
    metadata = template["metadata"]
    owner = _owner("v1", "PodTemplate", str(metadata["name"]), str(metadata["uid"]))
    return {**request, "metadata": {**request["metadata"], "ownerReferences": [owner]}}


def pod_set_updates(
    pods: Sequence[PodSetPods], request: ProvisioningRequest, selectors: Sequence[tuple[str, str]]
) -> tuple[dict[str, Any], ...]:
    """Return one update for each pod set of the request: the annotations by which its pods consume it, under both
    prefixes, and the selectors of the configuration with their values from the request's details. A detail that is a
    selector itself (`key=value`) replaces key and value. Selectors without a detail are left out."""
    annotations = {**dict.fromkeys(CONSUME_KEYS, request.name), **dict.fromkeys(CLASS_KEYS, request.class_name)}
    chosen: dict[str, str] = {}
    for key, detail in selectors:
        value = request.details.get(detail)
        if value is None:
            continue
        own_key, equals, own_value = value.partition("=")
        chosen[own_key if equals else key] = own_value if equals else value
    selector = {"nodeSelector": chosen} if chosen else {}
    return tuple(
        {"name": name, "annotations": dict(annotations), **selector} for each in pods for name in each.pod_sets
    )


def _owner(api_version: str, kind: str, name: str, uid: str) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}
