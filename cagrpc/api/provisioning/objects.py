"""ProvisioningRequests, ProvisioningClasses and PodTemplates in Kubernetes' JSON shape, to plain values and back. How
requests are handled is in `cagrpc.controllers.provisioning`.

Source: the proposal "Provisioning Request CRD", and CA's API autoscaling.x-k8s.io/v1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cagrpc.api.core.constraints import Surroundings
from cagrpc.api.core.pods import NO_CLAIMS, PodClaims, pod_claims, pod_spec
from cagrpc.api.core.selectors import DEFAULT_NAMESPACE, PodIdentity
from cagrpc.api.core.topology import as_requested, topology_request
from cagrpc.api.core.volumes import NO_VOLUMES, PodVolumes, pod_volumes
from cagrpc.api.encoding.json_documents import (
    Problems,
    epoch_seconds,
    mapping,
    members,
    one_of,
    strings,
    timestamp,
    whole,
)
from cagrpc.errors import InvalidInput, in_one_line
from solver.model import PodSpec

API_VERSION, KIND = "autoscaling.x-k8s.io/v1", "ProvisioningRequest"
REQUESTS = f"/apis/{API_VERSION}/provisioningrequests"
"""The collection of all namespaces."""
CLASSES = "/apis/cagrpc.io/v1alpha1/provisioningclasses"
POD_TEMPLATES = "/api/v1/podtemplates"

BEHAVIOURS = ("check-capacity", "atomic-scale-up")
"""Values of a ProvisioningClass's field `behaviour`."""

MOST_POD_SETS = 32
MOST_PODS = 16_384
"""The largest count of one pod set. cagrpc's definition of the kind enforces it; CA's does not."""

_LONGEST_REASON = 1024
_LONGEST_MESSAGE = 32_768
_LONGEST_DETAIL = 32_768
_MOST_DETAILS = 64


def request_path(namespace: str, name: str, subresource: str = "") -> str:
    """Return the path of a request, or of its subresource such as `status`."""
    path = f"/apis/{API_VERSION}/namespaces/{namespace}/provisioningrequests/{name}"
    return f"{path}/{subresource}" if subresource else path


def pod_sets(spec: Mapping[str, Any], problems: Problems) -> tuple[tuple[str, int], ...]:
    """Return the names of PodTemplates in a request's `spec.podSets`, each with its count of pods. Invalid ones, which
    the API server may have accepted, are left out and added to `problems` with their paths."""
    before = len(problems)
    found = list(members(spec, "podSets", "spec", problems))
    if len(problems) == before and not 1 <= len(found) <= MOST_POD_SETS:
        problems.append(f"spec.podSets: has {len(found)} pod sets; a request has 1 to {MOST_POD_SETS}")
        found = found[:MOST_POD_SETS]
    read = []
    for pod_set, path in found:
        count = whole(pod_set, "count", path, problems, 1, MOST_PODS)
        name = mapping(pod_set, "podTemplateRef", path, problems).get("name")
        if not name:
            problems.append(f"{path}.podTemplateRef.name: missing; write the name of a PodTemplate")
        elif count:
            read.append((str(name), count))
    return tuple(read)


class Condition(NamedTuple):
    """A metav1.Condition."""

    type: str
    status: bool
    """Whether its status is `True`."""
    reason: str
    message: str
    since_seconds: float
    """The time of the last transition of `status`, since the epoch."""


def conditions(status: Mapping[str, Any]) -> tuple[Condition, ...]:
    """Return the readable conditions of `status.conditions`."""
    return tuple(
        Condition(
            str(found["type"]),
            found.get("status") == "True",
            str(found.get("reason") or ""),
            str(found.get("message") or ""),
            float(epoch_seconds(found.get("lastTransitionTime"))),
        )
        for found, _ in members(status, "conditions", "status", [])
        if found.get("type")
    )


