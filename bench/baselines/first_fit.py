"""The baseline of the planner's benchmarks: first-fit decreasing, as greedy autoscalers pack. Pods go onto nodes that
stand or are opened already, in their order, and what is left opens nodes of the group that is cheapest per pod. Pods of
a class are placed together, and equal nodes are kept as one row, so that its time says something about packing rather
than about Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.model import PODS, Node, NodeGroup, PodSpec, Problem
from solver.model.eligibility import on_nodes, why_not_eligible
from solver.model.validation import validate

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Packing:
    """What the nodes that first-fit opens cost, and the pods it has no place for."""

    cost_usd_per_hour: float
    unplaced: int


def first_fit_decreasing(problem: Problem) -> Packing:
    """Keeps to requests, selectors, taints and maximum sizes. Limits, gangs, priorities, weights, minimum sizes,
    DaemonSets and constraints between pods are not looked at, so that of problems with such it is a relaxation."""
    validate(problem)
    nodes = _OpenNodes(problem)
    largest = nodes.group_sizes.max(axis=0, initial=1)
    needs = [nodes.need(pods.spec) for pods in problem.pod_sets]
    order = sorted(
        range(len(needs)), key=lambda i: -float((needs[i][:-1] / np.maximum(largest[:-1], 1)).max(initial=0))
    )
    cost, unplaced = 0.0, 0
    for i in order:
        pods = problem.pod_sets[i]
        left = nodes.fill(pods.spec, needs[i], pods.count)
        while left:
            group = nodes.cheapest(pods.spec, needs[i], left)
            if group is None:
                unplaced += left
                break
            opened, left = nodes.open(group, needs[i], left)
            cost += problem.node_groups[group].price_usd_per_hour * opened
    return Packing(cost, unplaced)


class _OpenNodes:
    """Nodes with room, equal ones in one row: how many, what is free, and which template (a group, or a standing
    node's labels and taints) they are of."""

    def __init__(self, problem: Problem) -> None:
        named = {name for pods in problem.pod_sets for name, _ in pods.spec.requests}
        self._names = [*sorted(named), PODS]
        self._groups = problem.node_groups
        self.group_sizes = np.array([self._row(g.allocatable) for g in self._groups]).reshape(-1, len(self._names))
        self._prices = np.array([g.price_usd_per_hour for g in self._groups])
        self._left = np.array([g.max_size - g.target_size for g in self._groups], dtype=np.int64)
        self._templates: list[NodeGroup | Node] = list(self._groups)
        standing = {(tuple(sorted(node.labels.items())), node.taints, node.name): node for node in problem.nodes}
        alike: dict[object, int] = {}
        rows = []
        for (labels, taints, _), node in standing.items():
            if (labels, taints) not in alike:
                alike[labels, taints] = len(self._templates)
                self._templates.append(node)
            rows.append(alike[labels, taints])
        self._template = np.array(rows, dtype=np.int64)
        self._free = np.array([self._row(node.free) for node in standing.values()]).reshape(-1, len(self._names))
        self._count = np.ones(len(rows), dtype=np.int64)
        self._may_run: dict[PodSpec, NDArray[np.bool_]] = {}

    def _row(self, amounts: Mapping[str, int]) -> Ints:
        return np.array([amounts.get(name, 0) for name in self._names], dtype=np.int64)

    def need(self, spec: PodSpec) -> Ints:
        return self._row({**dict(spec.requests), PODS: 1})

    def _eligible(self, spec: PodSpec) -> NDArray[np.bool_]:
        key = on_nodes(spec)
        if key not in self._may_run:
            self._may_run[key] = np.array(
                [why_not_eligible(spec, t.labels, t.taints) is None for t in self._templates], dtype=bool
            )
        return self._may_run[key]

    def fill(self, spec: PodSpec, need: Ints, pods: int) -> int:
        """Places what fits on the nodes there are, first come first; returns how many are left."""
        fit = _fit(self._free, need) * self._eligible(spec)[self._template]
        room = fit * self._count
        before = np.cumsum(room) - room
        taken = np.clip(pods - before, 0, room)
        full = np.floor_divide(taken, fit, out=np.zeros_like(taken), where=fit > 0)
        rest = taken - full * fit
        # A row may come apart into nodes that are full now, one that got the last pods, and untouched ones.
        free = [self._free - np.outer(fit, need), self._free - np.outer(rest, need), self._free]
        count = [full, (rest > 0).astype(np.int64), self._count - full - (rest > 0)]
        places = np.concatenate([np.flatnonzero(c) for c in count])
        order = np.argsort(places, kind="stable")
        self._free = np.concatenate([f[c > 0] for f, c in zip(free, count, strict=True)])[order]
        self._count = np.concatenate([c[c > 0] for c in count])[order]
        self._template = self._template[places[order]]
        return pods - int(taken.sum())

    def cheapest(self, spec: PodSpec, need: Ints, pods: int) -> int | None:
        """The group with the least price per pod, for as many pods as there are; None where none has room."""
        fit = np.minimum(_fit(self.group_sizes, need), pods) * self._eligible(spec)[: len(self._groups)]
        usable = np.flatnonzero((fit > 0) & (self._left > 0))
        if not len(usable):
            return None
        per_pod = self._prices[usable] / fit[usable]
        ids = [self._groups[i].id for i in usable]
        return int(usable[min(range(len(ids)), key=lambda i: (per_pod[i], ids[i]))])

    def open(self, group: int, need: Ints, pods: int) -> tuple[int, int]:
        """New nodes of the group for as many of the pods as it can have; returns how many, and the pods left."""
        size = self.group_sizes[group]
        fit = int(_fit(size[None, :], need)[0])
        full = min(pods // fit, int(self._left[group]))
        rest = pods - full * fit if full < self._left[group] else 0
        rest = min(rest, fit)
        batches = [(size - fit * need, full), (size - rest * need, int(rest > 0))]
        for free, count in batches:
            if count:
                self._free = np.vstack([self._free, free])
                self._count = np.append(self._count, count)
                self._template = np.append(self._template, group)
        opened = full + (rest > 0)
        self._left[group] -= opened
        return opened, pods - full * fit - rest


def _fit(free: Ints, need: Ints) -> Ints:
    """How many pods of one need each row has room for."""
    asked = need > 0
    fit: Ints = (free[:, asked] // need[asked]).min(axis=1)
    return fit
