"""Label selectors, from Kubernetes' JSON shape to the planner's requirements, and the projection of pods to what
selectors can see.

Only the selectors of inter-pod constraints read a pod's namespace and labels. So a `PodSpec` holds only those that some
selector of the whole input distinguishes: pods of one workload are one class, whatever labels their controller adds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any, Protocol

from cagrpc.api.encoding.json_documents import Problems, mapping, members, strings, texts
from cagrpc.errors import shown
from solver.model import HostPort, Labels, Operator, PodAffinityTerm, PodSelector, PodSpec, Requirement
from solver.model.eligibility import matches_requirement, selects

NODE_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
LABEL_OPERATORS = NODE_OPERATORS[:4]
NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""The label with its name that the API server sets on every namespace."""
DEFAULT_NAMESPACE = "default"
MOST_COMPARED = 1_000
"""Selectors with one pod, beyond which it counts as matched: more is shown of it than is needed."""

Conditions = tuple[Requirement, ...]
"""The conditions of a label selector; all must hold."""


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """A pod's namespace and labels, as selectors see them."""

    namespace: str = DEFAULT_NAMESPACE
    labels: Labels = field(default_factory=dict)


NOBODY = PodIdentity()


class KnownNamespaces(Protocol):
    """What is known of Namespaces."""

    def matching(self, conditions: Conditions) -> tuple[tuple[str, ...], bool]:
        """Return the namespaces that certainly meet the conditions, sorted, and whether those are all."""
        ...


@dataclass(frozen=True, slots=True)
class NoNamespaces:
    """None is known, but by the names that conditions have."""

    def matching(self, conditions: Conditions) -> tuple[tuple[str, ...], bool]:
        found, certain = named_and_matching(conditions)
        return found, certain and bool(named_namespaces(conditions))


def named_namespaces(conditions: Conditions) -> frozenset[str]:
    """Return the namespaces that conditions name; without any they may be met by all others."""
    by_name = (each for each in conditions if each.key == NAMESPACE_NAME and each.operator is Operator.IN)
    return frozenset(name for each in by_name for name in each.values)


def named_and_matching(conditions: Conditions, known: Container[str] = ()) -> tuple[tuple[str, ...], bool]:
    """Return those of the namespaces that conditions name, and that are not `known`, that certainly meet them, sorted;
    and whether no other one of them may. The label `kubernetes.io/metadata.name` is known for each."""
    of_name = [condition for condition in conditions if condition.key == NAMESPACE_NAME]
    others = (name for name in named_namespaces(conditions) if name not in known)
    may = sorted(each for each in others if all(matches_requirement(of, {NAMESPACE_NAME: each}) for of in of_name))
    return (tuple(may), True) if len(of_name) == len(conditions) else ((), not may)


def requirements(
    holder: Mapping[str, Any], name: str, path: str, problems: Problems, operators: Collection[str]
) -> tuple[Requirement, ...]:
    """Return `holder[name]`, a list of label requirements, each with one of `operators`."""
    found = []
    for expression, at in members(holder, name, path, problems):
        key, operator = expression.get("key"), str(expression.get("operator"))
        values = tuple(sorted(texts(expression, "values", at, problems)))
        if not key:
            problems.append(f"{at}.key: missing; write the label's key")
        elif operator not in operators:
            problems.append(f"{at}.operator: {shown(operator)} is not one of {', '.join(operators)}")
        elif operator in ("In", "NotIn") and not values:
            problems.append(f"{at}.values: {operator} needs at least one value")
        elif operator in ("Exists", "DoesNotExist") and values:
            problems.append(f"{at}.values: {operator} takes none, found {', '.join(values)}")
        elif operator in ("Gt", "Lt") and len(values) != 1:
            problems.append(f"{at}.values: {operator} takes one integer, found {', '.join(values) or 'none'}")
        else:
            found.append(Requirement(str(key), Operator(operator), values))
    return tuple(found)


def label_selector(
    holder: Mapping[str, Any], name: str, path: str, problems: Problems
) -> tuple[Requirement, ...] | None:
    """Return `holder[name]`, a metav1.LabelSelector, as requirements that must all match; None where absent."""
    if holder.get(name) is None:
        return None
    selector, at = mapping(holder, name, path, problems), f"{path}.{name}"
    labels = strings(selector, "matchLabels", at, problems)
    found = [Requirement(key, Operator.IN, (value,)) for key, value in labels.items()]
    return _sorted([*found, *requirements(selector, "matchExpressions", at, problems, LABEL_OPERATORS)])


def _sorted(conditions: Iterable[Requirement]) -> tuple[Requirement, ...]:
    return tuple(sorted(set(conditions), key=lambda each: (each.key, each.operator, each.values)))


