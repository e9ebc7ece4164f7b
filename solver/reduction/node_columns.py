"""Nodes as columns of numbers, by position: what is free, and which pods may run there. Pure. What is asked for is
remembered: of nodes with equal taints and labels, as far as these are read, one is looked at, and of specs that ask for
the same of nodes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from solver.model import Node, PodSpec, Resources
from solver.model.eligibility import (
    all_why_not_eligible,
    node_label_keys,
    on_nodes,
    read_node_names,
    why_not_eligible,
)

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
        self._kinds: dict[tuple[str, ...], tuple[Ints, Ints]] = {}
        self._verdicts: dict[PodSpec, _Verdicts] = {}
        self._causes: dict[PodSpec, dict[str, Bools]] = {}
        self._of_object: dict[int, tuple[PodSpec, _Verdicts]] = {}
        """By the id of a spec, which is held so that no other one has it: hashing takes longer than all the rest."""

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
        return self._verdicts_on(spec).admits

    def why_not(self, spec: PodSpec, position: int) -> str | None:
        """Return why such a pod may not run on one node, None where it may; no other node is looked at."""
        return self._verdicts_on(spec).at(position)

    def causes(self, spec: PodSpec) -> dict[str, Bools]:
        """Return every reason why such a pod may not run on some nodes, and on which."""
        asked = on_nodes(spec)
        if asked not in self._causes:
            kinds, first = self._kinds_for(asked)
            found: dict[str, Bools] = {}
            for kind, node in enumerate(self.nodes[position] for position in first):
                for cause in all_why_not_eligible(asked, node.labels, node.taints, node.name):
                    found.setdefault(cause, np.zeros(len(first), dtype=bool))[kind] = True
            self._causes[asked] = {cause: excluded[kinds] for cause, excluded in found.items()}
        return self._causes[asked]

    def _verdicts_on(self, spec: PodSpec) -> _Verdicts:
        known = self._of_object.get(id(spec))
        if known is None:
            asked = on_nodes(spec)
            if asked not in self._verdicts:
                self._verdicts[asked] = _Verdicts(asked, self.nodes, *self._kinds_for(asked))
            known = self._of_object[id(spec)] = spec, self._verdicts[asked]
        return known[1]

    def _kinds_for(self, asked: PodSpec) -> tuple[Ints, Ints]:
        return self.alike(node_label_keys([asked]), names=read_node_names([asked]))

    def alike(self, labels: Iterable[str], *, names: bool = False) -> tuple[Ints, Ints]:
        """Return a number for each node, the same for nodes with equal taints and values of these labels, and the first
        position of each number. With `names` no node is like another one."""
        if names:
            return np.arange(len(self.nodes)), np.arange(len(self.nodes))
        keys = tuple(sorted(labels))
        if keys not in self._kinds:
            kinds = self._taints
            for key in keys:
                if key not in self._labels:
                    self._labels[key] = _numbered([node.labels.get(key) for node in self.nodes])
                values = self._labels[key]
                kinds = np.unique(kinds * (len(self.nodes) + 1) + values, return_inverse=True)[1]
            _, first, kinds = np.unique(kinds, return_index=True, return_inverse=True)
            self._kinds[keys] = kinds, first
        return self._kinds[keys]

    @cached_property
    def _taints(self) -> Ints:
        return _numbered([node.taints for node in self.nodes])


class _Verdicts:
    """Why pods that ask for the same of nodes may not run on some."""

    def __init__(self, asked: PodSpec, nodes: Sequence[Node], kinds: Ints, first: Ints) -> None:
        self._asked, self._nodes, self._kinds, self._first = asked, nodes, kinds, first
        self._known: dict[int, str | None] = {}
        """By kind of node."""

    def at(self, position: int) -> str | None:
        return self._of_kind(int(self._kinds[position]))

    def _of_kind(self, kind: int) -> str | None:
        if kind not in self._known:
            node = self._nodes[self._first[kind]]
            self._known[kind] = why_not_eligible(self._asked, node.labels, node.taints, node.name)
        return self._known[kind]

    @property
    def of_kinds(self) -> tuple[list[str | None], Ints]:
        """All of them, and the kinds of the nodes."""
        return [self._of_kind(kind) for kind in range(len(self._first))], self._kinds

    @cached_property
    def admits(self) -> Bools:
        found, kinds = self.of_kinds
        return np.array([each is None for each in found], dtype=bool)[kinds]


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
