"""Which node group a node of another cloud provider is of: nothing says so, but its labels are its group's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cagrpc.fleet.prices import NodePlace, place_of
from cagrpc.fleet.provisioners import pool_of
from solver.model import CPU, HOSTNAME, NodeGroup

if TYPE_CHECKING:
    from cagrpc.cluster.state import ClusterNode

_ALIKE = 0.05
"""By how much of its CPU a node may differ from its group's template."""


def group_of(node: ClusterNode, groups: Iterable[NodeGroup]) -> NodeGroup | None:
    """Return the group that a node is of: one of the same place and pool, with about as much CPU where neither says
    what it is; of several the one of which the node has most labels."""
    labels = node.node.labels
    place, pool, cpu = place_of(labels), pool_of(labels), node.node.allocatable.get(CPU, 0)

    def alike(group: NodeGroup) -> bool:
        there = place_of(group.labels) if group.labels else NodePlace.of_group(group)
        like = place.instance_type or pool or abs(group.allocatable.get(CPU, 0) - cpu) <= _ALIKE * max(cpu, 1)
        return bool(there == place and pool_of(group.labels) == pool and like)

    def shared(group: NodeGroup) -> tuple[int, str]:
        mine = {key: value for key, value in group.labels.items() if key != HOSTNAME}
        return sum(labels.get(key) == value for key, value in mine.items()) - len(mine), group.id

    return max((each for each in groups if alike(each)), key=shared, default=None)
