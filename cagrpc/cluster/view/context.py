"""What pods and templates are read with beside themselves: the labels of Namespaces, and RuntimeClasses. When these
change, whoever was read with them is read again (`references`). Filled under the view's lock; readers in other threads
see the RuntimeClasses alone."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cagrpc.api.core.runtime_classes import RuntimeClass, runtime_class_name, with_runtime_class
from cagrpc.api.core.selectors import (
    NAMESPACE_NAME,
    Conditions,
    KnownNamespaces,
    named_and_matching,
    named_namespaces,
)
from cagrpc.api.encoding.messages import known_to_message, message_to_dict, parse
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.view.objects import Named
from cagrpc.cluster.view.references import Reference, References
from cagrpc.cluster.view.sinks import Values
from solver.model import Labels, Operator, Requirement
from solver.model.eligibility import matches_requirement

K = TypeVar("K", bound=Hashable)

NAMESPACES, RUNTIME_CLASSES = "/api/v1/namespaces", "/apis/node.k8s.io/v1/runtimeclasses"
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


class _ByLabel:
    """Namespaces by their labels; by that with their name, whatever it says, too."""

    def __init__(self) -> None:
        self.all: dict[str, Labels] = {}
        self._with_label: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._with_key: defaultdict[str, set[str]] = defaultdict(set)
        self._sorted: list[str] | None = []

    def put(self, name: str, labels: Labels | None) -> None:
        """Set the labels of a namespace; None removes it."""
        for label in self.all.pop(name, {}).items():
            _discard(self._with_label, label, name)
            _discard(self._with_key, label[0], name)
        self._sorted = None
        if labels is not None:
            self.all[name] = {**labels, NAMESPACE_NAME: name}
            for label in self.all[name].items():
                self._with_label[label].add(name)
                self._with_key[label[0]].add(name)

    def meeting(self, conditions: Conditions) -> tuple[str, ...]:
        """Return those that meet the conditions, sorted."""
        wanted = [each for each in conditions if each.operator in (Operator.IN, Operator.EXISTS)]
        sets = sorted((self._having(each) for each in wanted), key=len)
        found: AbstractSet[str] = set.intersection(*sets) if sets else self.all.keys()
        unwanted = [each for each in conditions if each.operator in (Operator.NOT_IN, Operator.DOES_NOT_EXIST)]
        for each in unwanted:
            found = found - self._having(each)
        if 8 * len(found) < len(self.all):
            return tuple(sorted(found))
        if self._sorted is None:
            self._sorted = sorted(self.all)
        return tuple(name for name in self._sorted if name in found)

    def _having(self, condition: Requirement) -> set[str]:
        if not condition.values:
            return self._with_key.get(condition.key, set())
        return set().union(*(self._with_label.get((condition.key, value), ()) for value in condition.values))


def _discard(index: defaultdict[K, set[str]], key: K, name: str) -> None:
    index[key].discard(name)
    if not index[key]:
        del index[key]


Matching = tuple[tuple[str, ...], bool]
"""The namespaces that certainly meet conditions, sorted, and whether those are all."""


class _NamespacesVersion:
    """What is known of Namespaces until one changes."""

    def __init__(self, context: ReadingContext) -> None:
        self.matching = context.matching


class ReadingContext:
    """The Namespaces that are known, and which of them meet conditions that pods depend on, as they change; and the
    RuntimeClasses."""

    def __init__(self, references: References) -> None:
        self._references = references
        self._known = _ByLabel()
        self._listed = False
        self._matching: dict[Conditions, Matching] = {}
        self._most = 100
        self._namespaces = _NamespacesVersion(self)
        self.runtime_classes: Values[RuntimeClass] = Values(
            lambda _name, _before, _after: references.changed(OF_RUNTIME_CLASSES)
        )

    def namespaces(self) -> KnownNamespaces:
        """Return the Namespaces that are known; the same value until one changes. For readers under the lock."""
        self._forget_unread()
        return self._namespaces

    def matching(self, conditions: Conditions) -> Matching:
        found = self._matching.get(conditions)
        if found is None:
            found = self._matching[conditions] = self._meeting(conditions)
        return found

    def follow(self, conditions: Conditions) -> Reference:
        """Return what changes with the namespaces that meet the conditions."""
        self.matching(conditions)
        return _reference(conditions)

    def put_namespace(self, name: str, found: ObservedNamespace | None) -> None:
        """Set a Namespace; None removes it."""
        self._forget_unread()
        before = self._known.all.get(name)
        if before == (None if found is None else {**found.labels, NAMESPACE_NAME: name}):
            return
        self._known.put(name, None if found is None else found.labels)
        was, now = before or {}, self._known.all.get(name, {})
        changed = {key for key in was.keys() | now.keys() if was.get(key) != now.get(key)}
        for conditions, matching in self._matching.items():
            if not was or not now or any(each.key in changed for each in conditions):
                self._update(conditions, matching, name)
        self._namespaces = _NamespacesVersion(self)

    def namespaces_listed(self) -> None:
        """Note that from now on the Namespaces that are known are all."""
        if not self._listed:
            self._listed = True
            for conditions, found in self._matching.items():
                self._set(conditions, found, self._meeting(conditions))
            self._namespaces = _NamespacesVersion(self)

    def admitted(self, spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the v1.PodSpec (in JSON shape) of a template as admission leaves it; None where it refuses the pod,
        because its RuntimeClass does not exist."""
        name = runtime_class_name(spec)
        if not name:
            return spec
        found = self.runtime_classes.of.get(name)
        return None if found is None else with_runtime_class(spec, found)

    def admit(self, pod: kubernetes_pb2.Pod) -> bool:
        """Change a template's pod as admission does; return whether it takes the pod."""
        if not pod.spec.runtimeClassName:
            return True
        spec = self.admitted(message_to_dict(pod.spec))
        if spec is None:
            return False
        pod.spec.CopyFrom(known_to_message(kubernetes_pb2.PodSpec, spec))
        return True

    def _update(self, conditions: Conditions, found: Matching, name: str) -> None:
        """Update what meets the conditions by the one namespace that has changed."""
        if name in named_namespaces(conditions):
            self._set(conditions, found, self._meeting(conditions))
            return
        labels = self._known.all.get(name)
        meets = labels is not None and all(matches_requirement(each, labels) for each in conditions)
        names, complete = found
        at = bisect_left(names, name)
        met = at < len(names) and names[at] == name
        if meets != met:
            rest = names[at + met :]
            self._set(conditions, found, ((*names[:at], name, *rest) if meets else names[:at] + rest, complete))

    def _set(self, conditions: Conditions, before: Matching, after: Matching) -> None:
        if before != after:
            self._matching[conditions] = after
            self._references.changed(_reference(conditions))

    def _meeting(self, conditions: Conditions) -> Matching:
        found = self._known.meeting(conditions)
        others, certain = named_and_matching(conditions, self._known.all)
        complete = certain and (self._listed or bool(named_namespaces(conditions)))
        return (tuple(sorted({*found, *others})) if others else found), complete

    def _forget_unread(self) -> None:
        """Forget conditions that nobody depends on any more, now and then."""
        if len(self._matching) > self._most:
            there = self._matching.items()
            read = {each: found for each, found in there if self._references.is_read(_reference(each))}
            self._matching, self._most = read, 2 * len(read) + 100


def _reference(conditions: Conditions) -> Reference:
    return "namespaces", conditions
