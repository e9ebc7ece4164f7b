"""How long a pod keeps its place on a node that the scheduler sees and rejects for it, for reasons unknown to planning:
a volume, a scheduler plugin. As long as it has the place no other pod gets the room. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cagrpc.cluster.state import PendingPod
from cagrpc.runtime.clock import MonotonicClock
from cagrpc.runtime.progress import Progress, Turn

SEEN_SECONDS = 2.0
"""A nomination that is cleared so long after pod and node were observed counts as one failed attempt."""
MOST_FAILURES = 2
REST_SECONDS = 60.0
"""How long the pod is not nominated to that node again."""


@dataclass(slots=True)
class _NominatedPod:
    """A pod that is nominated to a node which the scheduler sees."""

    node: str
    turn: Turn
    """Of the scheduler's: pods that never preempt keep their nomination whatever happens, and nothing shows whether
    such a pod was tried."""
    cleared: int
    """How often its nominations had been cleared at the last check."""
    failures: int = 0


class Patience:
    """Decides which pods lose their places. For one thread."""

    def __init__(self, clock: MonotonicClock, scheduler: Progress, deadline_seconds: float) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._deadline_seconds = deadline_seconds
        self._standing: dict[str, _NominatedPod] = {}
        self._resting: dict[str, tuple[str, float]] = {}

    def over(self, pods: Mapping[str, PendingPod], nodes: Mapping[str, str], held: AbstractSet[str]) -> frozenset[str]:
        """Return the UIDs of pending pods that are to lose their places: `nodes` has the place of each, `held` the
        nodes that the scheduler does not see yet."""
        now = self._clock()
        self._standing = {uid: each for uid, each in self._standing.items() if nodes.get(uid) == each.node}
        found = set()
        for uid, pod in pods.items():
            node = nodes[uid]
            if node in held or self.rests(uid, node):
                continue
            if self._has_failed(uid, node, pod, len(pods)):
                found.add(uid)
                del self._standing[uid]
                self._resting[uid] = node, now + REST_SECONDS
        return frozenset(found)

    def _has_failed(self, uid: str, node: str, pod: PendingPod, waiting: int) -> bool:
        each, now = self._standing.get(uid), self._clock()
        if each is None:
            if pod.nominated_node == node:
                self._standing[uid] = _NominatedPod(node, Turn(now, self._scheduler.served, waiting), pod.cleared)
            return False
        each.turn.before = max(each.turn.before, waiting)
        if pod.cleared > each.cleared and now >= each.turn.since + SEEN_SECONDS:
            each.failures += 1
        each.cleared = pod.cleared
        works = self._scheduler.at > each.turn.since  # one that binds nobody may have failed itself
        passed_over = works and each.turn.is_over(self._scheduler, self._deadline_seconds, now)
        return each.failures >= MOST_FAILURES or passed_over

    def rests(self, uid: str, node: str) -> bool:
        """Return whether the pod is not to be nominated to this node for a while."""
        found = self._resting.get(uid)
        return found is not None and found[0] == node and self._clock() < found[1]

    def forget(self, uid: str) -> None:
        """Forget a pod that is no longer pending: bound, or gone."""
        self._resting.pop(uid, None)
        self._standing.pop(uid, None)
