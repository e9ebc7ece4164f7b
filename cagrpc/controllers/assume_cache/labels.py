"""Booking labels on nodes: assumed as they were written, until the view shows them, so that nothing is done twice."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

from cagrpc.cluster.state import ClusterNode, ClusterState
from cagrpc.runtime.clock import MonotonicClock

_UNSEEN_SECONDS = 60.0
"""How long after a label was written it is assumed on the node though it is not observed there."""


class AssumedLabels:
    """Booking labels that we have written and the view may not show yet. Lost with the process, at no cost: a new
    process lists everything first. Thread-safe."""

    def __init__(self, clock: MonotonicClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._written: dict[str, dict[str, tuple[bool, float]]] = {}
        """By node and label: whether it was set rather than removed, and when."""

    def wrote(self, name: str, labels: Iterable[str], *, there: bool) -> None:
        """Remember labels that were set on a node, or removed."""
        now = self._clock()
        with self._lock:
            self._written.setdefault(name, {}).update((label, (there, now)) for label in labels)

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
