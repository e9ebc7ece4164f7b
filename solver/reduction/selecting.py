"""Which pods selectors count, by an index over their labels: looking for the pods of a selector takes as long as there
are pods that meet its narrowest condition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from solver.model import Operator, PodSelector, PodSpec, Requirement
from solver.model.eligibility import selects


class PodsByLabel:
    """Pods by namespace and labels, numbered in their order."""

    def __init__(self, specs: Sequence[PodSpec]) -> None:
        self._alike: dict[tuple[str, tuple[tuple[str, str], ...]], list[int]] = defaultdict(list)
        for number, spec in enumerate(specs):
            self._alike[spec.namespace, spec.labels].append(number)
        self._seen = tuple(self._alike)
        self._members = tuple(map(tuple, self._alike.values()))
        self._labels = [dict(labels) for _, labels in self._seen]
        self._with_label: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._with_key: dict[str, list[int]] = defaultdict(list)
        self._in_namespace: dict[str, list[int]] = defaultdict(list)
        for number, (namespace, labels) in enumerate(self._seen):
            self._in_namespace[namespace].append(number)
            for label in labels:
                self._with_label[label].append(number)
                self._with_key[label[0]].append(number)
        self._known: dict[PodSelector, frozenset[int]] = {}

    def selected(self, selector: PodSelector) -> frozenset[int]:
        """Return the numbers of the pods that it counts."""
        found = self._known.get(selector)
        if found is None:
            alike = (
                number
                for number in self._candidates(selector)
                if selects(selector, self._seen[number][0], self._labels[number])
            )
            found = self._known[selector] = frozenset(each for number in alike for each in self._members[number])
        return found

    def _candidates(self, selector: PodSelector) -> Iterable[int]:
        if selector.match_expressions is None:
            return ()
        found: list[Sequence[int]] = [range(len(self._seen))]
        found += [each for each in map(self._meeting, selector.match_expressions) if each is not None]
        if selector.namespaces is not None:
            found.append([each for name in selector.namespaces for each in self._in_namespace.get(name, ())])
        return min(found, key=len)

    def _meeting(self, condition: Requirement) -> Sequence[int] | None:
        """Return who may meet a condition; None where that may be anybody."""
        if condition.operator is Operator.IN:
            return [each for value in condition.values for each in self._with_label.get((condition.key, value), ())]
        return self._with_key.get(condition.key, ()) if condition.operator is Operator.EXISTS else None
