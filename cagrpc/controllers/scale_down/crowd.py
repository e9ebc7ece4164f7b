"""Whether pods that are scheduled at the same time all fit, whichever nodes the scheduler chooses. Pure. Constraints
between pods are left to the planner (`relocation`).

The planner finds one way to place them all. The scheduler has another, and could leave fragments that are too small for
the last pod: then a node would come up again for it. So the condition is stricter: no order and no choice of nodes may
leave a pod without room. A node with room for a pod is closed to it only after so many other pods have been bound there
that too little is left; where closing all nodes takes more pods than there are, one stays open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cagrpc.controllers.scale_down.relocation import Pods
from solver.model import PODS, Node, PodSpec
from solver.model.allocation import allocate
from solver.model.eligibility import on_nodes, why_not_eligible


class Crowd:
    """The pods, and the existing nodes with what is free before any of them is bound."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._index = {node.name: number for number, node in enumerate(nodes)}
        self._there = np.ones(len(nodes), dtype=bool)
        self._pods: Counter[PodSpec] = Counter()
        self._free_of: dict[str, NDArray[np.int64]] = {}
        self._open_to: dict[PodSpec, NDArray[np.bool_]] = {}

    def add(self, pods: Pods) -> None:
        """Add pods to be scheduled."""
        self._pods.update(pods)

    def remove(self, name: str) -> None:
        """Remove a node."""
        self._there[self._index[name]] = False

    def has_room(self, pods: Pods, without: str) -> bool:
        """Return whether all pods, these included, are sure to fit if the node `without` goes. Constraints between pods
        are ignored."""
        everybody = self._pods + Counter(pods)
        there = self._there.copy()
        there[self._index[without]] = False
        largest: Counter[str] = Counter({PODS: 1})
        for spec in everybody:
            for resource, amount in spec.requests:
                largest[resource] = max(largest[resource], amount)
        total = sum(everybody.values())
        return all(self._takes_to_shut(spec, there, largest) >= total for spec in everybody)

    def _takes_to_shut(self, spec: PodSpec, there: NDArray[np.bool_], largest: Counter[str]) -> int:
        """Return how many pods, of the largest size in every resource, are bound before no node has room for this
        one."""
        open_ = there & self._eligible(spec)
        comers = np.full(len(self._nodes), np.iinfo(np.int64).max)
        for resource, amount in (*spec.requests, (PODS, 1)):
            left = self._free(resource) - amount
            open_ &= left >= 0
            comers = np.minimum(comers, left // largest[resource] + 1)
        if spec.claims:  # whichever pod is bound first may have the devices
            open_ &= np.array([allocate(node.devices, spec.claims) is not None for node in self._nodes], dtype=bool)
            comers = np.minimum(comers, 1)
        return int(comers[open_].sum())

    def _free(self, resource: str) -> NDArray[np.int64]:
        if resource not in self._free_of:
            self._free_of[resource] = np.array([node.free.get(resource, 0) for node in self._nodes], dtype=np.int64)
        return self._free_of[resource]

    def _eligible(self, spec: PodSpec) -> NDArray[np.bool_]:
        key = _on_nodes(spec)
        if key not in self._open_to:
            may = [why_not_eligible(spec, node.labels, node.taints, node.name) is None for node in self._nodes]
            self._open_to[key] = np.array(may, dtype=bool)
        return self._open_to[key]


_on_nodes = lru_cache(maxsize=10_000)(on_nodes)
