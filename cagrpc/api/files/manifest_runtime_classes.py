"""RuntimeClasses of an offline problem, and the pods of files as admission would leave them. What admission does is in
`cagrpc.api.core.runtime_classes`, files are read in `manifests`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cagrpc.api.core.resources import Problems
from cagrpc.api.core.runtime_classes import (
    RuntimeClass,
    read_runtime_class,
    runtime_class_name,
    with_runtime_class,
)
from cagrpc.api.files.documents import ManifestDocument


@dataclass
class RuntimeClassesOfFiles:
    """The RuntimeClasses of all files. Invalid fields are added to `problems`."""

    problems: Problems
    _of: dict[str, RuntimeClass] = field(default_factory=dict)
    _unknown: dict[str, str] = field(default_factory=dict)

    def add(self, document: ManifestDocument) -> None:
        here: Problems = []
        self._of[document.name] = read_runtime_class(document.body, here)
        self.problems.extend(f"{document.place}: {problem}" for problem in here)

    def admitted(self, document: ManifestDocument, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the v1.PodSpec as admission leaves it. A pod of a cluster is so already."""
        name = runtime_class_name(spec)
        if not name:
            return spec
        found = self._of.get(name)
        if found is not None:
            return with_runtime_class(spec, found)
        if not (document.kind == "Pod" and document.metadata.get("uid")):
            self._unknown.setdefault(name, f"{document.namespace}/{document.name}")
        return spec

    def warnings(self) -> Iterator[str]:
        for name, example in self._unknown.items():
            yield (
                f"RuntimeClass {name} is not in the files; overhead and places that it gives its pods, for example"
                f" {example}, were left out"
            )
