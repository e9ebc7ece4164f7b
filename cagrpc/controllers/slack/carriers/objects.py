"""Names and bodies of the objects that carry placeholders: for each shape one CapacityBuffer with its PodTemplate, or
one ReplicaSet of pause pods. Pure; the order of writes is in `buffers` and `pause`.

An object's name identifies its shape. That of a PodTemplate or ReplicaSet also contains a hash of its content: it is
replaced, never changed, so that CA never observes a partial change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Any, NamedTuple

from cagrpc.api import capacity_buffers
from cagrpc.api.core.pod_bodies import pod_body
from cagrpc.api.core.slack import PLACEHOLDER, PRIORITY, PRIORITY_CLASS, SHAPE
from solver.slack.model import SlackShape

STRATEGY = "slack.cagrpc.io/placeholders"
"""The provisioningStrategy of our CapacityBuffers, which no other controller handles."""
SELECTOR = f"{PLACEHOLDER}=true"
"""Selects all objects of carriers, and their pods."""

_SET = "slack.cagrpc.io/set"
"""Label of pause pods: the name of their ReplicaSet."""
_LONGEST_SLUG = 36
_GRACE_SECONDS = 1
"""The least above 0, which would force deletion: room would be given away before it is free, and a scheduler that
preempts for several pods at once may miss that a victim is gone (observed with 1.36: one of the pods waits)."""
_PAUSE_USER = 65535

Object = Mapping[str, Any]


class Verb(Enum):
    """The kind of a write."""

    CREATE = "create"
    PATCH = "patch"
    DELETE = "delete"


class Write(NamedTuple):
    """One request to the API server. `path` is that of the collection to create, and else that of the object."""

    verb: Verb
    path: str
    body: Mapping[str, Any] = {}
    uid: str = ""
    """UID of the object to delete."""


@dataclass(frozen=True, slots=True)
class CarrierUpdate:
    """The writes to make now. Where there are any, or it `waits` for other components, more may follow."""

    writes: tuple[Write, ...] = ()
    waits: bool = False

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.writes or self.waits)


@dataclass(frozen=True, slots=True)
class Place:
    """Where objects are created, and their owner."""

    namespace: str
    image: str
    """Image of the pause pods."""
    owner: Mapping[str, Any]
    """metav1.OwnerReference of the Slack object, with which all of them are garbage-collected."""

    def templates(self, name: str = "") -> str:
        """Return the path of a PodTemplate, or of all."""
        return _path(f"/api/v1/namespaces/{self.namespace}/podtemplates", name)

    def replica_sets(self, name: str = "") -> str:
        """Return the path of a ReplicaSet, or of all."""
        return _path(f"/apis/apps/v1/namespaces/{self.namespace}/replicasets", name)

    def buffers(self, name: str = "", subresource: str = "") -> str:
        """Return the path of a CapacityBuffer, or of all."""
        return capacity_buffers.path(self.namespace, name, subresource)

    def head(self, api_version: str, kind: str, name: str, shape: str) -> dict[str, Any]:
        """Return type and metadata of an object for a shape."""
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "labels": {PLACEHOLDER: "true", "app.kubernetes.io/managed-by": "cagrpc"},
            "annotations": {SHAPE: shape},
            "ownerReferences": [dict(self.owner)],
        }
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def object_name(shape: str) -> str:
    """Return a unique name for the object of a shape, recognisable by the shape's own."""
    slug = re.sub(r"[^a-z0-9]+", "-", shape.lower())[:_LONGEST_SLUG].strip("-")
    return f"slack-{slug}-{_digest(shape)}"


def template_body(shape: SlackShape, place: Place) -> dict[str, Any]:
    """Return a v1.PodTemplate of the pods that CA injects, at a priority at which it schedules all other pods first."""
    template = _template(shape, place, {"priority": PRIORITY})
    return {
        **place.head("v1", "PodTemplate", f"{object_name(shape.name)}-{_digest(template)}", shape.name),
        "template": template,
    }


def buffer_body(shape: SlackShape, template: str, place: Place) -> dict[str, Any]:
    """Return a CapacityBuffer without its status, which is all that CA reads."""
    head = place.head(capacity_buffers.API_VERSION, capacity_buffers.KIND, object_name(shape.name), shape.name)
    return {**head, "spec": buffer_spec(shape, template)}


def buffer_spec(shape: SlackShape, template: str) -> dict[str, Any]:
    """Return the spec of a CapacityBuffer."""
    return {"provisioningStrategy": STRATEGY, "podTemplateRef": {"name": template}, "replicas": shape.count}


def replica_set_body(shape: SlackShape, place: Place) -> dict[str, Any]:
    """Return an apps/v1 ReplicaSet of pause pods, which terminate within a second."""
    template = _template(shape, place, {"priorityClassName": PRIORITY_CLASS})
    name = f"{object_name(shape.name)}-{_digest(template)}"
    template["metadata"]["labels"][_SET] = name
    selector = {"matchLabels": {PLACEHOLDER: "true", _SET: name}}
    spec = {"replicas": shape.count, "selector": selector, "template": template}
    return {**place.head("apps/v1", "ReplicaSet", name, shape.name), "spec": spec}


def shape_of(found: Object) -> str:
    """Return the name of the shape that an object carries; empty where the annotation is missing."""
    return str((found["metadata"].get("annotations") or {}).get(SHAPE, ""))


def _template(shape: SlackShape, place: Place, priority: Mapping[str, Any]) -> dict[str, Any]:
    pod = pod_body(shape.spec, place.image, place.namespace)
    pod["containers"][0]["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    return {
        "metadata": {
            "labels": {**dict(shape.spec.labels), PLACEHOLDER: "true"},
            "annotations": {SHAPE: shape.name},
        },
        "spec": {
            **pod,
            **priority,
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _PAUSE_USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def _path(collection: str, name: str) -> str:
    return f"{collection}/{name}" if name else collection
