"""What one pod takes from a node, by Kubernetes' rules for containers, init containers, sidecars, pod-level resources
and overhead; and the small helpers that read a JSON-shaped document and say where it is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from solver.model import PODS
from solver.model.quantities import amount
from solver.model.validation_specs import MAX_AMOUNT

Problems = list[str]
"""Sentences for people, each beginning with the path of what is wrong."""

Amounts = dict[str, int]


def mapping(document: Mapping[str, Any], field: str, path: str, problems: Problems) -> Mapping[str, Any]:
    """`document[field]` as a mapping; absent and null are an empty one, anything else is a problem."""
    value = document.get(field)
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    problems.append(f"{path}.{field}: expected a mapping, found {_kind(value)}".removeprefix("."))
    return {}


def members(
    document: Mapping[str, Any], field: str, path: str, problems: Problems
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Each mapping of the list `document[field]`, with its path; absent and null are an empty list."""
    value = document.get(field)
    if value is None:
        return
    at = f"{path}.{field}".removeprefix(".")
    if not isinstance(value, list):
        problems.append(f"{at}: expected a list, found {_kind(value)}")
        return
    for index, item in enumerate(value):
        if isinstance(item, Mapping):
            yield item, f"{at}[{index}]"
        else:
            problems.append(f"{at}[{index}]: expected a mapping, found {_kind(item)}")


def strings(document: Mapping[str, Any], field: str, path: str, problems: Problems) -> dict[str, str]:
    """`document[field]`, a mapping of text to text such as labels."""
    found = {}
    for key, value in mapping(document, field, path, problems).items():
        if isinstance(key, str) and isinstance(value, str):
            found[key] = value
        else:
            problems.append(f"{path}.{field}.{key}: expected text, found {_kind(value)}; quote it".removeprefix("."))
    return found


def texts(document: Mapping[str, Any], field: str, path: str, problems: Problems) -> tuple[str, ...]:
    """`document[field]`, a list of texts; absent and null are an empty one."""
    value = document.get(field)
    if value is None:
        return ()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    problems.append(f"{path}.{field}: expected a list of texts, found {value!r:.60}; quote numbers".removeprefix("."))
    return ()


def one_of(
    document: Mapping[str, Any],
    name: str,
    path: str,
    problems: Problems,
    choices: tuple[str, ...],
    default: str | None = None,
) -> str:
    """`document[name]`, one of `choices`: the first of them, or `default`, where it is absent or told as a problem."""
    value = document.get(name)
    if value in choices:
        return str(value)
    if value or default is not None:
        problems.append(f"{path}.{name}: {value!r:.40} is not one of {', '.join(choices)}")
    return choices[0] if default is None else default


def whole(
    document: Mapping[str, Any],
    name: str,
    path: str,
    problems: Problems,
    least: int,
    most: int,
    default: int = 0,
) -> int:
    """`document[name]`, a whole number; `default` where it is absent and may be, or told as a problem."""
    value = document.get(name)
    if value is None and least <= default:
        return default
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    problems.append(f"{path}.{name}: {value!r:.40} is not a whole number from {least} to {most}")
    return default


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"{value!r:.40}"


def amounts(
    document: Mapping[str, Any], field: str, path: str, problems: Problems, *, round_up: bool = True
) -> Amounts:
    """`document[field]`, a mapping of resource to quantity, in the planner's units; rounded up (what is requested) or
    down (what is offered)."""
    found = {}
    for resource, quantity in mapping(document, field, path, problems).items():
        try:
            found[str(resource)] = amount(str(resource), quantity, round_up=round_up)
        except (ValueError, TypeError) as error:
            problems.append(f"{path}.{field}.{resource}: {error}".removeprefix("."))
    return found


def effective_requests(spec: Mapping[str, Any], path: str, problems: Problems) -> tuple[tuple[str, int], ...]:
    """What a pod with this v1.PodSpec (JSON shape) takes from a node, sorted by resource, zeros left out.

    The larger of what runs together in the end (containers and sidecars) and of each init container with the sidecars
    started before it; where the pod as a whole states a request, that one instead; plus overhead. A limit without a
    request is the request, as the API server defaults it. Source: component-helpers' `resource.PodRequests`, KEP-753
    (sidecars), KEP-2837 (pod-level resources). What is more than planning can count, or any node have, is the most that
    it can: one pod that no node takes must not be in the way of all others.
    """
    together: Amounts = {}
    for container, at in members(spec, "containers", path, problems):
        _add(together, _requests(container, at, problems))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container, at in members(spec, "initContainers", path, problems):
        requests = _requests(container, at, problems)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, requests)
            requests = sidecars
        else:
            _add(requests, sidecars)
        _raise_to(peak, requests)
    _add(together, sidecars)
    _raise_to(together, peak)
    for resource, asked in _pod_level(spec, path, problems, together).items():
        together[resource] = asked
    _add(together, amounts(spec, "overhead", path, problems))
    together.pop(PODS, None)  # every pod takes one; the solver counts it
    return tuple(sorted((resource, min(asked, MAX_AMOUNT)) for resource, asked in together.items() if asked))


def _requests(container: Mapping[str, Any], path: str, problems: Problems) -> Amounts:
    resources, at = mapping(container, "resources", path, problems), f"{path}.resources"
    return {**amounts(resources, "limits", at, problems), **amounts(resources, "requests", at, problems)}


def _pod_level(spec: Mapping[str, Any], path: str, problems: Problems, of_containers: Amounts) -> Amounts:
    resources, at = mapping(spec, "resources", path, problems), f"{path}.resources"
    limits = amounts(resources, "limits", at, problems)
    defaulted = {resource: limit for resource, limit in limits.items() if resource not in of_containers}
    return {**defaulted, **amounts(resources, "requests", at, problems)}


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for resource, asked in more.items():
        total[resource] = total.get(resource, 0) + asked


def _raise_to(total: Amounts, least: Mapping[str, int]) -> None:
    for resource, asked in least.items():
        total[resource] = max(total.get(resource, 0), asked)
