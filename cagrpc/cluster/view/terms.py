"""Which required anti-affinity terms select a pod that waits: the others need not be known of running pods. A term is
looked up by a label that it asks for, and in few namespaces by these, so that a class that begins to wait is compared
with few terms, and a term with few classes. Where many would have to be compared, with terms that only say what labels
must not be, a term counts as one that selects: that shows more of running pods than is needed, and changes no plan's
validity. Not thread-safe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain, islice
from typing import Generic, Protocol, TypeVar

from cagrpc.api.core.selectors import Entry, PodIdentity, entries, lookups
from solver.model import PodAffinityTerm
from solver.model.eligibility import selects

MOST_COMPARED = 32
"""Classes with one term, and terms with one class for each of its labels."""


class Identified(Protocol):
    @property
    def identity(self) -> PodIdentity: ...


W = TypeVar("W", bound=Identified)


class SelectingTerms(Generic[W]):
    def __init__(self) -> None:
        self.version = 0
        self._selecting: dict[PodAffinityTerm, None] = {}
        self._by: dict[PodAffinityTerm, W] = {}
        """A class that waits, by term that selects it,"""
        self._of: defaultdict[W, dict[PodAffinityTerm, None]] = defaultdict(dict)
        """and the other way round."""
        self._others: defaultdict[Entry, dict[PodAffinityTerm, None]] = defaultdict(dict)
        """Terms that select none of the classes that wait, by what pods that they select have,"""
        self._at: dict[PodAffinityTerm, tuple[Entry, ...]] = {}
        """and where each of them is."""
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
        """A class has a pod that waits."""
        found = list(entries(of.identity))
        for entry in found:
            self._waiting[entry][of] = None
            for term in [*self._others.get(entry, ())]:
                if _selects(term, of):
                    self._select(term, of)

    def end(self, of: W) -> None:
        """It has none any more."""
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

    def known(self) -> tuple[object, ...]:
        """Return what is remembered; nothing once there are neither terms nor classes."""
        return self._selecting, self._by, self._of, self._others, self._at, self._waiting, self._new

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


K = TypeVar("K")
V = TypeVar("V")


def _drop(index: defaultdict[K, dict[V, None]], key: K, value: V) -> None:
    del index[key][value]
    if not index[key]:
        del index[key]


def _selects(term: PodAffinityTerm, of: Identified) -> bool:
    return selects(term.selector, of.identity.namespace, of.identity.labels)
