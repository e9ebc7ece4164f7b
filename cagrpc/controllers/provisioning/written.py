"""Labels of bookings on nodes, and requests as they are after our own writes, which the store may not show yet: so that
nothing is done twice. Lost with the process, at no cost: a new process lists everything first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cagrpc.cluster.markers import booking_label
from cagrpc.controllers.assume_cache.labels import AssumedLabels
from cagrpc.controllers.provisioning.model import ProvisioningRequest
from cagrpc.errors import CagrpcError, NotFound, Unavailable
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.parallel import in_parallel
from cagrpc.kube.taints import NODES

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _WrittenRequest:
    """A request as of our latest write."""

    request: ProvisioningRequest
    superseded: set[str] = field(default_factory=set)
    """The resource versions before it."""


class WrittenRequests:
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


class BookingLabels:
    """Sets and removes booking labels on nodes. Thread-safe."""

    def __init__(self, client: Client, assumed: AssumedLabels, workers: int) -> None:
        self._client = client
        self._assumed = assumed
        self._workers = workers

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
                self._client.patch(f"{NODES}/{name}", {"metadata": {"labels": labels}})
            except NotFound:
                return name, ""
            except Unavailable:
                raise
            except CagrpcError as error:
                return name, str(error)
            self._assumed.wrote(name, labels, there=there)
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
