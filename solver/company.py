"""Which rows may share a node: exclusions and needs (`solver.between`), asked of one node pattern at a time.

Most problems have neither. Counters, which say the same of most constraints, are resources and not seen here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from solver.reduce import Kind, Reduced


@dataclass(frozen=True, slots=True)
class Company:
    reduced: Reduced

    @property
    def anything_goes(self) -> bool:
        return not self.reduced.exclusions and not self.reduced.needs

    @property
    def helpers(self) -> frozenset[int]:
        """Rows that others need beside them: fewer of them can be worth less than none."""
        return frozenset(row for need in self.reduced.needs for row in need.helpers)

    def apart(self, kind: Kind, units: Mapping[int, int]) -> bool:
        """Whether no exclusion is broken on a node of the kind with these units per row."""
        for exclusion, running in zip(self.reduced.exclusions, kind.running, strict=True):
            if any(units.get(row) for row in exclusion.carriers):
                counted = sum(units.get(row, 0) * pods for row, pods in exclusion.counted)
                if counted + running > exclusion.most:
                    return False
        return True

    def helped(self, kind: Kind, units: Mapping[int, int]) -> bool:
        """Whether every need on such a node is met."""
        return not self._unmet(kind, units)

    def admits(self, kind: Kind, units: Mapping[int, int]) -> bool:
        return self.apart(kind, units) and self.helped(kind, units)

    def trimmed(self, kind: Kind, units: Mapping[int, int]) -> dict[int, int]:
        """As many of the units, row by row in the given order, as may share a node."""
        kept: dict[int, int] = {}
        for row, wanted in units.items():
            count = wanted
            while count and not self.apart(kind, {**kept, row: count}):
                count -= 1
            if count:
                kept[row] = count
        while unmet := self._unmet(kind, kept):
            kept = {row: count for row, count in kept.items() if row not in unmet}
        return kept

    def _unmet(self, kind: Kind, units: Mapping[int, int]) -> frozenset[int]:
        """Rows that lack a helper."""
        lacking: set[int] = set()
        for index, need in enumerate(self.reduced.needs):
            carriers = {row for row in need.carriers if units.get(row)}
            if carriers and index not in kind.met and not any(units.get(row) for row in need.helpers):
                lacking |= carriers
        return frozenset(lacking)
