"""What is free on the nodes that stay, beside all that is assumed there. Pure. Where pods are assumed is decided in
`relocation`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from cagrpc.cluster.node_info import DisplacedOwner, NodeInfo, Reservation, Reservations
from cagrpc.cluster.state import ClusterNode
from solver.model import PODS, DeviceClaim, PodSpec
from solver.reduction.node_columns import Bools, Ints, NodeColumns, amount_of, open_where

_DISPLACED = DisplacedOwner()


class Room:
    """Nodes by position, in the order in which they are preferred; they change as pods are assumed there, and go. For
    one thread."""

    def __init__(self, nodes: Sequence[ClusterNode], reservations: Reservations) -> None:
        """`reservations` are assumed at once."""
        self.nodes = nodes
        self._infos: dict[int, NodeInfo] = {}
        """Of nodes that were asked for."""
        self._assumed: set[int] = set()
        """Positions of nodes where anything is assumed."""
        as_planned = [each.node for each in nodes]
        self.position = {node.name: number for number, node in enumerate(as_planned)}
        for name in reservations.keys() & self.position.keys():
            position = self.position[name]
            info = self.info(position)
            for each in reservations[name]:
                info.assume(each.owner, each.spec, each.count)
            self._assumed.add(position)
            as_planned[position] = info.node()
        self.columns = NodeColumns(as_planned)
        """Before any pods are assumed but those of the reservations."""
        self.there: Bools = np.ones(len(nodes), dtype=bool)
        self._free: dict[str, Ints] = {}
        self._with_devices: Bools | None = None
        self._unserved: dict[tuple[DeviceClaim, ...], Bools] = {}
        """Where such claims have found no devices."""
        self._before: dict[int, NodeInfo] | None = None

    def info(self, position: int) -> NodeInfo:
        found = self._infos.get(position)
        if found is None:
            found = self._infos[position] = NodeInfo(self.nodes[position].node)
        return found

    def free(self, resource: str) -> Ints:
        """Return what is free of a resource, by position."""
        if resource not in self._free:
            found = self._free[resource] = self.columns.free(resource).copy()
            for position in self._assumed:
                found[position] = amount_of(self._infos[position].free, resource)
        return self._free[resource]

    def open_to(self, spec: PodSpec) -> Bools:
        """Return where one such pod has room and may run. Host ports and other pods are not looked at, nor are devices
        before `unserved` was called."""
        found = self.there & self.columns.admits(spec)
        for resource, amount in (*spec.requests, (PODS, 1)):
            found &= open_where(self.free(resource), amount)
        if spec.claims:
            if self._with_devices is None:
                self._with_devices = np.array([bool(node.devices) for node in self.columns.nodes], dtype=bool)
            found &= self._with_devices
            if spec.claims in self._unserved:
                found &= ~self._unserved[spec.claims]
        return found

    def unserved(self, claims: tuple[DeviceClaim, ...], position: int) -> None:
        """Remember that such claims find no devices on a node: they are never more."""
        if claims not in self._unserved:
            self._unserved[claims] = np.zeros(len(self.nodes), dtype=bool)
        self._unserved[claims][position] = True

    def reservations(self, position: int) -> Sequence[Reservation]:
        """Return what is assumed on a node."""
        return self._infos[position].reservations if position in self._assumed else ()

    def all_assumed(self) -> Iterable[tuple[int, PodSpec, int]]:
        """Yield the pods that are assumed, with the positions of their nodes."""
        return ((at, each.spec, each.count) for at in self._assumed for each in self.reservations(at))

    def assume(self, position: int, spec: PodSpec, count: int) -> None:
        """Assume so many displaced pods on a node."""
        info = self.info(position)
        if self._before is not None and position not in self._before:
            self._before[position] = info.copy()
        info.assume(_DISPLACED, spec, count)
        self._assumed.add(position)
        self._look_again(position)

    def remove(self, position: int) -> None:
        """Drop a node with all that runs or is assumed on it."""
        self.there[position] = False

    def put_back(self, position: int) -> None:
        """Take back that a node was removed."""
        self.there[position] = True

    def begin(self) -> None:
        """Remember what is assumed from now on."""
        self._before = {}

    def end(self, *, undo: bool) -> None:
        """Forget what was assumed since `begin`, or keep it."""
        before, self._before = self._before or {}, None
        for position, info in before.items() if undo else ():
            self._infos[position] = info
            if not info.owners:
                self._assumed.discard(position)
            self._look_again(position)
        if undo and before:
            self._unserved.clear()

    def _look_again(self, position: int) -> None:
        free = self._infos[position].free
        for resource, amounts in self._free.items():
            amounts[position] = amount_of(free, resource)
