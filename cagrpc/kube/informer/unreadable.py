"""Objects of one kind that are done without, since they cannot be read or taken: each is told once, and counted."""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from cagrpc.errors import CagrpcError

K = TypeVar("K", bound=Hashable)

_log = logging.getLogger(__name__)

_MOST_KNOWN = 10_000
"""More are neither told nor counted one by one: whoever may create objects may create any number of bad ones."""
_LONGEST_REASON = 300


class UnreadableObjects(Generic[K]):
    """By what tells them apart. For one thread, but for `len`, which any may ask."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._now: set[K] = set()
        self._told: set[K] = set()

    def __len__(self) -> int:
        return len(self._now)

    def add(self, key: K, error: Exception, name: object = None) -> None:
        """`name` is for people, where it is not the key."""
        if len(self._now) < _MOST_KNOWN:
            self._now.add(key)
        if key in self._told:
            return
        if len(self._told) >= _MOST_KNOWN:
            self._told = set(self._now)
        if len(self._told) < _MOST_KNOWN:
            self._told.add(key)
            reason = str(error) if isinstance(error, CagrpcError) else f"{type(error).__name__}: {error}"
            mistake = None if isinstance(error, CagrpcError) else error  # of ours: the log is to say where
            what = key if name is None else name
            _log.warning("%s: %s is left out: %s", self._kind, what, reason[:_LONGEST_REASON], exc_info=mistake)

    def discard(self, key: K) -> None:
        """It is there again, or gone."""
        self._now.discard(key)

    def only(self, keys: Collection[K]) -> None:
        """No others are there any more."""
        self._now.intersection_update(keys)
