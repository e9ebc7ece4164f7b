"""JSON bodies of the objects that are created for a Workload, and the updates of its pod sets once they are served.

The owner of a request is its first PodTemplate, whose owner is the Workload. Kueue's own controller deletes every
ProvisioningRequest with an owner of the Workload's name that it did not create, and it cannot be switched off. Garbage
collection removes all of them with the Workload either way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha1
from typing import Any

from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS
from cagrpc.api.kueue import GROUP, KueueWorkload
from cagrpc.api.provisioning import objects
from cagrpc.controllers.admission_checks.model import CONTENT, OWNED, REQUEST, Purpose, template_name
from cagrpc.controllers.admission_checks.pod_sets import PodSetPods
from cagrpc.controllers.provisioning.model import ProvisioningRequest


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
