"""Which pods selectors count, by an index over their labels: what a condition says is looked up for all pods at once, a
bit for each, so that a selector takes as long as it has conditions and values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from solver.model import Operator, PodSelector, PodSpec, Requirement
from solver.model.eligibility import matches_requirement


class PodsByLabel:
    """Pods by namespace and labels, with their numbers."""

    def __init__(self, specs: Iterable[tuple[int, PodSpec]]) -> None:
        self._with_label: defaultdict[str, dict[str, list[int]]] = defaultdict(dict)
        """By key and value."""
        self._in_namespace: defaultdict[str, list[int]] = defaultdict(list)
        for number, spec in specs:
            self._in_namespace[spec.namespace].append(number)
            for key, value in spec.labels:
                self._with_label[key].setdefault(value, []).append(number)
        self._everybody = mask_of(number for numbers in self._in_namespace.values() for number in numbers)
        self._masks: dict[object, int] = {}
        self._known: dict[int, frozenset[int]] = {}

    def selected(self, selector: PodSelector) -> frozenset[int]:
        """Return the numbers of the pods that it counts."""
        mask = self.mask(selector)
        if mask not in self._known:
            self._known[mask] = frozenset(numbers_of(mask))
        return self._known[mask]

    def mask(self, selector: PodSelector) -> int:
        """Return the pods that it counts, a bit for each number."""
        return self._once(selector, lambda: self._selected(selector))

    def _selected(self, selector: PodSelector) -> int:
        if selector.match_expressions is None:
            return 0
        found = self._everybody
        if selector.namespaces is not None:
            found = 0
            for name in selector.namespaces:
                found |= self._of(("", name), self._in_namespace.get(name, ()))
        for condition in selector.match_expressions:
            if not found:
                break
            found &= self._once(condition, lambda: self._meeting(condition))  # noqa: B023 - called at once
        return found

    def _meeting(self, condition: Requirement) -> int:
        by_value = self._with_label.get(condition.key, {})
        if condition.operator in (Operator.IN, Operator.NOT_IN):
            found = 0
            for value in condition.values:
                if value in by_value:
                    found |= self._of((condition.key, value), by_value[value])
            return found if condition.operator is Operator.IN else self._everybody & ~found
        having = mask_of(number for numbers in by_value.values() for number in numbers)
        if condition.operator is Operator.EXISTS:
            return having
        if condition.operator is Operator.DOES_NOT_EXIST:
            return self._everybody & ~having
        meeting = (value for value in by_value if matches_requirement(condition, {condition.key: value}))
        return mask_of(number for value in meeting for number in by_value[value])

    def _of(self, who: object, numbers: Sequence[int]) -> int:
        return self._once(who, lambda: mask_of(numbers))

    def _once(self, key: object, made: Callable[[], int]) -> int:
        found = self._masks.get(key)
        if found is None:
            found = self._masks[key] = made()
        return found


def mask_of(numbers: Iterable[int]) -> int:
    """Return a bit for each of the numbers."""
    wanted = tuple(numbers)
    if len(wanted) == 1:
        return 1 << wanted[0]
    bits = bytearray(max(wanted, default=-1) // 8 + 1)
    for number in wanted:
        bits[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(bits, "little")


def numbers_of(mask: int) -> list[int]:
    """Return the numbers of the bits."""
    return [
        8 * position + bit
        for position, byte in enumerate(mask.to_bytes(-(-mask.bit_length() // 8), "little"))
        if byte
        for bit in range(8)
        if byte >> bit & 1
    ]
