"""The objects that the admission check controller owns and the writes that it is about to make, as values. What is
decided is in `reconcile`, the JSON bodies are in `bodies`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any

from cagrpc.api.encoding.json_documents import mapping, strings, whole_number
from cagrpc.api.kueue import CheckUpdate
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
