"""The checker's sums over domains: how many pods that a term counts run or are planned in each domain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from solver.model import HOSTNAME, Operator, PodAffinityTerm, PodSelector, PodSpec, Requirement
from solver.model.eligibility import selects
from solver.verify.places import CheckedPlaces, Domain

_Identity = tuple[str, tuple[tuple[str, str], ...]]
"""What selectors see of a pod: namespace and labels."""


class DomainTally:
    """Counted pods by term and domain. Over hostnames a place stands for one of its nodes. Only the given terms can be
    asked about: pods that none of them counts are left out."""

    def __init__(
        self, places: CheckedPlaces, running_specs: Iterable[PodSpec], terms: Iterable[PodAffinityTerm]
    ) -> None:
        self._places = places
        self._numbers: dict[_Identity, int] = {}
        self._of_spec: dict[int, int] = {}
        for spec in (*places.specs, *running_specs):
            if id(spec) not in self._of_spec:
                self._of_spec[id(spec)] = self._numbers.setdefault((spec.namespace, spec.labels), len(self._numbers))
        self._classes: dict[int, list[int]] = defaultdict(list)
        for index, spec in enumerate(places.specs):
            self._classes[self._of_spec[id(spec)]].append(index)
        self._labels = [(namespace, dict(labels)) for namespace, labels in self._numbers]
        self._with: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._having: dict[str, set[int]] = defaultdict(set)
        self._within: dict[str, set[int]] = defaultdict(set)
        for number, (namespace, labels) in enumerate(self._labels):
            self._within[namespace].add(number)
            for item in labels.items():
                self._with[item].add(number)
                self._having[item[0]].add(number)
        self._counted: dict[PodSelector, frozenset[int]] = {}
        self._relevant: set[int] = set()
        for selector in {term.selector for term in terms}:
            self._counted[selector] = frozenset(self._select(selector))
            self._relevant |= self._counted[selector]
        numbers = self._of_spec
        self._running = [
            (place.index, numbers[id(running.spec)], running.count)
            for place in (places.all if self._relevant else ())
            for running in place.running
            if numbers[id(running.spec)] in self._relevant
        ]
        self._present: dict[str, dict[int, dict[Domain, list[int]]]] = {}
        self._tallies: dict[PodAffinityTerm, dict[Domain, list[int]]] = {}

    def _select(self, selector: PodSelector) -> Iterable[int]:
        if selector.match_expressions is None:
            return ()
        asked = selector.match_expressions
        # Of a thousand labels only these can matter.
        only = [self._meeting(each) for each in asked if each.operator in (Operator.IN, Operator.EXISTS)]
        if selector.namespaces is not None:
            only.append(set[int]().union(*(self._within.get(name, ()) for name in selector.namespaces)))
        candidates = set.intersection(*only) if only else set(range(len(self._labels)))
        for each in asked if candidates else ():
            if each.operator in (Operator.NOT_IN, Operator.DOES_NOT_EXIST):
                candidates -= self._meeting(each)
        return (number for number in candidates if selects(selector, *self._labels[number]))

    def _meeting(self, asked: Requirement) -> set[int]:
        """Return who has one of the values, any where none are named."""
        if asked.operator in (Operator.IN, Operator.NOT_IN):
            return set[int]().union(*(self._with.get((asked.key, value), ()) for value in asked.values))
        return set(self._having.get(asked.key, ()))

    def counts(self, term: PodAffinityTerm, spec: PodSpec) -> bool:
        """Return whether the term counts pods of a spec of the plan or of a running pod."""
        return self._of_spec[id(spec)] in self._counted[term.selector]

    def counted_classes(self, term: PodAffinityTerm) -> list[int]:
        """Return the indices of the classes whose pods the term counts."""
        return [index for number in self._counted[term.selector] for index in self._classes[number]]

    def of(self, term: PodAffinityTerm) -> dict[Domain, list[int]]:
        """Return domain -> counted pods that are [planned, running] there, without domains that have none."""
        if term not in self._tallies:
            present = self._presence(term.topology_key)
            sums: dict[Domain, list[int]] = {}
            for number in self._counted[term.selector]:
                for domain, (planned, running) in present.get(number, {}).items():
                    total = sums.setdefault(domain, [0, 0])
                    total[0] += planned
                    total[1] += running
            self._tallies[term] = sums
        return self._tallies[term]

    def _presence(self, key: str) -> dict[int, dict[Domain, list[int]]]:
        if key not in self._present:
            found: dict[int, dict[Domain, list[int]]] = defaultdict(dict)
            domains = [place.domain(key) for place in self._places.all]
            for index, where in self._places.of_class.items():
                number = self._of_spec[id(self._places.specs[index])]
                if number in self._relevant:
                    sums = found[number]
                    for place in where:
                        domain = domains[place.index]
                        if domain is not None:
                            times = 1 if key == HOSTNAME else place.count
                            sums.setdefault(domain, [0, 0])[0] += place.pods[index] * times
            for place_index, number, count in self._running:
                domain = domains[place_index]
                if domain is not None:
                    found[number].setdefault(domain, [0, 0])[1] += count
            self._present[key] = found
        return self._present[key]
