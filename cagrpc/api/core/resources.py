"""A pod's effective requests, by Kubernetes' rules for containers, init containers, sidecars, pod-level resources and
overhead; and helpers that read JSON-shaped documents and report each problem with its path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from solver.model import PODS
from solver.model.quantities import amount
from solver.model.validation_specs import MAX_AMOUNT

Problems = list[str]
"""Messages for people, each beginning with the path of the invalid field."""

Amounts = dict[str, int]


def mapping(document: Mapping[str, Any], field: str, path: str, problems: Problems) -> Mapping[str, Any]:
    """Return the mapping `document[field]`; empty where absent or null. Anything else is added to `problems`."""
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
    """Yield each mapping of the list `document[field]` with its path; nothing where absent or null."""
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
    """Return `document[field]`, a mapping of text to text such as labels."""
    found = {}
    for key, value in mapping(document, field, path, problems).items():
        if isinstance(key, str) and isinstance(value, str):
            found[key] = value
        else:
            problems.append(f"{path}.{field}.{key}: expected text, found {_kind(value)}; quote it".removeprefix("."))
    return found


def texts(document: Mapping[str, Any], field: str, path: str, problems: Problems) -> tuple[str, ...]:
    """Return `document[field]`, a list of texts; empty where absent or null."""
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
    """Return `document[name]`, one of `choices`; where it is absent or invalid, `default` or else the first choice."""
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
    """Return the whole number `document[name]`; `default` where it is invalid, or absent and not required."""
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
    """Return `document[field]`, a mapping of resource to quantity, in the planner's units: rounded up for requests,
    down for capacity."""
    found = {}
    for resource, quantity in mapping(document, field, path, problems).items():
        try:
            found[str(resource)] = amount(str(resource), quantity, round_up=round_up)
        except (ValueError, TypeError) as error:
            problems.append(f"{path}.{field}.{resource}: {error}".removeprefix("."))
    return found


def effective_requests(spec: Mapping[str, Any], path: str, problems: Problems) -> tuple[tuple[str, int], ...]:
    """Return the effective requests of a v1.PodSpec (in JSON shape), sorted by resource, zeros left out.

    Per resource that is the larger of the sum of containers and sidecars, and of each init container with the sidecars
    started before it; a pod-level request replaces that; overhead is added. A limit without a request is the request,
    as the API server defaults it. Source: component-helpers' `resource.PodRequests`, KEP-753 (sidecars), KEP-2837
    (pod-level resources). Amounts are capped at `MAX_AMOUNT`, so that one oversized pod does not fail the planning of
    others.
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
