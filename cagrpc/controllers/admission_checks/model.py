"""What the admission check controller owns, and what it is about to write, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any

from cagrpc.api.core.resources import mapping, strings
from cagrpc.api.encoding.untrusted import whole_number
from cagrpc.api.kueue import CheckUpdate
from cagrpc.controllers.provisioning.model import ProvisioningRequest
from cagrpc.controllers.provisioning.store import read_request

OWNED = "kueue.cagrpc.io/owned"
"""A label of every request and PodTemplate that was made for a Workload; its value is `true`."""
WORKLOAD_UID = "kueue.cagrpc.io/workload-uid"
CHECK = "kueue.cagrpc.io/check"
ATTEMPT = "kueue.cagrpc.io/attempt"
RESERVED_AT = "kueue.cagrpc.io/quota-reserved-at"
"""Annotations that say for what it was made. Names may be cut, so nothing is read from them."""
REQUEST = "kueue.cagrpc.io/request"
"""Of a PodTemplate: the name of its request."""
CONTENT = "kueue.cagrpc.io/content"
"""Of a PodTemplate: a hash of what it says."""

_LONGEST_NAME = 253
_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Purpose:
    """For what an object was made."""

    workload_uid: str
    check: str
    attempt: int
    """Counted from 1 while the same quota is reserved."""
    reserved_at: str
    """Since when the Workload's quota was reserved; what is of an earlier time is out of date."""

    def annotations(self) -> dict[str, str]:
        return {
            WORKLOAD_UID: self.workload_uid,
            CHECK: self.check,
            ATTEMPT: str(self.attempt),
            RESERVED_AT: self.reserved_at,
        }


@dataclass(frozen=True, slots=True)
class OwnRequest:
    """A ProvisioningRequest of ours."""

    request: ProvisioningRequest
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class OwnTemplate:
    """A PodTemplate of ours."""

    uid: str
    namespace: str
    name: str
    request: str
    """Name of the request that it is for."""
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
    """A request to make, with the PodTemplates that it names, which come first."""

    check: str
    namespace: str
    name: str
    attempt: int
    templates: tuple[Mapping[str, Any], ...]
    request: Mapping[str, Any]
    """Without its owner, which is the first of the templates as it was made."""
    replaces: bool = False
    """Whether there was one that the configuration no longer fits."""


@dataclass(frozen=True, slots=True)
class CheckWrites:
    """What is to be written for one Workload, in this order. Whatever was done of it when a process ends, the next look
    at what there is then gives the rest."""

    in_the_way: tuple[Removal, ...] = ()
    """Whose names are needed again."""
    creations: tuple[Creation, ...] = ()
    updates: Mapping[str, CheckUpdate] = field(default_factory=dict)
    """By check; only those that change something."""
    removals: tuple[Removal, ...] = ()
    again_seconds: float | None = None
    """When to look again though nothing has changed."""


def request_name(workload: str, check: str, attempt: int) -> str:
    """`<workload>-<check>-<attempt>`; what is too long is cut, and keeps its attempt and a hash of the whole."""
    return _cut(f"{workload}-{check}", f"-{attempt}")


def template_name(request: str, pod_set: str) -> str:
    return _cut(f"ppt-{request}", f"-{pod_set}")


def _cut(text: str, end: str) -> str:
    if len(text) + len(end) <= _LONGEST_NAME:
        return text + end
    digest = sha1((text + end).encode(), usedforsecurity=False).hexdigest()[:_DIGITS]
    kept = text[: _LONGEST_NAME - len(end) - len(digest) - 1]
    return f"{kept.rstrip('-.')}-{digest}{end}"


def own_request(document: dict[str, Any]) -> OwnRequest:
    return OwnRequest(read_request(document).value, purpose_of(document))


def own_template(document: Mapping[str, Any]) -> OwnTemplate:
    metadata = mapping(document, "metadata", "", [])
    uid, namespace, name = (str(metadata.get(key) or "") for key in ("uid", "namespace", "name"))
    annotations = strings(metadata, "annotations", "metadata", [])
    return OwnTemplate(uid, namespace, name, annotations.get(REQUEST, ""), annotations)


def purpose_of(document: Mapping[str, Any]) -> Purpose:
    """What the annotations say; of an object that is not ours, nothing that would be true of another."""
    found = strings(mapping(document, "metadata", "", []), "annotations", "metadata", [])
    attempt = whole_number(found.get(ATTEMPT)) or 0
    return Purpose(found.get(WORKLOAD_UID, ""), found.get(CHECK, ""), attempt, found.get(RESERVED_AT, ""))
