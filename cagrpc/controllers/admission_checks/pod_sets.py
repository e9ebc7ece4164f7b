"""The pods of a Workload that a request is for: pod sets that use managed resources, with what their ResourceFlavors
add, merged by the configuration's policy. Pure.

Source: Kueue's KEP-1136 (managedResources) and its API (podSetMergePolicy).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from cagrpc.api.encoding.json_documents import mapping, members
from cagrpc.api.kueue import IDENTICAL_TEMPLATES, SIMILAR_REQUIREMENTS, Flavor, KueueWorkload, RequestConfig
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
        if pods.count == 0 or not _managed(mapping(pods.template, "spec"), config.managed_resources):
            continue
        assignment = workload.assignments.get(pods.name)
        if assignment is None:
            return f"pod set {pods.name} has no assignment in status.admission"
        count = pods.count if assignment.count is None else assignment.count
        if count == 0:
            continue
        template = _flavored(pods.name, pods.template, assignment.flavors, flavors)
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
