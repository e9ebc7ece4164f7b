"""What pods ask of other pods, as terms over domains; and preferences, as variants of a pod that asks for ever less.

Semantics: docs/reference/constraints.md. Says nothing of nodes' resources; `rows` puts terms and places together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, lru_cache

from solver.model import (
    HOSTNAME,
    NodeSelectorTerm,
    PodSelector,
    PodSpec,
    RunningPods,
    Taint,
    TaintEffect,
    TopologySpread,
)
from solver.model.eligibility import required_affinity, selects, tolerates
from solver.reduction.selecting import PodsByLabel

_NOBODY = PodSelector(None)


class Sort(StrEnum):
    AFFINITY = "affinity"
    ANTI = "anti-affinity"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class Term:
    """One required constraint between pods. Equal terms of several pods are one term."""

    sort: Sort
    key: str
    selector: PodSelector
    spread: TopologySpread | None = None
    asked: PodSpec | None = None
    """Of a spread: what of its carriers decides which nodes count."""
    keys: tuple[str, ...] = ()
    """Of affinity: the topology keys of all terms that the scheduler takes together. A first pod may go anywhere only
    while nothing that they count is on a node with any of these keys."""
    _hash: int = field(init=False, repr=False, compare=False)
    """Terms are looked up again and again, and are made of much."""

    def __post_init__(self) -> None:
        hashed = hash((self.sort, self.key, self.selector, self.spread, self.asked, self.keys))
        object.__setattr__(self, "_hash", hashed)

    @property
    def is_hard(self) -> bool:
        """Whether it is a spread that is required, not preferred."""
        return self.spread is not None and self.spread.is_required

    def __hash__(self) -> int:
        return self._hash

    def counts(self, spec: PodSpec) -> bool:
        return _selects(self.selector, spec.namespace, spec.labels)


@lru_cache(maxsize=2**16)
def _selects(selector: PodSelector, namespace: str, labels: tuple[tuple[str, str], ...]) -> bool:
    return selects(selector, namespace, dict(labels))


def terms_of(spec: PodSpec) -> tuple[Term, ...]:
    """The required terms that a pod carries, each once."""
    return tuple(dict.fromkeys((*affinity_of(spec), *_anti_affinity_of(spec), *_spreads_of(spec, required=True))))


def affinity_of(spec: PodSpec) -> Iterator[Term]:
    """Yield the required terms of affinity."""
    affinity = required_affinity(spec)
    together = tuple(sorted({t.topology_key for t in affinity if not t.alone}))
    for t in affinity:
        yield Term(Sort.AFFINITY, t.topology_key, t.selector, keys=(t.topology_key,) if t.alone else together)


def _anti_affinity_of(spec: PodSpec) -> Iterator[Term]:
    return (Term(Sort.ANTI, t.topology_key, t.selector) for t in spec.pod_anti_affinity)


def _spreads_of(spec: PodSpec, *, required: bool) -> Iterator[Term]:
    """Yield the terms of the spreads that are required, or of those that are preferred. Only pods of the carrier's own
    namespace are counted."""
    hard = sorted({each.topology_key for each in spec.topology_spread if each.is_required})
    keyed = tuple(TopologySpread(key, 1, _NOBODY) for key in hard)
    """What the required spreads ask of nodes: to have their keys."""
    asked: dict[tuple[bool, bool], PodSpec] = {}
    for spread in spec.topology_spread:
        if spread.is_required is not required:
            continue
        policies = spread.honor_node_affinity, spread.honor_node_taints
        if policies not in asked:
            asked[policies] = PodSpec(
                node_selector=spec.node_selector if spread.honor_node_affinity else (),
                affinity=spec.affinity if spread.honor_node_affinity else None,
                tolerations=spec.tolerations if spread.honor_node_taints else (),
                topology_spread=keyed,
            )
        selector = spread.selector
        if selector.namespaces != (spec.namespace,):
            selector = replace(selector, namespaces=(spec.namespace,))
        yield Term(Sort.SPREAD, spread.topology_key, selector, spread, asked[policies])


@dataclass(frozen=True, slots=True)
class Variant:
    """A pod that has given up some of its preferences; those it keeps are requirements."""

    spec: PodSpec
    """What it requires of a node; of other pods, see `terms`."""
    terms: tuple[Term, ...]
    avoids_soft_taints: bool
    """Whether PreferNoSchedule keeps it away like NoSchedule."""
    given_up: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Preference:
    name: str
    nodes: NodeSelectorTerm | None = None
    term: Term | None = None


def variants(spec: PodSpec, known: dict[Term, Term], *, soft_taints: bool) -> tuple[Variant, ...]:
    """From all preferences kept to none, in the order in which they are given up; `soft_taints` is whether there is
    any taint with PreferNoSchedule that the pod does not tolerate. Equal terms of several pods become one object in
    `known`."""
    asked = list(preferences(spec, soft_taints=soft_taints))
    required = terms_of(spec)
    found = []
    for level in range(len(asked) + 1):
        kept = asked[level:]
        affinity = spec.affinity
        for nodes in (p.nodes for p in kept if p.nodes is not None):
            affinity = _both(affinity, nodes)
        terms = (*required, *(p.term for p in kept if p.term is not None))
        found.append(
            Variant(
                spec if affinity is spec.affinity else replace(spec, affinity=affinity),
                tuple(known.setdefault(term, term) for term in dict.fromkeys(terms)),
                soft_taints and level < len(asked),
                tuple(preference.name for preference in asked[:level]),
            )
        )
    return tuple(found)


def preferences(spec: PodSpec, *, soft_taints: bool) -> Iterator[Preference]:
    """First given up first: kinds in Karpenter's order, of each the lightest first: the heaviest is kept longest."""
    if not spec.preferences_left_out:
        yield from _of_pod(spec)
    if soft_taints:
        yield Preference("taints with PreferNoSchedule")


