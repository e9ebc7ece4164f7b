"""`status.nominatedNodeName` of pods: the scheduler tries a nominated node first, and keeps its room from pods of the
same or a lower priority (upstream: schedule_one.go, KEP-5278). One patch for each pod, on condition that it is the pod
that was meant and that its nomination is as it was seen: what the scheduler nominates meanwhile is never overwritten.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cagrpc.cluster.markers import PLACEMENT_FIELD_MANAGER
from cagrpc.cluster.state import PendingPod
from cagrpc.errors import CagrpcError, Unavailable
from cagrpc.kube.client.client import METADATA_ONLY, PatchKind
from cagrpc.kube.client.failures import Forbidden
from cagrpc.runtime.clock import MonotonicClock

log = logging.getLogger(__name__)

UNSEEN_SECONDS = 1.0
"""So long after a patch the pod is believed to be as it was written, though it is not seen to be."""
FORBIDDEN_SECONDS = 60.0
"""How often to ask again where the right to patch pods/status is missing."""

_NOMINATED = "/status/nominatedNodeName"


class PodPatcher(Protocol):
    """What `kube.client.Client` offers of them."""

    def patch(
        self, path: str, body: Sequence[dict[str, Any]], kind: PatchKind, *, field_manager: str, accept: str
    ) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class _Sent:
    node: str
    seen: int
    """Of the pod, before it was written."""
    at_seconds: float
    first_at_seconds: float
    """Of those that were the same."""


class Nominations:
    """Thread-safe, but for one pod from several threads. `clock` counts seconds."""

    def __init__(self, pods: PodPatcher, clock: MonotonicClock) -> None:
        self._pods = pods
        self._clock = clock
        self._sent: dict[str, _Sent] = {}
        """What was written last, by pod (UID)."""
        self._forbidden_until = float("-inf")
        self.forbidden = ""
        """Why pods cannot be nominated at all; empty where they can."""
        self.written = 0
        """All that were ever set or taken back."""

    def stands(self, pod: PendingPod, node: str) -> bool:
        """Whether there is nothing to wait for before the scheduler may see the node: the pod is seen to be nominated,
        or cannot be, or it was tried and has not been seen since for longer than that takes."""
        if pod.nominated_node == node:
            return True
        if self.forbidden or (pod.nominated_node and not pod.nominated_by_us):
            return True
        sent = self._sent_as(pod, node)
        return sent is not None and self._clock() >= sent.first_at_seconds + UNSEEN_SECONDS

    def begun(self, pod: PendingPod, node: str) -> bool:
        """Whether the pod has been nominated to this node, or was tried to be, whatever has become of it since."""
        sent = self._sent.get(pod.ref.uid)
        return self.stands(pod, node) or (sent is not None and sent.node == node)

    def bring_about(self, pod: PendingPod, node: str) -> float | None:
        """Writes the nomination where it is another one, and none for an empty `node`. The scheduler's own (preemption)
        is never replaced. After how many seconds to look again; None where nothing is to be done until the pod has
        changed. Raises Unavailable where the API server is out of reach. A pod that has changed meanwhile is left to
        the next look; one that is refused for another reason is the scheduler's."""
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
        """The pod is pending no longer."""
        self._sent.pop(uid, None)

    def _sent_as(self, pod: PendingPod, node: str) -> _Sent | None:
        """What was written last, where it was this and the pod has not been seen since."""
        sent = self._sent.get(pod.ref.uid)
        return sent if sent is not None and (sent.node, sent.seen) == (node, pod.seen) else None

    def _write(self, pod: PendingPod, node: str) -> None:
        before = self._sent_as(pod, node)
        try:
            self._pods.patch(
                f"/api/v1/namespaces/{pod.ref.namespace}/pods/{pod.ref.name}/status",
                _operations(pod, node),
                PatchKind.JSON,
                field_manager=PLACEMENT_FIELD_MANAGER,
                accept=METADATA_ONLY,
            )
            self.written += 1
            self.forbidden = ""
        except Forbidden as error:
            if not self.forbidden:
                log.warning("pods are left to the scheduler, for they cannot be nominated: %s", error)
            self.forbidden = str(error)
            self._forbidden_until = self._clock() + FORBIDDEN_SECONDS
        except Unavailable:
            raise
        except CagrpcError as error:  # gone, or changed since: that will be seen
            log.debug("pod %s/%s is not nominated to %s: %s", pod.ref.namespace, pod.ref.name, node or "none", error)
        now = self._clock()
        self._sent[pod.ref.uid] = _Sent(node, pod.seen, now, before.first_at_seconds if before else now)


def _operations(pod: PendingPod, node: str) -> list[dict[str, Any]]:
    """RFC 6902. A member that is absent is tested to be null, as the API server's library has it."""
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.ref.uid},
        {"op": "test", "path": _NOMINATED, "value": pod.nominated_node or None},
        {"op": "add", "path": _NOMINATED, "value": node} if node else {"op": "remove", "path": _NOMINATED},
    ]
