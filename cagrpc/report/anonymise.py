"""A report without the texts of its cluster: each is replaced, the same text by the same word everywhere. What
everybody knows stays: instance types of the embedded catalogue, capacity types, and Kubernetes' own resources."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from cagrpc.fleet.catalogue import NVIDIA_GPU, embedded_catalogue
from cagrpc.report.model import ClusterName, NameKind, Report
from solver.model import CPU, MEMORY, NODES, PODS

T = TypeVar("T")

_CAPACITY_TYPES = ("on-demand", "spot", "reserved")
_RESOURCES = (CPU, MEMORY, NODES, PODS, "ephemeral-storage", NVIDIA_GPU)


def anonymised(report: Report) -> Report:
    """Return the report with other names, and without warnings, which quote objects."""
    replaced: Report = _replaced(report, _Names())
    return replace(replaced, anonymised=True, warnings=(), left_out_warnings=len(report.warnings))


class _Names:
    """Words by text, numbered by kind in the order of the report."""

    def __init__(self) -> None:
        self._known: dict[ClusterName, ClusterName] = {}
        self._counts: Counter[NameKind] = Counter()

    def of(self, name: ClusterName) -> ClusterName:
        if not name.text or _is_public(name):
            return name
        if name not in self._known:
            self._counts[name.kind] += 1
            self._known[name] = ClusterName(name.kind, f"{name.kind}-{self._counts[name.kind]}")
        return self._known[name]


def _is_public(name: ClusterName) -> bool:
    match name.kind:
        case NameKind.INSTANCE_TYPE:
            return name.text in embedded_catalogue().instance_types
        case NameKind.CAPACITY_TYPE:
            return name.text in _CAPACITY_TYPES
        case NameKind.RESOURCE:
            return name.text in _RESOURCES
        case _:
            return False


def _replaced(value: T, names: _Names) -> T:
    found: Any = value
    if isinstance(value, ClusterName):
        found = names.of(value)
    elif isinstance(value, tuple):
        found = tuple(_replaced(each, names) for each in value)
    elif is_dataclass(value) and not isinstance(value, type):
        found = replace(value, **{each.name: _replaced(getattr(value, each.name), names) for each in fields(value)})
    return found  # type: ignore[no-any-return]  # of the same type as the value
