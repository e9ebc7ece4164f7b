"""Equivalence classes of pods that agree in all that planning reads, updated pod by pod: which pods wait, and which
labels the constraints of all pods can select. Nodes are in `nodes`, the planner's pod sets in `waiting`. Not
thread-safe.

Of running pods only those required anti-affinity terms need be known that select a pod that waits. A term is looked up
by a label that it asks for, and in few namespaces by these, so that a class that begins to wait is compared with few
terms, and a term with few classes. Where many would have to be compared, with terms that only say what labels must not
be, a term counts as one that selects: that shows more of running pods than is needed, and changes no plan's validity.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from cagrpc.api.core.gangs import GangMembership
from cagrpc.api.core.selectors import (
    Entry,
    LabelChange,
    LabelProjection,
    PodIdentity,
    PodProjection,
    Port,
    entries,
    lookups,
    port,
    selectors_of,
)
from cagrpc.cluster.state import PodRef, oldest_first
from cagrpc.cluster.view.objects import ObservedPod, PodStage
from cagrpc.cluster.view.shares import BEYOND, Constraint, ConstraintShares, beyond_share, constraints_of
from cagrpc.fleet.model import PodKey
from solver.model import PodAffinityTerm, PodSelector, PodSpec
from solver.model.eligibility import selects

MOST_COMPARED = 32
"""Classes with one term, and terms with one class for each of its labels."""

K = TypeVar("K")
V = TypeVar("V")
_SERVED = (PodStage.NOMINATED, PodStage.MOVABLE, PodStage.FIXED, PodStage.ENDING, PodStage.SUCCEEDED)


class Identified(Protocol):
    @property
    def identity(self) -> PodIdentity: ...


W = TypeVar("W", bound=Identified)


class SelectingTerms(Generic[W]):
    def __init__(self) -> None:
        self.version = 0
        self._selecting: dict[PodAffinityTerm, None] = {}
        self._by: dict[PodAffinityTerm, W] = {}
        """A class that waits, by the term that selects it."""
        self._of: defaultdict[W, dict[PodAffinityTerm, None]] = defaultdict(dict)
        """The terms that select a class that waits."""
        self._others: defaultdict[Entry, dict[PodAffinityTerm, None]] = defaultdict(dict)
        """Terms that select none of the classes that wait, by what the pods that they select have."""
        self._at: dict[PodAffinityTerm, tuple[Entry, ...]] = {}
        """The entries of each of those terms."""
        self._waiting: defaultdict[Entry, dict[W, None]] = defaultdict(dict)
        self._new: dict[PodAffinityTerm, None] = {}
        """Terms of which that is still to be found out."""

    def add(self, term: PodAffinityTerm) -> None:
        self._new[term] = None

    def remove(self, term: PodAffinityTerm) -> None:
        self._new.pop(term, None)
        if term in self._selecting:
            del self._selecting[term]
            self.version += 1
        for entry in self._at.pop(term, ()):
            _drop(self._others, entry, term)
        of = self._by.pop(term, None)
        if of is not None:
            _drop(self._of, of, term)

    def begin(self, of: W) -> None:
        """Note that a class has a pod that waits."""
        found = list(entries(of.identity))
        for entry in found:
            self._waiting[entry][of] = None
            for term in [*self._others.get(entry, ())]:
                if _selects(term, of):
                    self._select(term, of)

    def end(self, of: W) -> None:
        """Note that it has none any more."""
        for entry in entries(of.identity):
            _drop(self._waiting, entry, of)
        for term in self._of.pop(of, ()):
            del self._by[term], self._selecting[term]
            self._new[term] = None
            self.version += 1

    def terms(self) -> Iterable[PodAffinityTerm]:
        """Return the terms that select a pod that waits."""
        while self._new:
            term = next(iter(self._new))
            del self._new[term]
            self._find(term)
        return self._selecting

    def _find(self, term: PodAffinityTerm) -> None:
        alternatives = lookups(term.selector)
        if not alternatives:
            return
        there = min(alternatives, key=lambda each: sum(len(self._waiting.get(entry, ())) for entry in each))
        candidates = chain.from_iterable(self._waiting.get(entry, ()) for entry in there)
        compared = list(islice(candidates, MOST_COMPARED + 1))
        of = next((each for each in compared[:MOST_COMPARED] if _selects(term, each)), None)
        if of is not None:
            self._select(term, of)
            return
        free = min(alternatives, key=lambda each: max(len(self._others.get(entry, ())) for entry in each))
        if len(compared) > MOST_COMPARED or any(len(self._others.get(each, ())) >= MOST_COMPARED for each in free):
            self._select(term, None)
            return
        self._at[term] = free
        for entry in free:
            self._others[entry][term] = None

    def _select(self, term: PodAffinityTerm, of: W | None) -> None:
        for entry in self._at.pop(term, ()):
            _drop(self._others, entry, term)
        self._selecting[term] = None
        self.version += 1
        if of is not None:
            self._by[term] = of
            self._of[of][term] = None


def _drop(index: defaultdict[K, dict[V, None]], key: K, value: V) -> None:
    del index[key][value]
    if not index[key]:
        del index[key]


def count_in(there: dict[K, int], key: K, more: int) -> None:
    """Add so many, or remove them where it is below 0; what there is none of is not there."""
    there[key] = there.get(key, 0) + more
    if not there[key]:
        del there[key]


def _selects(term: PodAffinityTerm, of: Identified) -> bool:
    return selects(term.selector, of.identity.namespace, of.identity.labels)


class CountedSet(Generic[K]):
    """A counted set; `version` changes with its members, not with their counts. What is added or removed at once
    is distinct."""

    def __init__(self) -> None:
        self.version = 0
        self._counts: Counter[K] = Counter()

    def __iter__(self) -> Iterator[K]:
        return iter(self._counts)

    def add(self, keys: Collection[K]) -> list[K]:
        """Add each once; return those that were not there."""
        new = [key for key in keys if key not in self._counts]
        self._counts.update(keys)
        self.version += len(new)
        return new

    def remove(self, keys: Collection[K]) -> list[K]:
        """Remove each once; return those that are not there any more."""
        self._counts.subtract(keys)
        gone = [key for key in keys if not self._counts[key]]
        for key in gone:
            del self._counts[key]
        self.version += len(gone)
        return gone


class Shape:
    """A spec without namespace and labels; interned, so that equal shapes are the same object."""

    __slots__ = ("constraints", "pods", "ports", "requests", "selectors", "spec", "terms", "waiting")

    def __init__(self, spec: PodSpec) -> None:
        self.spec = spec
        self.requests = dict(spec.requests)
        self.selectors = frozenset(selectors_of(spec))
        self.ports = frozenset(map(port, spec.host_ports))
        self.terms = frozenset(spec.pod_anti_affinity)
        beyond = spec.unschedulable == BEYOND
        self.constraints: frozenset[Constraint] = frozenset() if beyond else constraints_of(spec)
        self.pods = 0
        self.waiting = 0

    def has_any(self, ports: frozenset[Port], terms: frozenset[PodAffinityTerm]) -> bool:
        return not (self.ports.isdisjoint(ports) and self.terms.isdisjoint(terms))


class ClassKey(NamedTuple):
    shape: Shape
    namespace: str
    labels: tuple[tuple[str, str], ...]
    priority: int
    priority_class: str
    admitted: bool
    gang: GangMembership | None


class EquivalenceClass:
    """Pods of one key. Compared by identity."""

    __slots__ = (
        "_ordered",
        "_planned",
        "_runs",
        "_whole",
        "covered_by",
        "identity",
        "key",
        "on_nodes",
        "over_share",
        "pods",
        "waiting",
    )

    def __init__(self, key: ClassKey) -> None:
        self.key = key
        self.identity = PodIdentity(key.namespace, dict(key.labels))
        self.over_share = key.shape.spec.unschedulable == BEYOND
        self.pods = 0
        self.on_nodes: dict[str, int] = {}
        """How many of its pods are on which node."""
        self.waiting: dict[PodKey, PodRef] = {}
        # Cached with the version of what it was made with.
        self.covered_by: tuple[int, tuple[str, ...]] = (-1, ())
        self._ordered: tuple[PodRef, ...] | None = ()
        # Cached with the number of the projection that each was made with: these come and go, and a class may not be
        # asked for hours.
        self._planned: tuple[int, PodSpec] | None = None
        self._runs: tuple[int, PodSpec | None] | None = None
        self._whole: tuple[int, PodSpec] | None = None

    def ordered(self) -> tuple[PodRef, ...]:
        """Return its waiting pods, oldest first."""
        if self._ordered is None:
            self._ordered = tuple(sorted(self.waiting.values(), key=oldest_first))
        return self._ordered

    def set_waiting(self, pod: PodKey, ref: PodRef | None) -> None:
        self._ordered = None
        if ref is None:
            del self.waiting[pod]
        else:
            self.waiting[pod] = ref

    def planned(self, seen: PodProjection) -> PodSpec:
        if self._planned is None or self._planned[0] != seen.number:
            self._planned = seen.number, seen.planned(self.key.shape.spec, self.identity)
        return self._planned[1]

    def runs(self, seen: PodProjection) -> PodSpec | None:
        """Return the same object for as long as it is equal."""
        if self._runs is None or self._runs[0] != seen.number:
            before, now = self._runs, seen.runs(self.key.shape.spec, self.identity)
            self._runs = seen.number, before[1] if before is not None and before[1] == now else now
        return self._runs[1]

    def whole(self, sight: LabelProjection) -> PodSpec:
        """Return the same object for as long as it is equal."""
        if self._whole is None or self._whole[0] != sight.number:
            before, now = self._whole, sight.identified(self.key.shape.spec, self.identity)
            self._whole = sight.number, before[1] if before is not None and before[1] == now else now
        return self._whole[1]

    def looks_otherwise(self, sight: Sight) -> bool:
        """Return whether its pods on nodes look otherwise than before."""
        runs, whole = self._runs, self._whole
        changed = runs is not None and self.runs(sight.seen) is not runs[1]
        return (whole is not None and self.whole(sight.labels) is not whole[1]) or changed


@dataclass(frozen=True, slots=True)
class Sight:
    """What constraints can select: `seen` those of pods that wait, `labels` those of all pods."""

    seen: PodProjection
    labels: LabelProjection


class _ByIdentity:
    """Classes by what selectors can name of their pods."""

    def __init__(self) -> None:
        self._with_label: defaultdict[tuple[str, str], set[EquivalenceClass]] = defaultdict(set)
        self._with_key: defaultdict[str, set[EquivalenceClass]] = defaultdict(set)
        self._in_namespace: defaultdict[str, set[EquivalenceClass]] = defaultdict(set)

    def put(self, of: EquivalenceClass) -> None:
        for found, key in self._entries(of):
            found[key].add(of)

    def drop(self, of: EquivalenceClass) -> None:
        for found, key in self._entries(of):
            found[key].discard(of)
            if not found[key]:
                del found[key]

    def any_of(self, changes: Iterable[LabelChange]) -> set[EquivalenceClass]:
        """Return those that have any of this."""
        found: set[EquivalenceClass] = set()
        for each in changes:
            for label in each.labels:
                found.update(self._with_label.get(label, ()))
            for key in each.keys:
                found.update(self._with_key.get(key, ()))
            for namespace in each.namespaces:
                found.update(self._in_namespace.get(namespace, ()))
        return found

    def _entries(self, of: EquivalenceClass) -> Iterator[tuple[defaultdict[Any, set[EquivalenceClass]], object]]:
        yield self._in_namespace, of.key.namespace
        for label in of.key.labels:
            yield self._with_label, label
            yield self._with_key, label[0]


class Gang:
    """Existing pods of one gang."""

    __slots__ = ("bound", "classes", "held_back")

    def __init__(self) -> None:
        self.classes: dict[EquivalenceClass, int] = {}
        self.bound = 0
        self.held_back = 0

    def annotated(self) -> int | None:
        """Return the largest minimum count of its pods' annotations."""
        said = (of.key.gang.min_count for of in self.classes if of.key.gang)
        return max((count for count in said if count is not None), default=None)


