"""Which objects a pod was read with: its claims, their volumes and classes. When one of these changes, comes or goes,
the pod is read again, before the state is asked for next. What is read of them is decided elsewhere. Not
thread-safe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable

Reference = tuple[str, Hashable]
"""A kind of object, in words of the module that reads it, and its key; an object that is not there is one too."""


class References:
    def __init__(self) -> None:
        self._of: dict[Hashable, frozenset[Reference]] = {}
        self._readers: defaultdict[Reference, set[Hashable]] = defaultdict(set)
        self._again: dict[Hashable, Callable[[], object]] = {}
        self._due: dict[Hashable, None] = {}
        self._changed: dict[Reference, None] = {}
        """Whose readers are due, too: they may be many, and a change costs as much for one as for all."""

    @property
    def readers(self) -> int:
        """How many were read with anything."""
        return len(self._of)

    def put(self, reader: Hashable, references: Iterable[Reference], again: Callable[[], object]) -> None:
        """Remember what `reader` was read with; `again` reads it again. It replaces what was remembered of it."""
        self.drop(reader)
        found = frozenset(references)
        if found:
            self._of[reader], self._again[reader] = found, again
            for reference in found:
                self._readers[reference].add(reader)

    def drop(self, reader: Hashable) -> None:
        """Forget a reader, which may be unknown."""
        for reference in self._of.pop(reader, ()):
            readers = self._readers[reference]
            readers.discard(reader)
            if not readers:
                del self._readers[reference]
                self._changed.pop(reference, None)
        self._again.pop(reader, None)
        self._due.pop(reader, None)

    def changed(self, *references: Reference) -> None:
        """Have all who were read with one of these read again."""
        self._changed.update((each, None) for each in references if each in self._readers)

    def is_read(self, reference: Reference) -> bool:
        """Return whether anybody was read with this."""
        return reference in self._readers

    def read_again(self, most: int) -> int:
        """Read again whom a change concerns, and whom that concerns in turn, so many at most. Return how many were."""
        for number in range(most):
            while not self._due and self._changed:
                reference = next(iter(self._changed))
                del self._changed[reference]
                self._due.update(dict.fromkeys(sorted(self._readers.get(reference, ()), key=str)))
            if not self._due:
                return number
            reader = next(iter(self._due))
            del self._due[reader]
            self._again[reader]()
        return most

    def known(self) -> tuple[object, ...]:
        """Return what is remembered; nothing once nobody refers to anything."""
        return (*self._of, *self._readers, *self._again, *self._due, *self._changed)
