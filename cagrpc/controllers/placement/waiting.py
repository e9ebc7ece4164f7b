"""How long a pod keeps a place on a node that the scheduler sees and does not take for it, for reasons that planning
does not know: a volume, a plugin of its own. While it has the place nobody else has the room. Pure but for what it
remembers."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cagrpc.cluster.state import PendingPod
from cagrpc.runtime.clock import MonotonicClock

SEEN_SECONDS = 2.0
"""A pod whose nomination is cleared so long after it and the node were seen was tried there, and failed."""
MOST_FAILURES = 2
LONGEST_SECONDS = 30.0
"""So long a pod that keeps its nomination may wait (those that do not preempt keep it whatever happens), as long as the
scheduler binds others."""
REST_SECONDS = 60.0
"""How long it is not nominated to that node again."""


@dataclass(slots=True)
class _StandingRoom:
    """A pod that is nominated to a node which the scheduler sees."""

    node: str
    since: float
    cleared: int
    """How often its nominations had been cleared when that was looked at last."""
    failures: int = 0


class Patience:
    """For one thread. `clock` counts seconds."""

    def __init__(self, clock: MonotonicClock) -> None:
        self._clock = clock
        self._standing: dict[str, _StandingRoom] = {}
        self._resting: dict[str, tuple[str, float]] = {}
        self._bound_at = float("-inf")

    def over(self, pods: Mapping[str, PendingPod], nodes: Mapping[str, str], held: AbstractSet[str]) -> frozenset[str]:
        """UIDs of those of the pending pods that are not to keep their places: `nodes` has where each is to go, `held`
        the nodes that the scheduler does not see yet."""
        now = self._clock()
        self._standing = {uid: each for uid, each in self._standing.items() if nodes.get(uid) == each.node}
        found = set()
        for uid, pod in pods.items():
            node = nodes[uid]
            if node in held or self.rests(uid, node):
                continue
            if self._has_failed(uid, node, pod, now):
                found.add(uid)
                del self._standing[uid]
                self._resting[uid] = node, now + REST_SECONDS
        return frozenset(found)

    def _has_failed(self, uid: str, node: str, pod: PendingPod, now: float) -> bool:
        each = self._standing.get(uid)
        if each is None:
            if pod.nominated_node == node:
                self._standing[uid] = _StandingRoom(node, now, pod.cleared)
            return False
        if pod.cleared > each.cleared and now >= each.since + SEEN_SECONDS:
            each.failures += 1
        each.cleared = pod.cleared
        waits_long = now >= each.since + LONGEST_SECONDS and self._bound_at > each.since
        return each.failures >= MOST_FAILURES or waits_long

    def rests(self, uid: str, node: str) -> bool:
        """Whether it is not to be nominated to this node for a while."""
        found = self._resting.get(uid)
        return found is not None and found[0] == node and self._clock() < found[1]

    def forget(self, uid: str) -> None:
        """It is pending no longer: bound, or gone."""
        self._resting.pop(uid, None)
        if self._standing.pop(uid, None) is not None:
            self._bound_at = self._clock()
