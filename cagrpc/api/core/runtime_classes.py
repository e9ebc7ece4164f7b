"""RuntimeClasses, and what the API server's admission makes of a pod that names one: its overhead, and where it may run
(upstream: plugin/pkg/admission/runtimeclass). Pods of a cluster have it already; templates and files may not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cagrpc.api.core.resources import amounts
from cagrpc.api.encoding.json_documents import Problems, mapping, members, strings


@dataclass(frozen=True, slots=True)
class RuntimeClass:
    """A node.k8s.io/v1 RuntimeClass, in JSON shape."""

    overhead: Mapping[str, Any] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()


def read_runtime_class(document: Mapping[str, Any], problems: Problems) -> RuntimeClass:
    """Read a RuntimeClass in JSON shape."""
    overhead = mapping(document, "overhead", "", problems)
    amounts(overhead, "podFixed", "overhead", problems)  # for what is wrong with it
    scheduling = mapping(document, "scheduling", "", problems)
    return RuntimeClass(
        dict(mapping(overhead, "podFixed", "overhead", problems)),
        strings(scheduling, "nodeSelector", "scheduling", problems),
        tuple(toleration for toleration, _ in members(scheduling, "tolerations", "scheduling", problems)),
    )


def runtime_class_name(spec: Mapping[str, Any]) -> str:
    """Return the RuntimeClass that a v1.PodSpec (in JSON shape) names; empty for none."""
    return str(spec.get("runtimeClassName") or "")


def with_runtime_class(spec: Mapping[str, Any], found: RuntimeClass) -> Mapping[str, Any]:
    """Return a v1.PodSpec (in JSON shape) as admission leaves it, once or again. Where the two contradict each other,
    which admission refuses, the class counts: nothing is planned onto nodes that it excludes."""
    merged = {
        "overhead": {**mapping(spec, "overhead"), **found.overhead},
        "nodeSelector": {**mapping(spec, "nodeSelector"), **found.node_selector},
        "tolerations": [*(each for each, _ in members(spec, "tolerations")), *found.tolerations],
    }
    return {**spec, **{name: value for name, value in merged.items() if value}}
