"""Where pods may go without anything being opened: Nodes that are Ready, and nodes of increments in flight as the
templates of their node groups have them, beside DaemonSets. A new node's devices are those of nodes of its group that
stand, else of its instance type that stand or have stood, else as configured; which devices serve whom is
`cagrpc.api.devices`'s. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cagrpc.api.core.nodes import HOSTNAME, INSTANCE_TYPE, as_planned, group_labels
from cagrpc.api.core.volume_binding import with_attachments
from cagrpc.api.devices.matching import NodeDevices, typical
from cagrpc.cluster.node_info import ClusterCapacity, NodeInfo, Reservations
from cagrpc.cluster.state import ClusterNode, ClusterState
from cagrpc.fleet.model import FleetSnapshot, IncrementNode, InstanceState, Phase
from solver.model import Devices, Node, NodeGroup, PodSpec, Resources
from solver.model.capacity import new_node


class GroupDevices:
    """Tells which devices the nodes of a group have, in one state of the cluster."""

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


def groups_as_planned(snapshot: FleetSnapshot, cluster: ClusterState) -> tuple[NodeGroup, ...]:
    """Return node groups as they are planned with, with devices and numbers of volumes that can be attached."""
    seen = _attach_limits_seen(snapshot, cluster)
    devices = GroupDevices(snapshot, cluster)
    return tuple(
        replace(
            as_planned(state.group),
            allocatable=_with_attachments(state.group, cluster, seen.get(group_id, {})),
            devices=devices.of(state.group),
        )
        for group_id, state in snapshot.groups.items()
    )


def _attach_limits_seen(snapshot: FleetSnapshot, cluster: ClusterState) -> dict[str, dict[str, int]]:
    """Return the least limits of the nodes of each group that stand, by driver."""
    found: dict[str, dict[str, int]] = {}
    for node in cluster.nodes:
        if node.attach_limits and (group := snapshot.group_of_instance.get(node.provider_id)) is not None:
            of = found.setdefault(group, {})
            of.update({driver: min(count, of.get(driver, count)) for driver, count in node.attach_limits.items()})
    return found


def _with_attachments(group: NodeGroup, cluster: ClusterState, seen: Mapping[str, int]) -> Resources:
    """Return allocatable with a number of attachments of every driver in use: as nodes of the group have it, or nodes
    of its instance type had; else as it is configured or in the catalogue; else without limit."""
    of_type = cluster.attach_limits.get(group_labels(group).get(INSTANCE_TYPE, ""), {})
    return with_attachments(group.allocatable, cluster.drivers, of_type, seen)


def deleting_instances(snapshot: FleetSnapshot) -> set[str]:
    """Return the ids of instances that are on their way out."""
    return {
        instance.id
        for group in snapshot.groups.values()
        for instance in group.instances
        if instance.state is InstanceState.DELETING
    }


class FleetCapacity:
    """The capacity of Ready Nodes and of nodes in flight. Nodes are named by their Node, or by their
    `IncrementNode.name` while the scheduler does not see them."""

    def __init__(
        self, state: ClusterState, snapshot: FleetSnapshot, groups: Sequence[NodeGroup], reservations: Reservations
    ) -> None:
        """`groups` have labels as their Nodes have them; `reservations` are assumed at once."""
        self._templates = _GroupTemplates(groups, state.daemon_sets)
        self._ready = {
            node.instance_id: node for status in snapshot.increments for node in status.held if node.instance_id
        }
        self._node_names: dict[str, str] = {}
        """The names of Nodes of increments that are Ready, by `IncrementNode.name`."""
        standing = {node.name: node for node in self._standing(state, snapshot)}
        in_flight = {node.name: node for node in self._in_flight(state, snapshot)}
        self.in_flight = frozenset(in_flight)
        """Nodes that the scheduler does not see yet."""
        self._young = self.in_flight.union(self._node_names.values())
        self.capacity = ClusterCapacity({**standing, **in_flight}.values(), reservations)

    def name_of(self, name: str) -> str:
        """Return the Node's name, of a node of an increment that is Ready."""
        return self._node_names.get(name, name)

    def takes(self, spec: PodSpec, info: NodeInfo) -> bool:
        """Return whether one such pod fits on the node. A young one may have taints that others take off before
        long: these do not count."""
        return info.has_room(spec) and (info.name in self._young or info.admits(spec))

    def _standing(self, state: ClusterState, snapshot: FleetSnapshot) -> Iterator[Node]:
        """Yield nodes that are Ready, without those whose increment is not whole, or that are on their way out."""
        gone = deleting_instances(snapshot) | (snapshot.held_instances - self._ready.keys())
        # Of thousands most are as they seem.
        looked_at = gone | snapshot.requested_instances.keys() | self._ready.keys()
        is_awaited = state.devices.is_awaited
        for each in state.nodes:
            if not (each.held or each.provider_id in looked_at or is_awaited(each.node.name)):
                if each.ready:
                    yield each.node
                continue
            unknown = each.held and each.provider_id not in snapshot.group_of_instance  # it is among those in flight
            if each.ready and not unknown and each.provider_id not in gone:
                node = self._usable(each, snapshot)
                awaited = is_awaited(node.name)
                group = snapshot.group_of_instance.get(each.provider_id, "") if awaited else ""
                yield replace(node, devices=self._templates.left(group)[1]) if group else node

    def _usable(self, each: ClusterNode, snapshot: FleetSnapshot) -> Node:
        """Return a standing node with what is free on it for others than it was ordered for."""
        young = self._ready.get(each.provider_id)
        if each.provider_id in snapshot.requested_instances and (young is not None or each.held):
            # For a ProvisioningRequest. Its reservation is known once the node is seen released: in the same write it
            # gets the request's label.
            return _full(each.node)
        if young is None:
            return each.node
        self._node_names[young.name] = each.node.name
        # Its DaemonSets' pods may still come.
        most, devices = self._templates.left(young.node_group)
        free = {name: min(amount, most.get(name, amount)) for name, amount in each.node.free.items()}
        return replace(each.node, free=free, devices=_at_most(each.node.devices, devices))

    def _in_flight(self, state: ClusterState, snapshot: FleetSnapshot) -> Iterator[Node]:
        ready = {node.provider_id for node in state.nodes if node.ready}
        for status in snapshot.increments:
            for each in status.nodes:
                # Ready a moment ago, and not, or no longer, a moment later: in flight until its increment is released.
                if status.phase is not Phase.READY or each.instance_id not in ready:
                    node = self._templates.node(each, full=bool(status.increment.requests))
                    if node is not None:
                        yield node


