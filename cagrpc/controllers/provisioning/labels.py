"""Labels of bookings on nodes. They stay as long as their request, since its pods may select by them; where a node has
too many, those of finished requests are removed, the oldest first."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from cagrpc.cluster.markers import booking_label, booking_labels
from cagrpc.cluster.state import ClusterNode
from cagrpc.controllers.assume_cache.bookings import AssumedLabels
from cagrpc.controllers.provisioning.scenario import Scenario
from cagrpc.errors import CagrpcError, NotFound, Unavailable
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.parallel import in_parallel
from cagrpc.kube.nodes import NODES
from solver.model import Node

log = logging.getLogger(__name__)


MOST_LABELS = 250
"""Of one node, which rarely has more pods. Each is sent to every watcher of nodes."""


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


def is_full(node: Node) -> bool:
    """Return whether the node is to get no more booking labels."""
    return len(booking_labels(node)) >= MOST_LABELS


def to_be_labelled(scenario: Scenario) -> Scenario:
    """Return the scenario without nodes that are to get no more labels."""
    nodes = tuple(node for node in scenario.nodes if not is_full(node))
    return scenario if len(nodes) == len(scenario.nodes) else replace(scenario, nodes=nodes)


class Crowded:
    """Finds the labels to remove. For one thread."""

    def __init__(self) -> None:
        self.full: frozenset[str] = frozenset()
        """Names of nodes that get no more labels, since none of theirs may be removed."""

    def old(self, nodes: Iterable[ClusterNode], through: Collection[str]) -> dict[str, list[str]]:
        """Return the requests whose labels are to be removed, by node. `through` are requests (UIDs) without a
        reservation any more, oldest first."""
        found: dict[str, list[str]] = {}
        full: set[str] = set()
        for each in nodes:
            if is_full(each.node):
                there = {*booking_labels(each.node)}
                old = [uid for uid in through if uid in there][: MOST_LABELS // 2]
                if old:
                    found[each.node.name] = old
                else:
                    full.add(each.node.name)
        for name in sorted(full - self.full):
            log.warning("node %s has the labels of %d bookings or more, and gets no other", name, MOST_LABELS)
        self.full = frozenset(full)
        return found
