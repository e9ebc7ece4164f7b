"""What an API server makes of an object before it keeps it: defaults, and what its admission adds to pods or refuses of
them. Objects of a cluster have been through it; those of files may not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from cagrpc.api.core.limit_ranges import LimitRange, read_limit_range, refusals, with_defaults
from cagrpc.api.core.nodes import READY
from cagrpc.api.core.runtime_classes import RuntimeClass, read_runtime_class, runtime_class_name, with_runtime_class
from cagrpc.api.encoding.json_documents import Problems, mapping, members
from cagrpc.api.files.documents import ManifestDocument
from cagrpc.errors import shown

_BUILT_IN_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_OF_THE_CLUSTER = (
    "Node", "Namespace", "PriorityClass", "RuntimeClass", "StorageClass", "PersistentVolume", "CSINode", "CSIDriver",
    "VolumeAttachment", "DeviceClass", "ResourceSlice", "CapacityQuota",
)  # fmt: skip
"""Kinds of objects without a namespace."""


class Admission:
    """Admits objects beside the PriorityClasses, RuntimeClasses and LimitRanges that it was given before. Why pods are
    refused is added to `problems`."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._limit_ranges: defaultdict[str, tuple[LimitRange, ...]] = defaultdict(tuple)
        """By namespace."""
        self._priorities = dict(_BUILT_IN_PRIORITIES)
        self._default_priority = 0
        self._unknown_priorities: dict[str, str] = {}
        """By PriorityClass that does not exist: an example of what names it."""
        self._runtime_classes: dict[str, RuntimeClass] = {}
        self._unknown_runtime_classes: dict[str, str] = {}
        """By RuntimeClass that does not exist: an example of what names it."""

    def add(self, document: ManifestDocument) -> Problems:
        """Add a PriorityClass, RuntimeClass or LimitRange; return what is wrong with it."""
        problems: Problems = []
        if document.kind == "LimitRange":
            self._limit_ranges[document.namespace] += (read_limit_range(document.body, problems),)
            return problems
        if document.kind == "RuntimeClass":
            self._runtime_classes[document.name] = read_runtime_class(document.body, problems)
            return problems
        value = document.body.get("value")
        if not isinstance(value, int):
            return [f"value: {shown(value)} is not a whole number"]
        self._priorities[document.name] = value
        if document.body.get("globalDefault") is True:
            self._default_priority = value
        return problems

    def admitted(self, document: ManifestDocument) -> dict[str, Any]:
        """Return an object other than a pod as it is kept. A Node that does not say how it is, is Ready."""
        namespace = "" if document.kind in _OF_THE_CLUSTER else document.namespace
        metadata = {**document.metadata, "name": document.name, "namespace": namespace}
        body = {**document.body, "metadata": metadata}
        if document.kind == "Node":
            status = mapping(document.body, "status")
            if not any(each.get("type") == READY for each, _ in members(status, "conditions")):
                conditions = [*(status.get("conditions") or ()), {"type": READY, "status": "True"}]
                body["status"] = {**status, "conditions": conditions}
        elif document.kind == "DaemonSet":
            template = mapping(document.spec, "template", "spec", [])
            admitted = {**template, "spec": self.admitted_spec(document, template, "spec.template")}
            body["spec"] = {**document.spec, "template": admitted}
        return body

    def admitted_spec(
        self, document: ManifestDocument, pod: Mapping[str, Any], path: str, *, is_kept: bool = False
    ) -> dict[str, Any]:
        """Return the v1.PodSpec of a pod or of the template at a path as it is kept; of a pod that a cluster has, it
        `is_kept`."""
        spec = mapping(pod, "spec")
        example = f"{document.namespace}/{document.name}"
        name = runtime_class_name(spec)
        if name in self._runtime_classes:
            spec = with_runtime_class(spec, self._runtime_classes[name])
        elif name and not is_kept:
            self._unknown_runtime_classes.setdefault(name, example)
        spec = {key: value for key, value in spec.items() if key != "runtimeClassName"}
        if not isinstance(spec.get("priority"), int):
            class_name = str(spec.pop("priorityClassName", "") or "")
            if class_name and class_name not in self._priorities:
                self._unknown_priorities.setdefault(class_name, example)
            spec["priority"] = self._priorities.get(class_name, 0) if class_name else self._default_priority
        ranges = () if is_kept else self._limit_ranges[document.namespace]
        if ranges:
            spec = with_defaults(spec, ranges)
            why = refusals(spec, f"{path}.spec".removeprefix("."), ranges)
            self._problems.extend(f"{document.place}: {each}" for each in why)
        return spec

    def warnings(self) -> Iterator[str]:
        for name, example in self._unknown_runtime_classes.items():
            yield (
                f"RuntimeClass {name} is not in the files; overhead and places that it gives its pods, for example"
                f" {example}, were left out"
            )
        for name, example in self._unknown_priorities.items():
            yield f"PriorityClass {name} is not in the files; its pods, for example {example}, were given priority 0"
