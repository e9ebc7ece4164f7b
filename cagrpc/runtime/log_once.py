"""Problems that last are logged when they begin and when they change, not at every try."""

from __future__ import annotations

from collections.abc import Collection, Hashable

_MOST = 1000


class LogOnce:
    """What was reported last, by what it is about. Not for several threads."""

    def __init__(self, most: int = _MOST) -> None:
        """At most so many subjects are reported on at a time: others are not new."""
        self._most = most
        self._last: dict[Hashable, Hashable] = {}

    def is_new(self, problem: Hashable, about: Hashable = "") -> bool:
        """Return whether `problem` is to be logged: it is not what was reported last about this subject."""
        if self._last.get(about) == problem or (about not in self._last and len(self._last) >= self._most):
            return False
        self._last[about] = problem
        return True

    def over(self, about: Hashable = "") -> bool:
        """Forget the problem, so that it is new when it comes again. Return whether there was one."""
        return self._last.pop(about, None) is not None

    def only(self, subjects: Collection[Hashable]) -> None:
        """Forget the problems of all others."""
        for about in self._last.keys() - set(subjects):
            del self._last[about]

    def all_over(self) -> None:
        """Forget every problem."""
        self._last.clear()
