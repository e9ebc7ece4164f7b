"""Objects of one kind that cannot be decoded or accepted: logs each once, and counts them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from cagrpc.errors import CagrpcError

K = TypeVar("K", bound=Hashable)

_log = logging.getLogger(__name__)

_MOST_KNOWN = 10_000
"""More are neither logged nor counted one by one, because users can create any number of invalid objects."""
_LONGEST_REASON = 300


class UnreadableObjects(Generic[K]):
    """A set of such objects, by key. For one thread, except `len`."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._now: set[K] = set()
        self._logged: set[K] = set()

    def __len__(self) -> int:
        return len(self._now)

    def add(self, key: K, error: Exception, name: object = None) -> None:
        """Add an object, and log its error once. `name` replaces the key in the log."""
        if len(self._now) < _MOST_KNOWN:
            self._now.add(key)
        if key in self._logged:
            return
        if len(self._logged) >= _MOST_KNOWN:
            self._logged = set(self._now)
        if len(self._logged) < _MOST_KNOWN:
            self._logged.add(key)
            reason = str(error) if isinstance(error, CagrpcError) else f"{type(error).__name__}: {error}"
            mistake = None if isinstance(error, CagrpcError) else error  # a defect of cagrpc: log its traceback
            what = key if name is None else name
            _log.warning("%s: %s is left out: %s", self._kind, what, reason[:_LONGEST_REASON], exc_info=mistake)

    def discard(self, key: K) -> None:
        """Remove an object that is readable again, or deleted."""
        self._now.discard(key)

    def only(self, keys: Collection[K]) -> None:
        """Remove all objects but these."""
        self._now.intersection_update(keys)
