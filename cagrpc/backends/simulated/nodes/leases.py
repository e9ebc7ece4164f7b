"""Leases of simulated Nodes, renewed evenly over time as kubelets would; the node lifecycle controller reads them to
know that a Node is alive."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from cagrpc.api.encoding.times import micro_timestamp
from cagrpc.backends.simulated.nodes.nodes import SimulatedNode
from cagrpc.errors import NotFound
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import EpochClock, MonotonicClock, epoch, monotonic
from cagrpc.runtime.work_queue import WorkQueue

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

_RENEWED_AFTER = 0.55
"""As a fraction of the duration: if one renewal fails, the next is still in time."""
_WORKERS = 16
"""Enough for 5,000 nodes with an API server that takes 70 ms for each."""


class NodeLeases:
    """One Lease for each Node that was passed to `keep` and that `node_of` still knows. Each Node has its own offset in
    the interval, which spreads renewals however many Nodes there are; after a start all are renewed at once."""

    def __init__(
        self,
        client: Client,
        node_of: Callable[[str], SimulatedNode | None],
        *,
        duration_seconds: float = 40.0,
        now: EpochClock = epoch,
        clock: MonotonicClock = monotonic,
    ) -> None:
        self._client = client
        self._node_of = node_of
        self._duration = duration_seconds
        self._interval = duration_seconds * _RENEWED_AFTER
        self._now = now
        self._names: set[str] = set()
        self.queue: WorkQueue[str] = WorkQueue(
            "node leases", self._renew, workers=_WORKERS, longest_pause_seconds=self._interval / 4, clock=clock
        )

    def keep(self, name: str) -> None:
        if name not in self._names:
            self._names.add(name)
            self.queue.add(name)

    def remove(self, name: str) -> None:
        self._names.discard(name)
        self._client.delete(f"{LEASES}/{name}")

    def _renew(self, name: str) -> float | None:
        node = self._node_of(name)
        if node is None or name not in self._names:
            self._names.discard(name)
            return None
        now = self._now()
        try:
            self._client.patch(f"{LEASES}/{name}", {"spec": {"renewTime": micro_timestamp(now)}})
        except NotFound:
            self._client.create(LEASES, self._lease(node, now))
            if name not in self._names:  # removed at the same time
                self._client.delete(f"{LEASES}/{name}")
        offset = zlib.crc32(name.encode()) / 2**32 * self._interval
        return self._interval - (now - offset) % self._interval

    def _lease(self, node: SimulatedNode, now: float) -> dict[str, Any]:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": node.name, "ownerReferences": [owner]},
            "spec": {
                "holderIdentity": node.name,
                "leaseDurationSeconds": max(1, round(self._duration)),
                "renewTime": micro_timestamp(now),
            },
        }