class _GroupTemplates:
    """The next node of each group."""

    def __init__(self, groups: Sequence[NodeGroup], daemon_sets: Sequence[PodSpec]) -> None:
        self._groups = {group.id: group for group in groups}
        self._daemon_sets = daemon_sets
        self._left: dict[str, tuple[Resources, tuple[Devices, ...]]] = {}

    def left(self, group_id: str) -> tuple[Resources, tuple[Devices, ...]]:
        """Return what is left for pods beside the DaemonSets', resources and devices; nothing of a group that is not
        known any more."""
        if group_id not in self._left:
            group = self._groups.get(group_id)
            node = Node("", {}) if group is None else new_node(group, self._daemon_sets)
            self._left[group_id] = node.free, node.devices
        return self._left[group_id]

    def node(self, each: IncrementNode, *, full: bool) -> Node | None:
        """Return the next one, with nothing left for pods where it is `full`; None of a group that is not known any
        more."""
        group = self._groups.get(each.node_group)
        if group is None:
            return None
        labels = {**group.labels_in(each.domain), HOSTNAME: each.name}
        free, devices = self.left(each.node_group)
        node = Node(each.name, free, labels, group.taints, allocatable=group.allocatable, devices=devices)
        return _full(node) if full else node


def _at_most(there: tuple[Devices, ...], left: tuple[Devices, ...]) -> tuple[Devices, ...]:
    """Return devices of a node, of each kind no more than a new node of its group has left."""
    most = {(each.selectors, each.attributes): each.count for each in left}
    counts = [min(each.count, most.get((each.selectors, each.attributes), each.count)) for each in there]
    return tuple(
        replace(each, count=count, taken=each.taken + each.count - count)
        for each, count in zip(there, counts, strict=True)
    )


def _full(node: Node) -> Node:
    return replace(node, free=dict.fromkeys(node.free, 0), devices=())
