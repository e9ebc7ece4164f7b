"""What pods and templates are read with beside themselves: the labels of Namespaces, and RuntimeClasses. When these
change, whoever was read with them is read again (`references`). Filled under the view's lock; readers in other threads
see a whole value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cagrpc.api.core.resources import Problems, mapping
from cagrpc.api.core.runtime_classes import RuntimeClass, read_runtime_class, runtime_class_name, with_runtime_class
from cagrpc.api.core.selectors import Namespaces
from cagrpc.api.encoding.messages import packed_known, parse, plain
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.view.objects import Named
from cagrpc.cluster.view.references import Reference, References
from cagrpc.errors import InvalidInput
from solver.model import Labels

NAMESPACES, RUNTIME_CLASSES = "/api/v1/namespaces", "/apis/node.k8s.io/v1/runtimeclasses"
OF_NAMESPACES: Reference = ("namespaces", "")
OF_RUNTIME_CLASSES: Reference = ("runtime classes", "")


@dataclass(frozen=True, slots=True)
class ObservedNamespace:
    labels: Labels = field(default_factory=dict)
    ends: bool = False
    """Whether it is being deleted: no pods can be created there."""


def read_namespace(data: bytes) -> Named[ObservedNamespace]:
    """Decode a Namespace."""
    metadata = parse(kubernetes_pb2.Namespace, data).metadata
    labels = {key: metadata.labels[key] for key in metadata.labels}
    return Named(metadata.name, ObservedNamespace(labels, metadata.HasField("deletionTimestamp")))


def runtime_class(document: dict[str, Any]) -> Named[RuntimeClass]:
    """Raises InvalidInput for an invalid RuntimeClass."""
    problems: Problems = []
    name = str(mapping(document, "metadata", "", problems).get("name") or "")
    found = read_runtime_class(document, problems)
    if problems:
        raise InvalidInput(f"RuntimeClass {name}: {'; '.join(problems)}")
    return Named(name, found)


class ReadingContext:
    def __init__(self, references: References) -> None:
        self._references = references
        self._labels: dict[str, Labels] = {}
        self._listed = False
        self._namespaces: Namespaces | None = Namespaces()
        self._runtime_classes: dict[str, RuntimeClass] = {}

    def namespaces(self) -> Namespaces:
        """Return the Namespaces that are known; the same value until one changes."""
        found = self._namespaces
        if found is None:
            labels = dict(self._labels)
            found = self._namespaces = Namespaces(labels, frozenset(labels) if self._listed else None)
        return found

    def put_namespace(self, name: str, found: ObservedNamespace | None) -> None:
        """Set a Namespace; None removes it."""
        labels = None if found is None else found.labels
        if self._labels.get(name) == labels:
            return
        if labels is None:
            del self._labels[name]
        else:
            self._labels[name] = labels
        self._changed()

    def namespaces_listed(self) -> None:
        """From now on the Namespaces that are known are all."""
        if not self._listed:
            self._listed = True
            self._changed()

    def _changed(self) -> None:
        self._namespaces = None
        self._references.changed(OF_NAMESPACES)

    def put_runtime_class(self, name: str, found: RuntimeClass | None) -> None:
        """Set a RuntimeClass; None removes it."""
        if self._runtime_classes.get(name) == found:
            return
        if found is None:
            del self._runtime_classes[name]
        else:
            self._runtime_classes[name] = found
        self._references.changed(OF_RUNTIME_CLASSES)

    def admitted(self, spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the v1.PodSpec (in JSON shape) of a template as admission leaves it; None where it refuses the pod,
        for a RuntimeClass that there is not."""
        name = runtime_class_name(spec)
        if not name:
            return spec
        found = self._runtime_classes.get(name)
        return None if found is None else with_runtime_class(spec, found)

    def admit(self, pod: kubernetes_pb2.Pod) -> bool:
        """Change a template's pod as admission does; return whether it takes the pod."""
        if not pod.spec.runtimeClassName:
            return True
        spec = self.admitted(plain(pod.spec))
        if spec is None:
            return False
        pod.spec.CopyFrom(packed_known(kubernetes_pb2.PodSpec, spec))
        return True


class NamespaceTable:
    """The table of Namespaces: who else is told are `ending` of those being deleted."""

    def __init__(self, context: ReadingContext, ending: Any = None) -> None:
        """`ending` is called with the name of a namespace that is being deleted ("" for one that is not), before and
        after each change."""
        self._context = context
        self._ending = ending
        self._of: dict[str, ObservedNamespace] = {}

    def keys(self) -> list[str]:
        return list(self._of)

    def put(self, named: Named[ObservedNamespace]) -> None:
        before = self._of.get(named.key)
        self._of[named.key] = named.value
        self._context.put_namespace(named.key, named.value)
        self._tell(named.key, before, named.value)

    def drop(self, name: str) -> None:
        before = self._of.pop(name, None)
        self._context.put_namespace(name, None)
        self._tell(name, before, None)

    def _tell(self, name: str, before: ObservedNamespace | None, after: ObservedNamespace | None) -> None:
        if self._ending is not None:
            was, now = ((None if each is None else name if each.ends else "") for each in (before, after))
            self._ending(was, now)


class RuntimeClassTable:
    """The table of RuntimeClasses."""

    def __init__(self, context: ReadingContext) -> None:
        self._context = context
        self._names: set[str] = set()

    def keys(self) -> list[str]:
        return list(self._names)

    def put(self, named: Named[RuntimeClass]) -> None:
        self._names.add(named.key)
        self._context.put_runtime_class(named.key, named.value)

    def drop(self, name: str) -> None:
        self._names.discard(name)
        self._context.put_runtime_class(name, None)