class _Expected(NamedTuple):
    """The selectors and ports of pods still to be created that are planned too, and these, by their specs."""

    selectors: frozenset[PodSelector]
    ports: frozenset[Port]
    waiting: dict[PodSpec, _ToCome]


@dataclass(frozen=True, slots=True, eq=False)
class _ToCome:
    identity: PodIdentity


class Classes:
    def __init__(self) -> None:
        self.with_waiting: dict[EquivalenceClass, None] = {}
        self.gangs: dict[str, Gang] = {}
        self.shares = ConstraintShares()
        self.made_room: Callable[[str], object] = lambda _namespace: None
        """Called with a namespace whose pods use less of its share than before."""
        self._shapes: dict[PodSpec, Shape] = {}
        self._classes: dict[ClassKey, EquivalenceClass] = {}
        self._by_identity = _ByIdentity()
        self._selectors: CountedSet[PodSelector] = CountedSet()
        self._terms: CountedSet[PodAffinityTerm] = CountedSet()
        self._waiting_selectors: CountedSet[PodSelector] = CountedSet()
        self._waiting_ports: CountedSet[Port] = CountedSet()
        self._sight: tuple[int, LabelProjection] = (-1, LabelProjection(()))
        self._selecting: SelectingTerms[EquivalenceClass | _ToCome] = SelectingTerms()
        self._terms_seen: tuple[int, frozenset[PodAffinityTerm]] = (-1, frozenset())
        self._expected: tuple[frozenset[PodSpec], _Expected] = (frozenset(), _Expected(frozenset(), frozenset(), {}))
        self._seen: tuple[object, PodProjection] = (None, PodProjection((), (), ()))

    def of(self, seen: ObservedPod) -> EquivalenceClass:
        """Return the class of a pod, which counts there once it has been entered (`enter`)."""
        pod = seen.pod
        shape = self._shapes.get(pod.spec) or Shape(pod.spec)
        labels = tuple(sorted(pod.labels.items()))
        key = ClassKey(shape, seen.ref.namespace, labels, pod.priority, seen.priority_class, seen.admitted, pod.gang)
        found = self._classes.get(key)
        if found is not None:
            return found
        if shape.constraints and not self.shares.admits(key.namespace, shape.constraints):
            spec = beyond_share(pod.spec, key.namespace)
            key = key._replace(shape=self._shapes.get(spec) or Shape(spec))
        return self._classes.get(key) or EquivalenceClass(key)

    def enter(self, of: EquivalenceClass, stage: PodStage, pod: PodKey, ref: PodRef) -> None:
        if not of.pods:
            self._born(of)
        of.pods += 1
        self._count(of, stage, 1)
        if stage is PodStage.WAITING:
            if not of.waiting:
                self.with_waiting[of] = None
                self._selecting.begin(of)
                shape = of.key.shape
                if not shape.waiting:
                    self._waiting_selectors.add(shape.selectors)
                    self._waiting_ports.add(shape.ports)
                shape.waiting += 1
            of.set_waiting(pod, ref)

    def leave(self, of: EquivalenceClass, stage: PodStage, pod: PodKey) -> None:
        if stage is PodStage.WAITING:
            of.set_waiting(pod, None)
            if not of.waiting:
                del self.with_waiting[of]
                self._selecting.end(of)
                shape = of.key.shape
                shape.waiting -= 1
                if not shape.waiting:
                    self._waiting_selectors.remove(shape.selectors)
                    self._waiting_ports.remove(shape.ports)
        self._count(of, stage, -1)
        of.pods -= 1
        if not of.pods:
            self._gone(of)

    def sight(self) -> LabelProjection:
        """Return what the constraints of all pods can select."""
        if self._sight[0] != self._selectors.version:
            self._sight = self._selectors.version, LabelProjection(self._selectors)
        return self._sight[1]

    def seen(self, expected: frozenset[PodSpec] = frozenset()) -> PodProjection:
        """Return what the constraints of waiting pods can select of other pods, and the anti-affinity of others of
        them. `expected` are specs of pods still to be created that are planned too, with namespaces and labels."""
        others = self._of_expected(expected)
        found = self._selecting.terms()
        if self._terms_seen[0] != self._selecting.version:
            self._terms_seen = self._selecting.version, frozenset(found)
        terms = self._terms_seen[1]
        based_on = self._waiting_selectors.version, self._waiting_ports.version, terms, others.selectors, others.ports
        if self._seen[0] != based_on:
            selectors, ports = others.selectors.union(self._waiting_selectors), others.ports.union(self._waiting_ports)
            self._seen = based_on, PodProjection(selectors, ports, terms)
        return self._seen[1]

    def differing(self, before: Sight, now: Sight) -> set[EquivalenceClass]:
        """Return the classes whose pods on nodes look otherwise than before."""
        seen, labels = now.seen.since(before.seen), now.labels.since(before.labels)
        all_ = self._classes.values()
        found = set(all_) if seen.labels.of_all else self._by_identity.any_of((seen.labels, labels))
        if seen.ports or seen.terms:
            found.update(of for of in all_ if of.key.shape.has_any(seen.ports, seen.terms))
        return {of for of in found if of.looks_otherwise(now)}

    def _of_expected(self, expected: frozenset[PodSpec]) -> _Expected:
        before, found = self._expected
        if before != expected:
            waiting = found.waiting
            for spec in before - expected:
                self._selecting.end(waiting.pop(spec))
            for spec in expected - before:
                waiting[spec] = _ToCome(PodIdentity(spec.namespace, dict(spec.labels)))
                self._selecting.begin(waiting[spec])
            found = _Expected(
                frozenset(selector for spec in expected for selector in selectors_of(spec)),
                frozenset(port(each) for spec in expected for each in spec.host_ports),
                waiting,
            )
            self._expected = expected, found
        return found

    def _born(self, of: EquivalenceClass) -> None:
        shape = of.key.shape
        self._classes[of.key] = of
        self.shares.add(of.key.namespace, shape.constraints)
        self._by_identity.put(of)
        if not shape.pods:
            self._shapes[shape.spec] = shape
            self._selectors.add(shape.selectors)
            for term in self._terms.add(shape.terms):
                self._selecting.add(term)
        shape.pods += 1
        if of.key.gang:
            self.gangs.setdefault(of.key.gang.name, Gang()).classes[of] = 0

    def _gone(self, of: EquivalenceClass) -> None:
        shape = of.key.shape
        del self._classes[of.key]
        if self.shares.remove(of.key.namespace, shape.constraints):
            self.made_room(of.key.namespace)
        self._by_identity.drop(of)
        shape.pods -= 1
        if not shape.pods:
            del self._shapes[shape.spec]
            self._selectors.remove(shape.selectors)
            for term in self._terms.remove(shape.terms):
                self._selecting.remove(term)
        if of.key.gang:
            classes = self.gangs[of.key.gang.name].classes
            del classes[of]
            if not classes:
                del self.gangs[of.key.gang.name]

    def _count(self, of: EquivalenceClass, stage: PodStage, difference: int) -> None:
        if of.key.gang is None:
            return
        gang = self.gangs[of.key.gang.name]
        if stage in _SERVED:
            gang.bound += difference
        elif stage is PodStage.HELD_BACK:
            gang.held_back += difference
