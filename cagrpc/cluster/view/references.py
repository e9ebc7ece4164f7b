"""Which objects a pod was read with: its claims, their volumes and classes. When one of these changes, comes or goes,
the pod is read again, before the state is asked for next. What is read of them is decided elsewhere; what cannot be
read affects no other. Not thread-safe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable

from cagrpc.kube.informer.resource import UnreadableObjects

Reference = tuple[str, Hashable]
"""A kind of object, in words of the module that reads it, and its key; an object that is not there is one too."""
Again = Callable[[], int | None]
"""Reads a reader again; returns how many times as much work that was as reading a pod, where it was more."""


class References:
    def __init__(self) -> None:
        self._of: dict[Hashable, frozenset[Reference]] = {}
        self._readers: defaultdict[Reference, set[Hashable]] = defaultdict(set)
        self._again: dict[Hashable, Again] = {}
        self._due: dict[Hashable, None] = {}
        self._changed: dict[Reference, None] = {}
        """Whose readers are due, too: they may be many, and a change costs as much for one as for all."""
        self.read = 0
        """How many readers have been read again until now."""
        self._left_out: UnreadableObjects[Hashable] = UnreadableObjects("what depends on others")

    @property
    def readers(self) -> int:
        """How many there are to be read again."""
        return len(self._again)

    def put(self, reader: Hashable, references: Iterable[Reference], again: Again) -> None:
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
        self._left_out.discard(reader)

    def due(self, reader: Hashable, again: Again) -> None:
        """Have this one read again, or for the first time."""
        self._again[reader] = again
        self._due[reader] = None

    def changed(self, *references: Reference) -> None:
        """Have all who were read with one of these read again."""
        self._changed.update((each, None) for each in references if each in self._readers)

    def is_read(self, reference: Reference) -> bool:
        """Return whether anybody was read with this."""
        return reference in self._readers

    def read_again(self, most: int) -> int:
        """Read again whom a change concerns, and whom that concerns in turn, until that is as much work as reading so
        many pods. Return how much it was: less where nobody is left."""
        work = 0
        while work < most:
            while not self._due and self._changed:
                reference = next(iter(self._changed))
                del self._changed[reference]
                self._due.update(dict.fromkeys(sorted(self._readers.get(reference, ()), key=str)))
            if not self._due:
                break
            reader = next(iter(self._due))
            del self._due[reader]
            self.read += 1
            work += self._read(reader)
        return work

    def _read(self, reader: Hashable) -> int:
        try:
            found = self._again[reader]()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this reader's alone
            self._left_out.add(reader, error)
            return 1
        self._left_out.discard(reader)
        return found or 1
