"""The assume cache: our own writes that the store and the view may not show yet, so that nothing is done twice. Lost
with the process, at no cost: a new process lists everything first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cagrpc.cluster.markers import booking_label
from cagrpc.cluster.state import ClusterNode, ClusterState
from cagrpc.controllers.provisioning.model import ProvisioningRequest
from cagrpc.controllers.provisioning.sources import RequestClient
from cagrpc.errors import CagrpcError, NotFound, Unavailable
from cagrpc.kube.client.client import PatchKind
from cagrpc.kube.client.parallel import in_parallel
from cagrpc.kube.taints import NODES
from cagrpc.runtime.clock import MonotonicClock

log = logging.getLogger(__name__)

_UNSEEN_SECONDS = 60.0
"""How long after a label was written it is assumed on the node though it is not observed there."""


@dataclass(slots=True)
class _WrittenRequest:
    """A request as of our latest write."""

    request: ProvisioningRequest
    superseded: set[str] = field(default_factory=set)
    """The resource versions before it."""


class AssumedRequests:
    """Requests as they are after our own writes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written: dict[str, _WrittenRequest] = {}

    def latest(self, seen: Iterable[ProvisioningRequest]) -> list[ProvisioningRequest]:
        """Return each request as observed or as written, whichever is newer."""
        with self._lock:
            found = [self._latest(request) for request in seen]
            there = {request.uid for request in found}
            self._written = {uid: written for uid, written in self._written.items() if uid in there}
        return found

    def _latest(self, seen: ProvisioningRequest) -> ProvisioningRequest:
        written = self._written.get(seen.uid)
        if written is None:
            return seen
        if seen.resource_version in written.superseded:
            return written.request
        del self._written[seen.uid]
        return seen

    def wrote(self, before: str, request: ProvisioningRequest) -> None:
        """Remember a write; `before` is the resource version that it replaced."""
        with self._lock:
            written = self._written.setdefault(request.uid, _WrittenRequest(request))
            written.request = request
            written.superseded.add(before)


class AssumedLabels:
    """Booking labels on nodes. Thread-safe."""

    def __init__(self, client: RequestClient, clock: MonotonicClock, workers: int) -> None:
        self._client = client
        self._workers = workers
        self._clock = clock
        self._lock = threading.Lock()
        self._written: dict[str, dict[str, tuple[bool, float]]] = {}
        """By node and label: whether it was set rather than removed, and when."""

    def seen(self, state: ClusterState) -> ClusterState:
        """Return the cluster with the labels that were written."""
        now = self._clock()
        with self._lock:
            if not self._written:
                return state
            nodes = tuple(self._overlaid(each, now) for each in state.nodes)
            names = {each.node.name for each in nodes}
            for name in [name for name in self._written if name not in names]:
                if all(now - at >= _UNSEEN_SECONDS for _, at in self._written[name].values()):
                    del self._written[name]
        return replace(state, nodes=nodes)

    def _overlaid(self, each: ClusterNode, now: float) -> ClusterNode:
        written = self._written.get(each.node.name)
        if written is None:
            return each
        left = {
            label: (there, at)
            for label, (there, at) in written.items()
            if (label in each.node.labels) is not there and now - at < _UNSEEN_SECONDS
        }
        if not left:
            # Another thread may still bring an older observation; remembering longer for that is not worth it.
            del self._written[each.node.name]
            return each
        self._written[each.node.name] = left
        labels = {name: value for name, value in each.node.labels.items() if left.get(name, (True, 0.0))[0]}
        labels.update((label, "true") for label, (there, _) in left.items() if there)
        return replace(each, node=replace(each.node, labels=labels))

    def put(self, nodes: Mapping[str, Iterable[str]]) -> dict[str, str]:
        """Label nodes for requests (node name -> UIDs). Return why for each that could not be labelled, "" for one that
        is gone. Raises Unavailable where the API server is out of reach."""
        return self._write(nodes, there=True)

    def drop(self, nodes: Mapping[str, Iterable[str]]) -> None:
        """Remove these labels; one that cannot be removed is logged. Raises Unavailable as `put` does."""
        for name, why in self._write(nodes, there=False).items():
            if why:
                log.warning("node %s: a stale booking label cannot be removed: %s", name, why)

    def _write(self, nodes: Mapping[str, Iterable[str]], *, there: bool) -> dict[str, str]:
        def write(entry: tuple[str, Iterable[str]]) -> tuple[str, str] | None:
            name, uids = entry
            labels = {booking_label(uid): "true" if there else None for uid in sorted(uids)}
            try:
                self._client.patch(f"{NODES}/{name}", {"metadata": {"labels": labels}}, PatchKind.MERGE)
            except NotFound:
                return name, ""
            except Unavailable:
                raise
            except CagrpcError as error:
                return name, str(error)
            now = self._clock()
            with self._lock:
                self._written.setdefault(name, {}).update((label, (there, now)) for label in labels)
            return None

        failed = in_parallel("label", write, nodes.items(), self._workers)
        return dict(each for each in failed if each is not None)


def by_node(nodes: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Return the requests of each node, from the nodes of each request."""
    found: dict[str, set[str]] = {}
    for uid, names in nodes.items():
        for name in names:
            found.setdefault(name, set()).add(uid)
    return found
