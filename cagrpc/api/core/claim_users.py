"""Who uses a PersistentVolumeClaim: what each of its pods needs to know of the others, at the same cost however many
these are. Not thread-safe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from heapq import nsmallest

from cagrpc.runtime.priority_map import PriorityMap

MOST_NODES = 16
"""On which pods use one claim: others that share a ReadWriteOnce one go to these."""


@dataclass(frozen=True, slots=True)
class ClaimUser:
    """Another pod that uses a claim."""

    name: str
    """`namespace/name`."""
    node: str = ""
    """Where it runs; empty while it waits."""
    ends: bool = False
    """Whether it is being deleted."""
    order: tuple[object, ...] = ()
    """Of waiting pods, who comes first."""


@dataclass(frozen=True, slots=True)
class OtherUsers:
    """The pods that use a claim or may, without the one that asks and those that their own volumes keep from every
    node."""

    running: ClaimUser | None
    """The first by name of those that have a node."""
    nodes: tuple[str, ...]
    """Of those that are not being deleted; the first few by name."""
    waiting: ClaimUser | None
    """The first of those that wait."""

    def __bool__(self) -> bool:
        return bool(self.running or self.waiting)


class ClaimUsers:
    """The pods that use one claim. What each needs to know of all others costs as much however many they are."""

    __slots__ = ("_blocked", "_first_nodes", "_nodes", "_running", "_waiting")

    def __init__(self) -> None:
        self._running: PriorityMap[Hashable, ClaimUser] = PriorityMap()
        self._waiting: PriorityMap[Hashable, ClaimUser] = PriorityMap()
        self._blocked: dict[Hashable, ClaimUser] = {}
        """Those that wait, and whom their own volumes keep from every node: nobody waits for one of them."""
        self._nodes: Counter[str] = Counter()
        self._first_nodes: tuple[str, ...] | None = None

    def __bool__(self) -> bool:
        return bool(self._running) or bool(self._waiting) or bool(self._blocked)

    def put(self, key: Hashable, user: ClaimUser) -> bool:
        """Set a user; return whether that is a change."""
        if user in (self._running.get(key), self._waiting.get(key), self._blocked.get(key)):
            return False
        blocked = key in self._blocked and not user.node
        self.drop(key)
        if user.node:
            self._running.put(key, user.name, user)
            self._count(user, 1)
        elif blocked:
            self._blocked[key] = user
        else:
            self._waiting.put(key, (user.order, user.name), user)
        return True

    def drop(self, key: Hashable) -> None:
        """Forget a user."""
        running = self._running.drop(key)
        if running is not None:
            self._count(running, -1)
        elif self._waiting.drop(key) is None:
            self._blocked.pop(key, None)

    def block(self, key: Hashable, *, blocked: bool) -> bool:
        """Say whether a user that waits is kept from every node by its own volumes; return whether that is a change."""
        user = self._waiting.drop(key) if blocked else self._blocked.pop(key, None)
        if user is None:
            return False
        if blocked:
            self._blocked[key] = user
        else:
            self._waiting.put(key, (user.order, user.name), user)
        return True

    def _count(self, user: ClaimUser, count: int) -> None:
        if not user.ends:
            self._nodes[user.node] += count
            if not self._nodes[user.node]:
                del self._nodes[user.node]
            self._first_nodes = None

    def others(self, key: Hashable) -> OtherUsers:
        """Return the users but for this one, which has no node."""
        if self._first_nodes is None:
            self._first_nodes = tuple(nsmallest(MOST_NODES, self._nodes))
        running = self._running.first()
        return OtherUsers(running[1] if running else None, self._first_nodes, self._waiting.first_but(key))
