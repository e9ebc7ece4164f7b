"""Values by key, of which the one that comes first is known at once: each change costs a logarithm of how many there
are. Not thread-safe."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Any, Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _RankedValue(NamedTuple):
    rank: Any
    number: int
    """Of all that were put, so that no two are equal."""
    key: Any
    value: Any


class PriorityMap(Generic[K, V]):
    """Ranks are compared with each other; of equal ones the value that was put first is first."""

    __slots__ = ("_entries", "_heap", "_number")

    def __init__(self) -> None:
        self._entries: dict[K, _RankedValue] = {}
        self._heap: list[_RankedValue] = []
        """Those that are gone, or have changed, leave it once they are first or are too many."""
        self._number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def put(self, key: K, rank: Any, value: V) -> None:
        """Set a value and its rank."""
        before = self._entries.get(key)
        if before is not None and before.rank == rank and before.value == value:
            return
        self._number += 1
        entry = self._entries[key] = _RankedValue(rank, self._number, key, value)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries):
            self._heap = list(self._entries.values())
            heapify(self._heap)

    def drop(self, key: K) -> V | None:
        """Forget a key; return its value, None where it was not there."""
        entry = self._entries.pop(key, None)
        return None if entry is None else entry.value

    def first(self) -> tuple[K, V] | None:
        entry = self._first()
        return None if entry is None else (entry.key, entry.value)

    def first_but(self, key: K) -> V | None:
        """Return the first value of another key."""
        entry = self._first()
        if entry is None or entry.key != key:
            return None if entry is None else entry.value
        heappop(self._heap)
        other = self._first()
        heappush(self._heap, entry)
        return None if other is None else other.value

    def _first(self) -> _RankedValue | None:
        heap, entries = self._heap, self._entries
        while heap and entries.get(heap[0].key) is not heap[0]:
            heappop(heap)
        return heap[0] if heap else None
