"""What is known of all nodes, kept from review to review: of a node that has not changed nothing is found anew."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cagrpc.cluster.state import ClusterNode
from cagrpc.controllers.scale_down.constraints import keys_kept_out_of
from cagrpc.fleet.model import FleetSnapshot, Instance, InstanceState
from solver.model import CPU, MEMORY, Resources

TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"
"""CA's taint on a node that it drains (upstream: utils/taints)."""


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node of the fleet."""

    node: ClusterNode
    group: str
    """The id of its node group."""
    used: float
    """CA's utilisation: of the GPUs where there are any, otherwise the larger of cpu and memory."""

    @property
    def name(self) -> str:
        return self.node.node.name


class ReviewedNodes:
    """All nodes as of the last update, and names of those of which something is so. For one thread."""

    def __init__(self, utilisation: float) -> None:
        """Below this utilisation CA may find a node underutilized."""
        self._utilisation = utilisation
        self.nodes: tuple[ClusterNode, ...] = ()
        self.of: dict[str, ClusterNode] = {}
        self.ours: dict[str, FleetNode] = {}
        """Nodes of the fleet."""
        self.low: set[str] = set()
        """Of these, nodes that CA may find underutilized."""
        self.leaving: set[str] = set()
        """Nodes that CA drains, or that are not Ready, which CA handles: their pods need other places."""
        self.held: set[str] = set()
        """Nodes with our start-up taint."""
        self.foreign: set[str] = set()
        """Nodes that somebody else has annotated."""
        self.marked: set[str] = set()
        """Nodes that we have."""
        self.keeping_out: set[str] = set()
        """Nodes with pods whose anti-affinity reaches beyond their node."""
        self._sets = (self.low, self.leaving, self.held, self.foreign, self.marked, self.keeping_out)
        self._group_of_instance: Mapping[str, str] = {}
        self._allocatable: dict[str, Resources] = {}
        """Of each group, what pods may use of a node."""
        self._measured: dict[str, tuple[tuple[str, int], ...]] = {}
        """Of each group, the amounts by which CA measures how much of a node is used."""
        self._deleting: dict[str, tuple[tuple[Instance, ...], frozenset[str]]] = {}
        """Of the groups: the instances, and the ids of those that are being deleted."""

    def update(self, nodes: tuple[ClusterNode, ...], fleet: FleetSnapshot) -> AbstractSet[str]:
        """Bring it up to date, and return the names of nodes that are gone."""
        changed = [] if nodes is self.nodes else [each for each in nodes if self.of.get(each.node.name) is not each]
        now = {group: state.group.allocatable for group, state in fleet.groups.items()}
        groups = {group for group in {**now, **self._allocatable} if now.get(group) != self._allocatable.get(group)}
        if groups or fleet.group_of_instance is not self._group_of_instance:
            known = (each for each in nodes if self.of.get(each.node.name) is each)
            changed += [each for each in known if self._changes_group(each, fleet, groups)]
        self._measured.update((group, _measured(now[group])) for group in groups if group in now)
        for each in changed:
            self._learn(each, self._group(each, fleet))
        gone = self.of.keys() - {each.node.name for each in nodes} if len(self.of) > len(nodes) else frozenset()
        for name in gone:
            self._forget(name)
        self.nodes, self._allocatable, self._group_of_instance = nodes, now, fleet.group_of_instance
        return gone

    def deleting(self, fleet: FleetSnapshot) -> frozenset[str]:
        """Return the ids of instances that are on their way out."""
        for group, state in fleet.groups.items():
            if self._deleting.get(group, (None,))[0] is not state.instances:
                ids = frozenset(each.id for each in state.instances if each.state is InstanceState.DELETING)
                self._deleting[group] = state.instances, ids
        return frozenset[str]().union(*(self._deleting[group][1] for group in fleet.groups))

    def named(self, instances: AbstractSet[str]) -> set[str]:
        """Return the names of the nodes of these instances."""
        return {name for name, each in self.of.items() if each.provider_id in instances} if instances else set()

    def _group(self, each: ClusterNode, fleet: FleetSnapshot) -> str:
        """Return the id of its node group; empty for a node that is not of the fleet."""
        group = fleet.group_of_instance.get(each.provider_id, "")
        return group if group in fleet.groups else ""

    def _changes_group(self, each: ClusterNode, fleet: FleetSnapshot, changed: AbstractSet[str]) -> bool:
        before, group = self.ours.get(each.node.name), self._group(each, fleet)
        return group in changed or group != (before.group if before is not None else "")

    def _learn(self, each: ClusterNode, group: str) -> None:
        name = each.node.name
        if name in self.of:
            self._forget(name)
        self.of[name] = each
        if group:
            free = each.node.free
            used = max((1 - free.get(resource, 0) / amount for resource, amount in self._measured[group]), default=0.0)
            self.ours[name] = FleetNode(each, group, used)
            if used < self._utilisation:
                self.low.add(name)
        if not each.ready or any(taint.key == TO_BE_DELETED for taint in each.node.taints):
            self.leaving.add(name)
        if each.held:
            self.held.add(name)
        if each.scale_down_disabled_by_us:
            self.marked.add(name)
        elif each.scale_down_disabled:
            self.foreign.add(name)
        specs = (pods.spec for pods in (*each.movable, *each.node.running))
        if any(keys_kept_out_of(spec) for spec in specs if spec.pod_anti_affinity):
            self.keeping_out.add(name)

    def _forget(self, name: str) -> None:
        self.of.pop(name, None)
        self.ours.pop(name, None)
        for names in self._sets:
            names.discard(name)


def _measured(allocatable: Resources) -> tuple[tuple[str, int], ...]:
    """Return the amounts by which CA measures how much of such a node is used."""
    gpus = [name for name, amount in allocatable.items() if name.endswith("/gpu") and amount]
    amounts = ((name, allocatable.get(name, 0)) for name in gpus or (CPU, MEMORY))
    return tuple((name, amount) for name, amount in amounts if amount)