def counted_labels(
    holder: Mapping[str, Any], path: str, problems: Problems, identity: PodIdentity
) -> tuple[Requirement, ...] | None:
    """Return the `labelSelector` of an inter-pod constraint, with the requirements that its `matchLabelKeys` and
    `mismatchLabelKeys` add from the pod's own labels, as the API server merges them. Keys that the pod lacks add
    nothing."""
    selected = label_selector(holder, "labelSelector", path, problems)
    own = [
        Requirement(key, operator, (identity.labels[key],))
        for name, operator in (("matchLabelKeys", Operator.IN), ("mismatchLabelKeys", Operator.NOT_IN))
        for key in texts(holder, name, path, problems)
        if key in identity.labels
    ]
    return None if selected is None else _sorted([*selected, *own])


@dataclass(frozen=True, slots=True)
class LabelChange:
    """What the selectors name that one projection has and another has not: a pod with none of it is the same by both,
    unless `of_all`."""

    labels: frozenset[tuple[str, str]]
    """Keys and values."""
    keys: frozenset[str]
    """Whatever the value."""
    namespaces: frozenset[str]
    of_all: bool
    """Whether one of the two has a selector that matches pods with nothing of this."""


_numbers = count(1)


class LabelProjection:
    """Projects a pod's namespace and labels to those that some selectors read. Each of these selectors matches the
    projection exactly if it matches the pod."""

    def __init__(self, selectors: Iterable[PodSelector]) -> None:
        self.number = next(_numbers)
        """Its own, for whoever remembers what it answered and need not keep it in memory."""
        self._selectors = frozenset(each for each in selectors if each.match_expressions is not None)
        self._index: SelectorsByLabel | None = None
        self._named: defaultdict[str, set[str]] = defaultdict(set)
        self._asked: set[str] = set()
        self._namespaces: set[str] = set()
        self._specs: dict[tuple[PodSpec, str, tuple[tuple[str, str], ...]], PodSpec] = {}
        self._selected: dict[tuple[str, tuple[tuple[str, str], ...]], bool] = {}
        self.matches_unlabelled = False
        """Whether some selector matches a pod without any of these labels."""
        for selector in self._selectors:
            for condition in selector.match_expressions or ():
                self._named[condition.key].update(condition.values)
                if not condition.values:  # Exists, DoesNotExist
                    self._asked.add(condition.key)
            self._namespaces.update(selector.namespaces or ())
            self.matches_unlabelled = self.matches_unlabelled or selects(selector, "", {})

    def identified(self, spec: PodSpec, identity: PodIdentity) -> PodSpec:
        """Return `spec` with the visible part of the identity: labels of which a selector names the value or only the
        key, and the namespace if a selector names it."""
        namespace = identity.namespace if identity.namespace in self._namespaces else ""
        labels = tuple(
            sorted(
                (key, value) for key, value in identity.labels.items() if key in self._named and self._sees(key, value)
            )
        )
        if not (namespace or labels):
            return spec
        key = (spec, namespace, labels)
        if key not in self._specs:
            self._specs[key] = replace(spec, namespace=namespace, labels=labels)
        return self._specs[key]

    def identified_if_selected(self, spec: PodSpec, identity: PodIdentity) -> PodSpec:
        """Return the same, or `spec` as it is if no selector matches the pod, nor one without labels: most selectors
        name their own namespace, and so make all pods of it visible."""
        found = self.identified(spec, identity)
        if self.matches_unlabelled or found is spec:
            return found
        visible = found.namespace, found.labels
        if visible not in self._selected:
            if self._index is None:
                self._index = SelectorsByLabel(self._selectors)
            self._selected[visible] = self._index.may_be_matched(PodIdentity(found.namespace, dict(found.labels)))
        return found if self._selected[visible] else spec

    def since(self, before: LabelProjection) -> LabelChange:
        """Return what has changed of the selectors: mostly few have come or gone."""
        changed = LabelProjection(self._selectors ^ before._selectors)
        return LabelChange(
            frozenset((key, value) for key, values in changed._named.items() for value in values),
            frozenset(changed._asked),
            frozenset(changed._namespaces),
            self.matches_unlabelled is not before.matches_unlabelled,
        )

    def _sees(self, key: str, value: str) -> bool:
        return value in self._named[key] or key in self._asked


def selectors_of(spec: PodSpec) -> Iterator[PodSelector]:
    """Yield every selector in the spec's own constraints."""
    for term in (*spec.pod_affinity, *spec.pod_anti_affinity, *(preferred.term for preferred in spec.preferred_pods)):
        yield term.selector
    for spread in spec.topology_spread:
        yield spread.selector
    for wish in spec.preferred_domains:
        yield wish.term.selector