def status_patch(
    conditions: Iterable[Condition],
    details: Mapping[str, str],
    *,
    others: Iterable[Mapping[str, Any]] = (),
    details_before: Iterable[str] = (),
    resource_version: str = "",
    generation: int = 0,
) -> dict[str, Any]:
    """Return a merge patch of the subresource `status` that sets all of its conditions and details.

    `others` are conditions that remain as they are. `details_before` are the keys that exist now; those not in
    `details` are removed. With a resource version the server refuses the patch (a conflict) if the object has changed
    since. Texts are cut to the server's limits. Raises InvalidInput for too many details.
    """
    if len(details) > _MOST_DETAILS:
        raise InvalidInput(f"{len(details)} details are too many for a {KIND}; it has {_MOST_DETAILS} at most")
    written: dict[str, str | None] = dict.fromkeys(sorted(set(details_before) - set(details)))
    written.update((key, cut(details[key], _LONGEST_DETAIL)) for key in sorted(details))
    ours = (condition_body(each, generation) for each in conditions)
    status = {"conditions": [*map(dict, others), *ours], "provisioningClassDetails": written}
    metadata = {"metadata": {"resourceVersion": resource_version}} if resource_version else {}
    return {**metadata, "status": status}


def condition_body(parts: Condition, generation: int = 0) -> dict[str, Any]:
    """Return a metav1.Condition, its texts cut to the server's limits."""
    observed = {"observedGeneration": generation} if generation else {}
    return {
        "type": parts.type,
        "status": "True" if parts.status else "False",
        "reason": cut(parts.reason, _LONGEST_REASON),
        "message": cut(parts.message, _LONGEST_MESSAGE),
        "lastTransitionTime": timestamp(parts.since_seconds),
        **observed,
    }


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


@dataclass(frozen=True, slots=True)
class TemplatePod:
    """A pod of a PodTemplate, as planning reads it."""

    namespace: str
    labels: tuple[tuple[str, str], ...]
    """Sorted by key."""
    spec: PodSpec
    """The spec without namespace and labels."""
    priority_class: str = ""
    """A priority in the template itself is ignored, because no admission has validated it."""
    name: str = ""
    """The template's."""
    volumes: PodVolumes = NO_VOLUMES
    claims: PodClaims = NO_CLAIMS
    slices: tuple[str, int] | None = None
    """The topology key of which each slice of its pods is to be in one domain, and how many pods a slice has."""

    @property
    def identity(self) -> PodIdentity:
        return PodIdentity(self.namespace, dict(self.labels))


def template_pod(document: Mapping[str, Any]) -> TemplatePod:
    """Read a v1.PodTemplate. Raises InvalidInput with every invalid field and its path."""
    problems: Problems = []
    namespace = str(mapping(document, "metadata", "", problems).get("namespace") or DEFAULT_NAMESPACE)
    template = mapping(document, "template", "", problems)
    labels = strings(mapping(template, "metadata", "template", problems), "labels", "template.metadata", problems)
    spec = mapping(template, "spec", "template", problems)
    if not (spec.get("containers") or problems):
        problems.append("template.spec.containers: missing; a pod has at least one container")
    converted = pod_spec(spec, "template.spec", problems, Surroundings(PodIdentity(namespace, labels)))
    name = str(mapping(document, "metadata", "", problems).get("name") or "")
    volumes = pod_volumes(spec, f"{name}-*", "template.spec", problems)  # its pods have names of their own
    claims = pod_claims({"spec": spec}, problems)
    annotations = strings(mapping(template, "metadata", "template", []), "annotations", "template.metadata", problems)
    asked = topology_request(annotations, "template", problems)
    if asked is not None:
        together = replace(asked, slice_required="", slice_size=0)  # its pods are told apart where they are counted
        converted, labels = as_requested(converted, labels, f"PodTemplate {namespace}/{name}", together)
    if problems:
        raise InvalidInput(in_one_line(problems))
    return TemplatePod(
        namespace,
        tuple(sorted(labels.items())),
        converted,
        str(spec.get("priorityClassName") or ""),
        name,
        volumes,
        claims,
        (asked.slice_required, asked.slice_size) if asked is not None and asked.slice_required else None,
    )


def provisioning_class(document: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the behaviour and the preset parameters of a ProvisioningClass. Raises InvalidInput for invalid fields,
    which the API server normally refuses."""
    problems: Problems = []
    spec = mapping(document, "spec", "", problems)
    behaviour = one_of(spec, "behaviour", "spec", problems, BEHAVIOURS, default="")
    parameters = strings(spec, "parameters", "spec", problems)
    if problems:
        raise InvalidInput(in_one_line(problems))
    return behaviour, parameters
