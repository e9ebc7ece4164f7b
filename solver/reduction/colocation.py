"""Which rows may share a node: exclusions and needs (`inter_row`), asked of one node pattern at a time.

Most problems have neither. Counters, which express most constraints, are resources and not seen here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from solver.reduction.reduced import Kind, Reduced


class CoLocation:
    """Rows against rows, of one problem."""

    def __init__(self, reduced: Reduced) -> None:
        self.reduced = reduced
        self.anything_goes = not reduced.exclusions and not reduced.needs
        self.helpers = frozenset(row for need in reduced.needs for row in need.helpers)
        """Rows that others need beside them: fewer of them can be worth less than none."""
        self._known: dict[int, tuple[list[int], dict[int, int]]] = {}
        self._needs: dict[int, list[int]] = defaultdict(list)
        for index, need in enumerate(reduced.needs):
            for row in need.carriers:
                self._needs[row].append(index)

    def admits(self, kind: Kind, units: Mapping[int, int]) -> bool:
        """Whether these units per row may share a node of the kind, apart from its size."""
        return self._apart(kind, units) and self.helped(kind, units)

    def helped(self, kind: Kind, units: Mapping[int, int]) -> bool:
        """Whether every need on such a node is met."""
        return not self._unmet(kind, units)

    def trimmed(self, kind: Kind, units: Mapping[int, int]) -> dict[int, int]:
        """Return as many of the units, row by row in the given order, as may share a node."""
        kept: dict[int, int] = {}
        carried: set[int] = set()
        counted: Counter[int] = Counter()
        for row, wanted in units.items():
            (own, counts), count = self._exclusions(row), wanted
            for index in {*own, *(carried & counts.keys())}:
                room, each = kind.spare[index] - counted[index], counts.get(index, 0)
                if room < 0:
                    count = 0
                elif each:
                    count = min(count, room // each)
            if count:
                kept[row] = count
                carried.update(own)
                for index, each in counts.items():
                    counted[index] += each * count
        while unmet := self._unmet(kind, kept):
            kept = {row: count for row, count in kept.items() if row not in unmet}
        return kept

    def _apart(self, kind: Kind, units: Mapping[int, int]) -> bool:
        """Return whether no exclusion is broken."""
        carried: set[int] = set()
        total: defaultdict[int, int] = defaultdict(int)
        for row, count in units.items():
            if not count:
                continue
            own, counts = self._exclusions(row)
            carried.update(own)
            for index, each in counts.items():
                total[index] += count * each
        return all(total[index] <= kind.spare[index] for index in carried)

    def _exclusions(self, row: int) -> tuple[list[int], dict[int, int]]:
        """Return the exclusions that the row carries, and of those that count its pods how many of a unit."""
        if row not in self._known:
            links = self.reduced.links
            mine = slice(links.first[row], links.first[row + 1])
            exclusion, carries, counts = (each[mine].tolist() for each in links[1:])
            own = [index for index, carried in zip(exclusion, carries, strict=True) if carried]
            self._known[row] = own, {index: each for index, each in zip(exclusion, counts, strict=True) if each}
        return self._known[row]

    def _unmet(self, kind: Kind, units: Mapping[int, int]) -> frozenset[int]:
        """Return the rows that lack a helper."""
        if not self._needs:
            return frozenset()
        lacking: set[int] = set()
        present = [row for row, count in units.items() if count]
        for row, count in units.items():
            for index in self._needs.get(row, ()) if count else ():
                if index not in kind.met and self.reduced.needs[index].helpers.isdisjoint(present):
                    lacking.add(row)
        return frozenset(lacking)
