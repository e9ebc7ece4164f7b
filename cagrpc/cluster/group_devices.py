"""The devices of new nodes: as nodes of their group that stand have them, else nodes of their instance type that stand
or have stood, else as configured. Which devices serve whom is `cagrpc.api.devices`'s."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from cagrpc.api.core.nodes import INSTANCE_TYPE, group_labels
from cagrpc.api.devices.collection import typical
from cagrpc.api.devices.pools import NodeDevices
from cagrpc.cluster.state import ClusterState
from cagrpc.fleet.model import FleetSnapshot
from solver.model import Devices, NodeGroup


class GroupDevices:
    """Of one state of the cluster."""

    def __init__(self, snapshot: FleetSnapshot, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._seen: defaultdict[str, list[NodeDevices]] = defaultdict(list)
        for node in cluster.nodes if cluster.devices.any else ():
            group = snapshot.group_of_instance.get(node.provider_id)
            published = cluster.devices.published(node.node.name)
            if group is not None and published is not None:
                self._seen[group].append(published)

    def of(self, group: NodeGroup) -> tuple[Devices, ...]:
        """Return what a new node of the group has for the claims of pods."""
        cluster = self._cluster
        if not cluster.devices.any:
            return ()
        of_types: Mapping[str, NodeDevices] = cluster.devices_of_types
        template = (
            typical(self._seen[group.id])
            or of_types.get(group_labels(group).get(INSTANCE_TYPE, ""))
            or NodeDevices(cluster.devices_configured.get(group.id, ()))
        )
        return cluster.devices.of_group(template, group.allocatable)