Entry = tuple[str | None, str | None, str | None]
"""What a pod has: a namespace, or any; a label's key, or any; its value, or any."""
_MOST_NAMED = 16
"""Namespaces of a selector by which it is looked up; one that names more is looked up as if it named all."""


def entries(who: PodIdentity) -> Iterator[Entry]:
    """Yield all that this pod has."""
    for namespace in (who.namespace, None):
        yield namespace, None, None
        for key, value in who.labels.items():
            yield namespace, key, None
            yield namespace, key, value


def lookups(selector: PodSelector) -> list[tuple[Entry, ...]]:
    """Return what pods that the selector matches have: of each member one at least. Empty where it matches none."""
    if selector.match_expressions is None or selector.namespaces == ():
        return []
    few = selector.namespaces is not None and len(selector.namespaces) <= _MOST_NAMED
    namespaces: tuple[str | None, ...] = tuple(dict.fromkeys(selector.namespaces or ())) if few else (None,)
    found: list[tuple[Entry, ...]] = [tuple((namespace, None, None) for namespace in namespaces)]
    for each in selector.match_expressions:
        if each.operator in (Operator.IN, Operator.EXISTS):
            values = tuple(dict.fromkeys(each.values)) or (None,)
            found.append(tuple((namespace, each.key, value) for namespace in namespaces for value in values))
    return found


class SelectorsByLabel:
    """Selectors by what they ask for."""

    def __init__(self, selectors: Iterable[PodSelector] = ()) -> None:
        self._there: set[PodSelector] = set()
        self._by: defaultdict[Entry, list[PodSelector]] = defaultdict(list)
        for each in selectors:
            self.add(each)

    def add(self, selector: PodSelector) -> None:
        alternatives = lookups(selector)
        if alternatives and selector not in self._there:
            self._there.add(selector)
            least = min(alternatives, key=lambda each: max(len(self._by.get(entry, ())) for entry in each))
            for entry in least:
                self._by[entry].append(selector)

    def may_match(self, who: PodIdentity) -> Iterator[PodSelector]:
        """Yield those that may match this pod."""
        for entry in entries(who):
            yield from self._by.get(entry, ())

    def is_matched(self, who: PodIdentity) -> bool:
        """Return whether any matches this pod."""
        return any(selects(each, who.namespace, who.labels) for each in self.may_match(who))

    def may_be_matched(self, who: PodIdentity) -> bool:
        """Return whether any matches this pod, or too many may to find out."""
        found = islice(self.may_match(who), MOST_COMPARED + 1)
        return any(at == MOST_COMPARED or selects(each, who.namespace, who.labels) for at, each in enumerate(found))


Port = tuple[int, str]
"""Number and protocol."""


def port(of: HostPort) -> Port:
    return of.port, of.protocol


@dataclass(frozen=True, slots=True)
class PodChange:
    """What one projection sees of running pods and another does not."""

    labels: LabelChange
    ports: frozenset[Port]
    terms: frozenset[PodAffinityTerm]


class PodProjection:
    """Projects pending and running pods to what each other's constraints can select. `selectors` and `ports` are of
    pending pods; `terms` are the required anti-affinity terms of running pods that select a pending one. Other
    constraints of running pods are dropped: they held when those were placed."""

    def __init__(
        self, selectors: Iterable[PodSelector], ports: Iterable[Port], terms: Iterable[PodAffinityTerm]
    ) -> None:
        self._terms = frozenset(terms)
        self._ports = frozenset(ports)
        selectors = frozenset(selectors)
        self._of_planned = LabelProjection(selectors)
        self._of_all = LabelProjection(selectors | {term.of_running().selector for term in self._terms})
        self.number = self._of_all.number
        """Its own, as that of a `LabelProjection`."""

    def planned(self, spec: PodSpec, who: PodIdentity) -> PodSpec:
        return self._of_all.identified(spec, who)

    def runs(self, spec: PodSpec, who: PodIdentity) -> PodSpec | None:
        """Return what pending pods can select of a running one; None for nothing."""
        ports = tuple(each for each in spec.host_ports if port(each) in self._ports)
        terms = tuple(term.of_running() for term in spec.pod_anti_affinity if term in self._terms)
        found = self._of_planned.identified_if_selected(PodSpec(host_ports=ports, pod_anti_affinity=terms), who)
        return None if found == _NOTHING and not self._of_planned.matches_unlabelled else found

    def since(self, before: PodProjection) -> PodChange:
        """Return of what running pods may be projected otherwise than before."""
        return PodChange(
            self._of_planned.since(before._of_planned),
            self._ports ^ before._ports,
            self._terms ^ before._terms,
        )


_NOTHING = PodSpec()
