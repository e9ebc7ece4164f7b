"""Nodes as columns of numbers, by position: what is free, and which pods may run there. Pure. What is asked for is
found for all nodes at once, and remembered: of nodes with equal taints and labels, as far as these are read, one is
looked at."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from solver.model import Node, PodSpec, Resources
from solver.model.eligibility import node_label_keys, on_nodes, read_node_names, why_not_eligible

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

_MOST = 2**62
"""Amounts above it are as good as this one."""


class NodeColumns:
    """Nodes in a fixed order. What it returns is not to be changed."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self._free: dict[str, Ints] = {}
        self._labels: dict[str, Ints] = {}
        self._taints: Ints | None = None
        self._admits: dict[PodSpec, Bools] = {}

    def __len__(self) -> int:
        return len(self.nodes)

    def free(self, resource: str) -> Ints:
        """Return what is free of a resource, at least 0."""
        if resource not in self._free:
            amounts = [node.free.get(resource, 0) for node in self.nodes]
            if max(amounts, default=0) > _MOST:
                amounts = [min(amount, _MOST) for amount in amounts]
            self._free[resource] = np.maximum(np.array(amounts, dtype=np.int64), 0)
        return self._free[resource]

    def admits(self, spec: PodSpec) -> Bools:
        """Return where such a pod may run, by names, labels and taints."""
        asked = on_nodes(spec)
        if asked not in self._admits:
            kinds, first = self.alike(node_label_keys([asked]), names=read_node_names([asked]))
            nodes = (self.nodes[position] for position in first)
            may = [why_not_eligible(asked, node.labels, node.taints, node.name) is None for node in nodes]
            self._admits[asked] = np.array(may, dtype=bool)[kinds]
        return self._admits[asked]

    def alike(self, labels: Iterable[str], *, names: bool = False) -> tuple[Ints, Ints]:
        """Return a number for each node, the same for nodes with equal taints and values of these labels, and the first
        position of each number. With `names` no node is like another one."""
        if names:
            return np.arange(len(self.nodes)), np.arange(len(self.nodes))
        if self._taints is None:
            self._taints = _numbered([node.taints for node in self.nodes])
        kinds = self._taints
        for key in labels:
            if key not in self._labels:
                self._labels[key] = _numbered([node.labels.get(key) for node in self.nodes])
            values = self._labels[key]
            kinds = np.unique(kinds * (len(self.nodes) + 1) + values, return_inverse=True)[1]
        _, first, kinds = np.unique(kinds, return_index=True, return_inverse=True)
        return kinds, first


def amount_of(free: Resources, resource: str) -> int:
    """Return what is free of a resource, at least 0, as columns have it."""
    return min(max(0, free.get(resource, 0)), _MOST)


def open_where(free: Ints, amount: int) -> Bools:
    """Return where so much is free."""
    return free >= min(amount, _MOST)


def _numbered(values: Sequence[Hashable]) -> Ints:
    """Return a number for each value, the same for equal ones."""
    numbers: dict[Hashable, int] = {}
    found = (numbers.setdefault(value, len(numbers)) for value in values)
    return np.fromiter(found, dtype=np.int64, count=len(values))
