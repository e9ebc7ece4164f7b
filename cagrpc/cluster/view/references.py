"""Which objects a pod was read with: its claims, their volumes and classes. When one of these changes, comes or goes,
the pod is read again, before the state is asked for next. What is read of them is decided elsewhere. Not
thread-safe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable

Reference = tuple[str, str]
"""A kind of object, in words of the module that reads it, and its key; an object that is not there is one too."""


class References:
    def __init__(self) -> None:
        self._of: dict[Hashable, frozenset[Reference]] = {}
        self._readers: defaultdict[Reference, set[Hashable]] = defaultdict(set)
        self._again: dict[Hashable, Callable[[], object]] = {}
        self._due: dict[Hashable, None] = {}

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
        self._again.pop(reader, None)
        self._due.pop(reader, None)

    def changed(self, *references: Reference) -> None:
        """Have all who were read with one of these read again."""
        for reference in references:
            self._due.update(dict.fromkeys(sorted(self._readers.get(reference, ()), key=str)))

    def is_read(self, reference: Reference) -> bool:
        """Return whether anybody was read with this."""
        return reference in self._readers

    def read_again(self) -> None:
        """Read again whom a change concerns, and whom that concerns in turn."""
        while self._due:
            reader = next(iter(self._due))
            del self._due[reader]
            self._again[reader]()

    def known(self) -> tuple[object, ...]:
        """Return what is remembered; nothing once nobody refers to anything."""
        return (*self._of, *self._readers, *self._again, *self._due)
