"""Nodes with many booking labels, whose number is bounded. Labels stay as long as their request, since its pods may
select by them; where there are too many, those of finished requests are removed, the oldest first."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace

from cagrpc.cluster.markers import booking_labels
from cagrpc.cluster.state import ClusterNode
from cagrpc.controllers.provisioning.decision.model import Scenario
from solver.model import Node

log = logging.getLogger(__name__)

MOST_LABELS = 250
"""Of one node, which rarely has more pods. Each is sent to every watcher of nodes."""


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
