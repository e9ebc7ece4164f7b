"""Which devices placeholders with claims hold. A part of `placement`; nothing is computed where none has claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from solver.model import DeviceClaim, Devices, Node
from solver.model.allocation import after_pods, allocate

_Claims = tuple[DeviceClaim, ...]


class HeldDevices:
    """Claims of placeholders by node."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._held: dict[int, Counter[_Claims]] = {}

    def put(self, claims: _Claims, row: int, count: int) -> None:
        """Put so many placeholders with the claims on a node; below 0, take them away."""
        if claims:
            self._held.setdefault(row, Counter())[claims] += count

    def most(self, claims: _Claims, row: int, wanted: int) -> int:
        """Return how many more of them find their devices there, of those that are wanted."""
        left = self._left(row)
        for number in range(wanted):
            found = allocate(left, claims)
            if found is None:
                return number
            left = found.left(left)
        return wanted

    def _left(self, row: int) -> tuple[Devices, ...]:
        held = self._held.get(row, Counter())
        return after_pods(self._nodes[row].devices, [claims for claims, n in held.items() for _ in range(n)])
