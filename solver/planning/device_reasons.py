"""Why the devices of groups and nodes do not serve a pod's claims, for `reasons`. Nothing is computed for pods without
claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from solver.model import DeviceClaim, Devices, Node, NodeGroup, PlacedOnNode, PodSpec, Problem
from solver.model.allocation import after_pods, allocate, why_not_allocated
from solver.model.capacity import on_new_node
from solver.reduction.devices import is_planned
from solver.reduction.reduced import Bools

BESIDE_OTHERS = "its resource claims may find no devices beside those of the pods that are served"
_ENTANGLED = "its resource claims can be met in more ways than are planned: one request may take what another needs"


class DeviceReasons:
    """Groups and nodes, compared once for all classes."""

    def __init__(self, problem: Problem, specs: Mapping[int, PodSpec], placed: Sequence[PlacedOnNode]) -> None:
        """`specs` by class index; `placed` are the plan's pods on existing nodes."""
        self._problem, self._specs = problem, specs
        self._placed = {each.node: each.pods for each in placed}
        self._new: dict[str, tuple[Devices, ...]] = {}
        self._known: dict[tuple[tuple[Devices, ...], tuple[DeviceClaim, ...]], str | None] = {}
        self._left: dict[str, tuple[Devices, ...]] = {}

    def why_not(self, where: NodeGroup | Node, claims: tuple[DeviceClaim, ...]) -> str | None:
        """Return why a node, empty but for what runs there, does not serve the claims; None where it does."""
        if not claims:
            return None
        key = (self._devices(where), claims)
        if key not in self._known:
            reason = why_not_allocated(*key)
            self._known[key] = reason or (None if is_planned(*key) else _ENTANGLED)
        return self._known[key]

    def taken(self, claims: tuple[DeviceClaim, ...]) -> Bools:
        """Return per existing node whether the plan's pods leave it too few devices for one more pod."""
        return np.array([allocate(self._after_plan(node), claims) is None for node in self._problem.nodes], dtype=bool)

    def _devices(self, where: NodeGroup | Node) -> tuple[Devices, ...]:
        if isinstance(where, Node):
            return where.devices
        if where.id not in self._new:
            self._new[where.id] = on_new_node(where, self._problem.daemon_sets)[1]
        return self._new[where.id]

    def _after_plan(self, node: Node) -> tuple[Devices, ...]:
        if node.name not in self._left:
            pods = self._placed.get(node.name, {})
            claims = [self._specs[index].claims for index, count in pods.items() for _ in range(count)]
            self._left[node.name] = after_pods(node.devices, claims)
        return self._left[node.name]
