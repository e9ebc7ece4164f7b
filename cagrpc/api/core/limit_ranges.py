"""LimitRanges: what the API server adds to the containers of a new pod, and which pods it refuses, as its admission
plug-in LimitRanger does (upstream: plugin/pkg/admission/limitranger). Limits of claims' storage are not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from cagrpc.api.core.resources import Amounts, amounts, limits_and_requests, of_containers, pod_level
from cagrpc.api.encoding.json_documents import Problems, mapping, members, object_key
from solver.model.quantities import format_quantity, parse_quantity

_QUANTITIES = ("min", "max", "default", "defaultRequest")
_Resources = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _LimitRangeItem:
    """What one item of a LimitRange allows a pod or a container."""

    of: str
    """pod or container."""
    least: Amounts
    most: Amounts
    ratios: Mapping[str, Fraction]
    """How many times its request a limit is at most, by resource."""


@dataclass(frozen=True, slots=True)
class LimitRange:
    key: str
    """Its namespace and name."""
    limits: _Resources
    """The limits of containers that have none, by resource."""
    requests: _Resources
    bounds: tuple[_LimitRangeItem, ...]


def read_limit_range(document: Mapping[str, Any], problems: Problems) -> LimitRange:
    """Read a v1.LimitRange in JSON shape, with what the API server defaults in it."""
    limits: dict[str, Any] = {}
    requests: dict[str, Any] = {}
    bounds = []
    for item, at in members(mapping(document, "spec", "", problems), "limits", "spec", problems):
        kind = item.get("type")
        if kind not in ("Container", "Pod"):
            continue
        valid = {name: amounts(item, name, at, problems) for name in _QUANTITIES}
        ratios = {}
        for resource, ratio in mapping(item, "maxLimitRequestRatio", at, problems).items():
            try:
                ratios[resource] = parse_quantity(ratio)
            except (ValueError, TypeError) as error:
                problems.append(f"{at}.maxLimitRequestRatio.{resource}: {error}")
        bounds.append(_LimitRangeItem(kind.lower(), valid["min"], valid["max"], ratios))
        if kind == "Container":
            said = {name: {key: item[name][key] for key in valid[name]} for name in _QUANTITIES}
            default = {**said["max"], **said["default"]}
            limits |= default
            requests |= {**said["min"], **default, **said["defaultRequest"]}
    return LimitRange(object_key(document), limits, requests, tuple(bounds))


def with_defaults(spec: Mapping[str, Any], ranges: tuple[LimitRange, ...]) -> dict[str, Any]:
    """Return a v1.PodSpec with the requests and limits that LimitRanges give to its containers."""
    found = dict(spec)
    for name in ("containers", "initContainers"):
        if isinstance(spec.get(name), list):
            found[name] = [_defaulted(each, ranges) for each in spec[name]]
    return found


def _defaulted(container: Any, ranges: tuple[LimitRange, ...]) -> Any:
    problems: Problems = []
    resources = mapping(container, "resources", "", problems) if isinstance(container, Mapping) else None
    limits, requests = (mapping(resources or {}, name, "", problems) for name in ("limits", "requests"))
    if resources is None or problems:
        return container  # what is malformed is told by who reads it
    requests = {**limits, **requests}  # a limit without a request is one, before anything is added
    for each in ranges:
        limits, requests = {**each.limits, **limits}, {**each.requests, **requests}
    return {**container, "resources": {**resources, "limits": limits, "requests": requests}}


def refusals(spec: Mapping[str, Any], path: str, ranges: tuple[LimitRange, ...]) -> Iterator[str]:
    """Yield why the API server refuses a pod with this v1.PodSpec, as it is `with_defaults`. What cannot be read is no
    reason; it is told by who reads it."""
    containers = [
        (at, *limits_and_requests(container, at, []))
        for name in ("containers", "initContainers")
        for container, at in members(spec, name, path)
    ]
    limits = of_containers(spec, path, [], lambda container, at: limits_and_requests(container, at, [])[0])
    requests = of_containers(spec, path, [], lambda container, at: limits_and_requests(container, at, [])[1])
    limits |= limits_and_requests(spec, path, [])[0]
    pod = (path, limits, {**requests, **pod_level(spec, path, [], requests)})
    for each in ranges:
        for bounds in each.bounds:
            for at, *found in containers if bounds.of == "container" else [pod]:
                for problem in (*_beyond(bounds, *found), *_apart(bounds, *found)):
                    yield f"{at}: {problem} per {bounds.of} (LimitRange {each.key})"


def _beyond(bounds: _LimitRangeItem, limits: Amounts, requests: Amounts) -> Iterator[str]:
    """Yield what is less than a minimum, or more than a maximum: of each resource the first that LimitRanger finds."""
    least = ("minimum", bounds.least, 1, (("request", requests), ("limit", limits)))
    most = ("maximum", bounds.most, -1, (("limit", limits), ("request", requests)))
    for word, bound, sign, both in (least, most):
        for resource, amount in bound.items():
            said = f"the {word} of {format_quantity(resource, amount)}"
            if resource not in both[0][1]:
                yield f"there is no {resource} {both[0][0]}, for {said}"
                continue
            for what, of in both:
                if sign * of.get(resource, amount) < sign * amount:
                    found = format_quantity(resource, of[resource])
                    yield f"the {resource} {what} of {found} is {'less' if sign > 0 else 'more'} than {said}"
                    break


def _apart(bounds: _LimitRangeItem, limits: Amounts, requests: Amounts) -> Iterator[str]:
    """Yield limits that are too many times the request."""
    for resource, ratio in bounds.ratios.items():
        limit, request = limits.get(resource, 0), requests.get(resource, 0)
        if not limit or not request:
            missing = "limit" if request else "request"
            yield f"there is no {resource} {missing}, for a limit of at most {float(ratio):g} times the request"
        elif limit > ratio * request:
            found = format_quantity(resource, limit), format_quantity(resource, request)
            yield f"the {resource} limit of {found[0]} is more than {float(ratio):g} times the request of {found[1]}"
