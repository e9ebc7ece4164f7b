"""Whether pods that are scheduled at the same time all fit, whichever nodes the scheduler chooses. Pure. Constraints
between pods are left to `relocation`.

There is a way to place them all. The scheduler has another, and could leave fragments that are too small for the last
pod: then a node would come up again for it. So the condition is stricter: no order and no choice of nodes may leave a
pod without room. A node with room for a pod is closed to it only after so many other pods have been bound there that
too little is left; where closing all nodes takes more pods than there are, one stays open.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import islice

import numpy as np

from cagrpc.controllers.scale_down.relocation import Pods
from solver.model import PODS, DeviceClaim, PodSpec
from solver.model.allocation import allocate
from solver.model.eligibility import on_nodes
from solver.reduction.node_columns import Bools, NodeColumns, amount_of

_Alike = tuple[PodSpec, tuple[DeviceClaim, ...]]
"""What pods may be on the same nodes by: their `on_nodes`, and their claims."""
_Requests = Mapping[str, int]
_AT_FIRST = 512
"""How many nodes are looked at before all others: mostly they are enough."""


class Crowd:
    """The pods, and the nodes with what is free before any of them is bound, by position."""

    def __init__(self, columns: NodeColumns) -> None:
        self._columns = columns
        self._there: Bools = np.ones(len(columns), dtype=bool)
        self._count = 0
        self._largest: dict[str, int] = {PODS: 1}
        self._hardest: dict[_Alike, tuple[_Requests, ...]] = {}
        """Of pods that may be on the same nodes the requests that no other ones exceed: where these fit, all do."""
        self._served: dict[tuple[DeviceClaim, ...], dict[int, bool]] = {}

    def add(self, pods: Pods) -> None:
        """Add pods to be scheduled."""
        self._count, self._largest, self._hardest = self._with(pods)

    def remove(self, position: int) -> None:
        """Remove a node."""
        self._there[position] = False

    def has_room(self, pods: Pods, without: int) -> bool:
        """Return whether all pods, these included, are sure to fit if the node `without` goes. Constraints between pods
        are ignored."""
        count, largest, hardest = self._with(pods)
        self._there[without], there = False, self._there[without]
        try:
            return all(
                self._stays_open(alike, requests, largest, count)
                for alike, several in hardest.items()
                for requests in several
            )
        finally:
            self._there[without] = there

    def _with(self, pods: Pods) -> tuple[int, dict[str, int], dict[_Alike, tuple[_Requests, ...]]]:
        """Return the number of pods, the largest request of each resource, and the hardest to place, these included."""
        largest, hardest = {**self._largest}, {**self._hardest}
        for spec in pods:
            requests = {PODS: 1, **dict(spec.requests)}
            for resource, amount in requests.items():
                largest[resource] = max(largest.get(resource, 0), amount)
            alike = _on_nodes(spec), spec.claims
            others = hardest.get(alike, ())
            if not any(_exceeds(other, requests) for other in others):
                hardest[alike] = (*(other for other in others if not _exceeds(requests, other)), requests)
        return self._count + sum(pods.values()), largest, hardest

    def _stays_open(self, alike: _Alike, requests: _Requests, largest: _Requests, count: int) -> bool:
        """Return whether it takes at least so many pods, of the largest size in every resource, to leave no node with
        room for this one."""
        spec, claims = alike
        open_to = self._there & self._columns.admits(spec)
        takes = 0
        for part in (slice(0, _AT_FIRST), slice(_AT_FIRST, None)):
            open_ = open_to[part]
            comers = np.full(len(open_), np.iinfo(np.int64).max)
            for resource in requests:
                left = self._columns.free(resource)[part] - amount_of(requests, resource)
                open_ &= left >= 0
                comers = np.minimum(comers, left // max(1, amount_of(largest, resource)) + 1)
            if claims:  # whichever pod is bound first may have the devices
                found = (position + (part.start or 0) for position in np.flatnonzero(open_).tolist())
                serving = (position for position in found if self._serves(claims, position))
                takes += sum(1 for _ in islice(serving, count - takes))
            else:
                takes += int(comers[open_].sum())
            if takes >= count:
                return True
        return False

    def _serves(self, claims: tuple[DeviceClaim, ...], position: int) -> bool:
        """Return whether a node has the devices for these claims."""
        answers = self._served.setdefault(claims, {})
        if position not in answers:
            answers[position] = allocate(self._columns.nodes[position].devices, claims) is not None
        return answers[position]


def _exceeds(one: _Requests, other: _Requests) -> bool:
    """Return whether one asks for at least as much of everything as the other."""
    return all(one.get(resource, 0) >= amount for resource, amount in other.items())


_on_nodes = lru_cache(maxsize=10_000)(on_nodes)
