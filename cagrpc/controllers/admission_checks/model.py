"""The objects that the admission check controller owns, the writes that it is about to make as values, and their JSON
bodies. What is decided is in `reconcile`.

The owner of a request is its first PodTemplate, whose owner is the Workload. Kueue's own controller deletes every
ProvisioningRequest with an owner of the Workload's name that it did not create, and it cannot be switched off. Garbage
collection removes all of them with the Workload either way."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any

from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS
from cagrpc.api.encoding.json_documents import mapping, strings, whole_number
from cagrpc.api.kueue import GROUP, CheckUpdate, KueueWorkload
from cagrpc.api.provisioning import objects
from cagrpc.controllers.admission_checks.pod_sets import PodSetPods
from cagrpc.controllers.provisioning.model import ProvisioningRequest
from cagrpc.controllers.provisioning.store import read_request

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
    attempt: int
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
