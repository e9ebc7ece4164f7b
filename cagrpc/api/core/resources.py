"""A pod's effective requests, by Kubernetes' rules for containers, init containers, sidecars, pod-level resources,
overhead and resizes in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cagrpc.api.encoding.json_documents import Problems, mapping, members
from solver.model import CPU, MEMORY, PODS
from solver.model.quantities import amount, format_quantity
from solver.model.validation import MAX_AMOUNT

Amounts = dict[str, int]

HUGE_PAGES = "hugepages-"
"""How the names of huge pages begin; the size of a page follows."""


def amounts(
    document: Mapping[str, Any], field: str, path: str, problems: Problems, *, round_up: bool = True
) -> Amounts:
    """Return `document[field]`, a mapping of resource to quantity, in the planner's units: rounded up for requests,
    down for capacity."""
    found = {}
    for resource, quantity in mapping(document, field, path, problems).items():
        try:
            found[str(resource)] = amount(str(resource), quantity, round_up=round_up)
        except (ValueError, TypeError) as error:
            problems.append(f"{path}.{field}.{resource}: {error}".removeprefix("."))
    return found


def effective_requests(
    spec: Mapping[str, Any], path: str, problems: Problems, status: Mapping[str, Any] | None = None
) -> tuple[tuple[str, int], ...]:
    """Return the effective requests of a v1.PodSpec (in JSON shape), sorted by resource, zeros left out, as the
    kube-scheduler counts them on a node (component-helpers' `resource.PodRequests`).

    Per resource that is the larger of the sum of containers and sidecars, and of each init container with the sidecars
    started before it (KEP-753); a pod-level request of cpu, memory or huge pages replaces that (KEP-2837); overhead is
    added. A limit without a request is the request, as the API server defaults it. With the pod's `status` a container
    that is resized in place counts with the largest of what is asked, allocated and set, and without what is asked
    where its node can never give it (KEP-1287). Amounts are capped at `MAX_AMOUNT`, so that one oversized pod does not
    fail the planning of others.
    """
    resize = _Resize(status or {}, problems)

    def asked(container: Mapping[str, Any], at: str) -> Amounts:
        runs_once = "initContainers" in at and container.get("restartPolicy") != "Always"
        requests = _requests(container, at, problems)
        return requests if runs_once else resize.of(container, requests)

    together = of_containers(spec, path, problems, asked)
    together.update(resize.of_pod(pod_level(spec, path, problems, together)))
    _add(together, amounts(spec, "overhead", path, problems))
    together.pop(PODS, None)  # every pod takes one; the solver counts it
    return tuple(sorted((resource, min(asked, MAX_AMOUNT)) for resource, asked in together.items() if asked))


def of_containers(
    spec: Mapping[str, Any], path: str, problems: Problems, of: Callable[[Mapping[str, Any], str], Amounts]
) -> Amounts:
    """Return what the containers of a v1.PodSpec have at most at a time, of what each has `of` them, at its path."""
    together: Amounts = {}
    for container, at in members(spec, "containers", path, problems):
        _add(together, of(container, at))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container, at in members(spec, "initContainers", path, problems):
        mine = dict(of(container, at))
        if container.get("restartPolicy") == "Always":
            _add(sidecars, mine)
            mine = sidecars
        else:
            _add(mine, sidecars)
        _raise_to(peak, mine)
    _add(together, sidecars)
    _raise_to(together, peak)
    return together


class _Resize:
    """What a v1.PodStatus (in JSON shape) says of requests that are changed in place."""

    def __init__(self, status: Mapping[str, Any], problems: Problems) -> None:
        self._status, self._problems = status, problems
        self._of = {
            str(each.get("name")): (each, at)
            for field in ("containerStatuses", "initContainerStatuses")
            for each, at in members(status, field, "status", problems)
        }
        pending = (each for each, _ in members(status, "conditions", "status", problems))
        said = next((each for each in pending if each.get("type") == "PodResizePending"), {})
        self._infeasible = said.get("reason") == "Infeasible"

    def of(self, container: Mapping[str, Any], asked: Amounts) -> Amounts:
        """Return what a container or sidecar counts."""
        return self._largest(asked, *self._of.get(str(container.get("name")), ({}, "")))

    def of_pod(self, asked: Amounts) -> Amounts:
        """Return what the pod-level requests count."""
        counted = self._largest(asked, self._status, "status")
        return {resource: counted.get(resource, 0) for resource in asked}

    def _largest(self, asked: Amounts, observed: Mapping[str, Any], path: str) -> Amounts:
        if observed.get("resources") is None:
            return asked
        resources = mapping(observed, "resources", path, self._problems)
        counted = {} if self._infeasible else dict(asked)
        _raise_to(counted, amounts(resources, "requests", f"{path}.resources", self._problems))
        _raise_to(counted, amounts(observed, "allocatedResources", path, self._problems))
        return counted


def _requests(container: Mapping[str, Any], at: str, problems: Problems) -> Amounts:
    limits, requests = limits_and_requests(container, at, problems)
    return {**limits, **requests}


def limits_and_requests(of: Mapping[str, Any], at: str, problems: Problems) -> tuple[Amounts, Amounts]:
    """Return those of a container, or of a pod as a whole."""
    resources, at = mapping(of, "resources", at, problems), f"{at}.resources".removeprefix(".")
    limits, requests = amounts(resources, "limits", at, problems), amounts(resources, "requests", at, problems)
    for resource, asked in requests.items():
        if asked > limits.get(resource, asked):
            found = format_quantity(resource, asked), format_quantity(resource, limits[resource])
            problems.append(f"{at}.requests.{resource}: {found[0]} is more than the limit of {found[1]}")
    return limits, requests


def pod_level(spec: Mapping[str, Any], path: str, problems: Problems, of_containers: Amounts) -> Amounts:
    """Return the requests of the pod as a whole, of the resources that can be requested so. A limit is the request
    where there is none, as the API server defaults it; of cpu and memory only where no container requests any."""
    limits, requests = limits_and_requests(spec, path, problems)
    defaulted = {name: limit for name, limit in limits.items() if name not in of_containers or _is_huge_pages(name)}
    return {
        name: asked
        for name, asked in {**defaulted, **requests}.items()
        if name in (CPU, MEMORY) or _is_huge_pages(name)
    }


def _is_huge_pages(resource: str) -> bool:
    return resource.startswith(HUGE_PAGES)


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for resource, asked in more.items():
        total[resource] = total.get(resource, 0) + asked


def _raise_to(total: Amounts, least: Mapping[str, int]) -> None:
    for resource, asked in least.items():
        total[resource] = max(total.get(resource, 0), asked)
