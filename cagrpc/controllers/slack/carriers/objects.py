"""The objects that carry placeholders in a cluster, as bodies and names: one CapacityBuffer with its PodTemplate, or
one ReplicaSet of pause pods, for each shape. Pure; what is written when is `buffers`' and `pause`'s.

The name of an object says which shape it is of. That of a PodTemplate or ReplicaSet also says what it holds: it is
never changed but replaced, so that CA never sees half of a change.
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
"""In the `spec` of our CapacityBuffers: nobody else answers for these."""
SELECTOR = f"{PLACEHOLDER}=true"
"""Finds all objects of ours, and their pods."""

_SET = "slack.cagrpc.io/set"
"""Label of pause pods: the name of their ReplicaSet."""
_LONGEST_SLUG = 36
_GRACE_SECONDS = 1
"""The least but for 0, which is deletion by force: a node would be promised to others before it is free, and a
scheduler that preempts for several pods at once may miss that a victim has gone (seen with 1.36: one of them waits)."""
_PAUSE_USER = 65535

Object = Mapping[str, Any]


class Verb(Enum):
    CREATE = "create"
    PATCH = "patch"
    DELETE = "delete"


class Write(NamedTuple):
    """One request. `path` is that of a collection for something new, else of the object."""

    verb: Verb
    path: str
    body: Mapping[str, Any] = {}
    uid: str = ""
    """Of what is deleted."""


@dataclass(frozen=True, slots=True)
class CarrierUpdate:
    """What is to be written now. Where there is something, or it `waits` for others, there is more to do after it."""

    writes: tuple[Write, ...] = ()
    waits: bool = False

    @property
    def done(self) -> bool:
        return not (self.writes or self.waits)


@dataclass(frozen=True, slots=True)
class Place:
    """Where objects are made, and for whom."""

    namespace: str
    image: str
    """Of pause pods."""
    owner: Mapping[str, Any]
    """metav1.OwnerReference of the slack object: what carries the slack goes with it."""

    def templates(self, name: str = "") -> str:
        return _path(f"/api/v1/namespaces/{self.namespace}/podtemplates", name)

    def replica_sets(self, name: str = "") -> str:
        return _path(f"/apis/apps/v1/namespaces/{self.namespace}/replicasets", name)

    def buffers(self, name: str = "", subresource: str = "") -> str:
        return capacity_buffers.path(self.namespace, name, subresource)

    def head(self, api_version: str, kind: str, name: str, shape: str) -> dict[str, Any]:
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "labels": {PLACEHOLDER: "true", "app.kubernetes.io/managed-by": "cagrpc"},
            "annotations": {SHAPE: shape},
            "ownerReferences": [dict(self.owner)],
        }
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def object_name(shape: str) -> str:
    """A name for what carries a shape: told by its own name, and never the same as another's."""
    slug = re.sub(r"[^a-z0-9]+", "-", shape.lower())[:_LONGEST_SLUG].strip("-")
    return f"slack-{slug}-{_digest(shape)}"


def template_body(shape: SlackShape, place: Place) -> dict[str, Any]:
    """A v1.PodTemplate of what CA injects. Its priority makes CA find room for real pods first."""
    template = _template(shape, place, {"priority": PRIORITY})
    return {
        **place.head("v1", "PodTemplate", f"{object_name(shape.name)}-{_digest(template)}", shape.name),
        "template": template,
    }


def buffer_body(shape: SlackShape, template: str, place: Place) -> dict[str, Any]:
    """A CapacityBuffer without the status, by which alone CA goes."""
    head = place.head(capacity_buffers.API_VERSION, capacity_buffers.KIND, object_name(shape.name), shape.name)
    return {**head, "spec": buffer_spec(shape, template)}


def buffer_spec(shape: SlackShape, template: str) -> dict[str, Any]:
    return {"provisioningStrategy": STRATEGY, "podTemplateRef": {"name": template}, "replicas": shape.count}


def replica_set_body(shape: SlackShape, place: Place) -> dict[str, Any]:
    """An apps/v1 ReplicaSet of pause pods. They go within a second when they are told to."""
    template = _template(shape, place, {"priorityClassName": PRIORITY_CLASS})
    name = f"{object_name(shape.name)}-{_digest(template)}"
    template["metadata"]["labels"][_SET] = name
    selector = {"matchLabels": {PLACEHOLDER: "true", _SET: name}}
    spec = {"replicas": shape.count, "selector": selector, "template": template}
    return {**place.head("apps/v1", "ReplicaSet", name, shape.name), "spec": spec}


def shape_of(found: Object) -> str:
    """The name of the shape that an object of ours carries; empty where it does not say."""
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