def _of_pod(spec: PodSpec) -> Iterator[Preference]:
    for sort in (Sort.AFFINITY, Sort.ANTI):
        mine = [p for p in spec.preferred_pods if p.anti is (sort is Sort.ANTI)]
        for pods in sorted(mine, key=lambda p: p.weight):
            key = pods.term.topology_key
            yield Preference(f"preferred pod {sort} over {key}", term=Term(sort, key, pods.term.selector, keys=(key,)))
    for nodes in sorted(spec.preferred_nodes, key=lambda p: p.weight):
        if nodes.term.match_expressions or nodes.term.match_fields:  # an empty one asks for nothing
            asked = ", ".join(r.key for r in (*nodes.term.match_expressions, *nodes.term.match_fields))
            yield Preference(f"preferred node affinity on {asked}", nodes=nodes.term)
    for term in _spreads_of(spec, required=False):
        yield Preference(f"spread over {term.key}", term=term)


def _both(required: tuple[NodeSelectorTerm, ...] | None, preferred: NodeSelectorTerm) -> tuple[NodeSelectorTerm, ...]:
    """Terms of which one must match, as before, and the preferred one as well."""
    if required is None:
        return (preferred,)
    return tuple(
        NodeSelectorTerm(
            (*term.match_expressions, *preferred.match_expressions), (*term.match_fields, *preferred.match_fields)
        )
        for term in required
        if term.match_expressions or term.match_fields  # one without conditions matches nothing, and must not begin to
    )


class RunningPodIndex:
    """Running pods by place, as terms see them: how many of them a term counts, and where."""

    def __init__(self, running: Sequence[Sequence[RunningPods]]) -> None:
        self._at: dict[PodSpec, Counter[int]] = defaultdict(Counter)
        self._ending: dict[PodSpec, Counter[int]] = defaultdict(Counter)
        for place, pods in enumerate(running):
            for each in pods:
                self._at[each.spec][place] += each.count
                if each.ending:
                    self._ending[each.spec][place] += each.count
        self._specs = tuple(self._at)
        self._selecting = PodsByLabel(enumerate(self._specs))
        self._counted: dict[Term, Counter[int]] = {}

    def counted(self, term: Term) -> Mapping[int, int]:
        """Place -> pods that the term counts there; places without any are left out."""
        if term not in self._counted:
            total: Counter[int] = Counter()
            for number in sorted(self._selecting.selected(term.selector)):
                spec = self._specs[number]
                total.update(self._at[spec])
                if term.sort is Sort.SPREAD and spec in self._ending:
                    total.subtract(self._ending[spec])  # which the scheduler's spread passes over
            self._counted[term] = +total
        return self._counted[term]

    def guards(self) -> Mapping[Term, frozenset[int]]:
        """The anti-affinity of running pods: term -> places of its carriers."""
        found: dict[Term, set[int]] = defaultdict(set)
        for spec, places in self._at.items():
            for term in _anti_affinity_of(spec):
                found[term].update(places)
        return {term: frozenset(places) for term, places in found.items()}

    def specs(self) -> Mapping[PodSpec, Mapping[int, int]]:
        return self._at


def helpers(specs: Sequence[PodSpec], selecting: PodsByLabel) -> Callable[[int, Term], frozenset[int]]:
    """For a class (index into `specs`) and an affinity term that does not count it: the classes that help it, which
    are those counted by the term that do not wait, over however many others, for the class itself. `selecting` is of
    the specs."""
    needs = []
    for number, spec in enumerate(specs):
        mine = 0
        for each in affinity_of(spec):
            if not (counted := selecting.mask(each.selector)) >> number & 1:
                mine |= counted
        needs.append(mine)

    @cache
    def reaches(start: int) -> int:
        """Whom a class waits for, a bit for each."""
        seen = ahead = needs[start]
        while ahead:
            first = ahead & -ahead
            new = needs[first.bit_length() - 1] & ~seen
            seen |= new
            ahead = (ahead ^ first) | new
        return seen

    @cache
    def helping(who: int, term: Term) -> frozenset[int]:
        return frozenset(other for other in selecting.selected(term.selector) if not reaches(other) >> who & 1)

    return helping


def is_host(term: Term) -> bool:
    return term.key == HOSTNAME


def soft_taints(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    return tuple(taint for taint in taints if taint.effect is TaintEffect.PREFER_NO_SCHEDULE)


def avoids_any(spec: PodSpec, soft: Iterable[Taint]) -> bool:
    """Whether there is a taint of PreferNoSchedule that the pod does not tolerate."""
    return any(not any(tolerates(toleration, taint) for toleration in spec.tolerations) for taint in soft)
