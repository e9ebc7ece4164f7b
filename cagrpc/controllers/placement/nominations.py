"""`status.nominatedNodeName` of pods: the scheduler tries the nominated node first, and reserves its room against pods
of the same or a lower priority (upstream: schedule_one.go, KEP-5278). One patch for each pod, with its UID and its
observed nomination as preconditions: what the scheduler nominates meanwhile is never overwritten. Which pod goes where
is `controller`'s to decide.

A pod keeps its place only for so long on a node that the scheduler sees and rejects for it, for reasons unknown to
planning (a volume, a scheduler plugin), since as long as it has the place no other pod gets the room (`Patience`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from cagrpc.cluster.markers import PLACEMENT_FIELD_MANAGER
from cagrpc.cluster.state import PendingPod
from cagrpc.errors import CagrpcError, Unavailable
from cagrpc.kube.client.client import METADATA_ONLY, Client, PatchKind
from cagrpc.kube.client.failures import Forbidden
from cagrpc.runtime.clock import MonotonicClock
from cagrpc.runtime.progress import Progress, Turn

log = logging.getLogger(__name__)

UNSEEN_SECONDS = 1.0
"""How long after a patch the pod is assumed to be as written though it is not observed to be."""
FORBIDDEN_SECONDS = 60.0
"""How often to try again where the right to patch pods/status is missing."""

_NOMINATED = "/status/nominatedNodeName"


@dataclass(frozen=True, slots=True)
class _Sent:
    node: str
    seen: int
    """The pod's `seen`, before the patch."""
    at_seconds: float
    first_at_seconds: float
    """Of the first of equal patches."""


class Nominations:
    """Writes nominations, and remembers what was written. Thread-safe, except for one pod from several threads."""

    def __init__(self, client: Client, clock: MonotonicClock) -> None:
        self._client = client
        self._clock = clock
        self._sent: dict[str, _Sent] = {}
        """The latest patch, by pod (UID)."""
        self._forbidden_until = float("-inf")
        self.forbidden = ""
        """Why pods cannot be nominated at all; empty where they can."""
        self.progress = Progress()
        """The nominations that were set or cleared."""

    def stands(self, pod: PendingPod, node: str) -> bool:
        """Return whether the pod is no reason to hide the node from the scheduler any longer: it is observed to be
        nominated, or cannot be, or was patched `UNSEEN_SECONDS` ago and has not been observed since."""
        if pod.nominated_node == node:
            return True
        if self.forbidden or (pod.nominated_node and not pod.nominated_by_us):
            return True
        sent = self._sent_as(pod, node)
        return sent is not None and self._clock() >= sent.first_at_seconds + UNSEEN_SECONDS

    def begun(self, pod: PendingPod, node: str) -> bool:
        """Return whether nominating the pod to this node was tried once, whatever has become of it since."""
        sent = self._sent.get(pod.ref.uid)
        return self.stands(pod, node) or (sent is not None and sent.node == node)

    def bring_about(self, pod: PendingPod, node: str) -> float | None:
        """Nominate the pod to `node`, or to none where that is empty, unless it is so already. The scheduler's own
        nominations (preemption) are never replaced. Return after how many seconds to check again; None where nothing is
        due until the pod changes. Raises Unavailable where the API server is out of reach. A pod that has changed
        meanwhile is left to the next check, one that is refused for another reason to the scheduler."""
        if pod.nominated_node == node or (pod.nominated_node and not pod.nominated_by_us):
            return None
        now = self._clock()
        if self.forbidden and now < self._forbidden_until:
            return self._forbidden_until - now
        sent = self._sent_as(pod, node)
        if sent is not None and now < sent.at_seconds + UNSEEN_SECONDS:
            return sent.at_seconds + UNSEEN_SECONDS - now
        self._write(pod, node)
        return UNSEEN_SECONDS

    def forget(self, uid: str) -> None:
        """Forget a pod that is no longer pending."""
        self._sent.pop(uid, None)

    def _sent_as(self, pod: PendingPod, node: str) -> _Sent | None:
        """Return the latest patch, where it was to this node and the pod has not been observed since."""
        sent = self._sent.get(pod.ref.uid)
        return sent if sent is not None and (sent.node, sent.seen) == (node, pod.seen) else None

    def _write(self, pod: PendingPod, node: str) -> None:
        before = self._sent_as(pod, node)
        try:
            self._client.patch(
                f"/api/v1/namespaces/{pod.ref.namespace}/pods/{pod.ref.name}/status",
                _operations(pod, node),
                PatchKind.JSON,
                field_manager=PLACEMENT_FIELD_MANAGER,
                accept=METADATA_ONLY,
            )
            self.progress.serve(self._clock())
            self.forbidden = ""
        except Forbidden as error:
            if not self.forbidden:
                log.warning("pods are left to the scheduler, for they cannot be nominated: %s", error)
            self.forbidden = str(error)
            self._forbidden_until = self._clock() + FORBIDDEN_SECONDS
        except Unavailable:
            raise
        except CagrpcError as error:  # gone, or changed since: the view will report it
            log.debug("pod %s/%s is not nominated to %s: %s", pod.ref.namespace, pod.ref.name, node or "none", error)
        now = self._clock()
        self._sent[pod.ref.uid] = _Sent(node, pod.seen, now, before.first_at_seconds if before else now)


def _operations(pod: PendingPod, node: str) -> list[dict[str, Any]]:
    """Return the JSON patch (RFC 6902). An absent member is tested to be null, as the API server's library has it."""
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.ref.uid},
        {"op": "test", "path": _NOMINATED, "value": pod.nominated_node or None},
        {"op": "add", "path": _NOMINATED, "value": node} if node else {"op": "remove", "path": _NOMINATED},
    ]


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
