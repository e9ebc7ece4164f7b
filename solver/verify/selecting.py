"""Whom selectors count, as the checker finds it: by an index over namespaces and labels, since there may be as many
selectors as pods, and each may count all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from solver.model import Operator, PodSelector, PodSpec, Requirement
from solver.verify.filters import counts

_SETS = (Operator.IN, Operator.NOT_IN, Operator.EXISTS, Operator.DOES_NOT_EXIST)


class SeenPods:
    """What selectors see of pods, each once, with a number. Specs are known by identity: hashing one takes long."""

    def __init__(self, specs: Iterable[PodSpec]) -> None:
        numbers: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        self._of_spec: dict[int, int] = {}
        for spec in specs:
            if id(spec) not in self._of_spec:
                self._of_spec[id(spec)] = numbers.setdefault((spec.namespace, spec.labels), len(numbers))
        self._seen = [(namespace, dict(labels)) for namespace, labels in numbers]
        self._with: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._having: dict[str, set[int]] = defaultdict(set)
        self._within: dict[str, set[int]] = defaultdict(set)
        for number, (namespace, labels) in enumerate(self._seen):
            self._within[namespace].add(number)
            for item in labels.items():
                self._with[item].add(number)
                self._having[item[0]].add(number)
        self._counted: dict[PodSelector, frozenset[int]] = {}
        self._alike: dict[frozenset[int], frozenset[int]] = {}

    def number(self, spec: PodSpec) -> int:
        """Return the number of one of the specs."""
        return self._of_spec[id(spec)]

    def counted(self, selector: PodSelector) -> frozenset[int]:
        """Return the numbers that a selector counts, as one object for all selectors that count the same."""
        if selector not in self._counted:
            found = frozenset(self._select(selector))
            self._counted[selector] = self._alike.setdefault(found, found)
        return self._counted[selector]

    def _select(self, selector: PodSelector) -> Iterable[int]:
        if selector.match_expressions is None:
            return ()
        asked = selector.match_expressions
        only = [self._meeting(each) for each in asked if each.operator in (Operator.IN, Operator.EXISTS)]
        if selector.namespaces is not None:
            only.append(set[int]().union(*(self._within.get(name, ()) for name in selector.namespaces)))
        found = set.intersection(*only) if only else set(range(len(self._seen)))
        for each in asked if found else ():
            if each.operator in (Operator.NOT_IN, Operator.DOES_NOT_EXIST):
                found -= self._meeting(each)
        if all(each.operator in _SETS for each in asked):
            return found
        return (number for number in found if counts(selector, *self._seen[number]))

    def _meeting(self, asked: Requirement) -> set[int]:
        """Return who has one of the values, any where none are named."""
        if asked.operator in (Operator.IN, Operator.NOT_IN):
            return set[int]().union(*(self._with.get((asked.key, value), ()) for value in asked.values))
        return set(self._having.get(asked.key, ()))
