"""What is free for pods that have no place yet, on Nodes that are Ready and on those that are coming, and which of the
pods that have one still fit there. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cagrpc.api.core.nodes import HOSTNAME, group_labels
from cagrpc.cluster.reservations import Kept, keeping, requested
from cagrpc.cluster.state import ClusterNode, ClusterState
from cagrpc.controllers.placement.places import Wanted
from cagrpc.fleet.model import FleetSnapshot, IncrementNode, InstanceState, Phase
from solver.model import PODS, Node, NodeGroup, PodSpec, Problem, Resources, RunningPods
from solver.model.capacity import after_daemons
from solver.model.eligibility import why_not_eligible


def groups_as_planned(snapshot: FleetSnapshot) -> tuple[NodeGroup, ...]:
    """With labels as their Nodes will have them; what their minimum needs the fleet orders itself."""
    return tuple(
        replace(state.group, target_size=state.target_size, labels=group_labels(state.group), min_size=0)
        for state in snapshot.groups.values()
    )


class Room:
    """`nodes` have what is free on them beside the pods that have a place there; `coming` names those that the
    scheduler does not see yet. `placed` has the node of every pod whose place is as good as it was planned, by UID;
    `lost` are those whose room others have taken, or whose node is gone or does not take them any more."""

    def __init__(
        self,
        state: ClusterState,
        snapshot: FleetSnapshot,
        groups: Sequence[NodeGroup],
        wanted: Wanted,
        kept: Kept | None = None,
    ) -> None:
        """`state` is with all pods, `groups` have labels as their Nodes have them, `kept` is held for others."""
        self._kept = kept or {}
        self._templates = _Templates(Problem((), tuple(groups), daemon_sets=state.daemon_sets))
        self._ready = {
            node.instance_id: node for status in snapshot.increments for node in status.held if node.instance_id
        }
        self._alias: dict[str, str] = {}
        """Of nodes of increments that are Ready: `IncrementNode.name` -> the Node's name."""
        standing = {node.name: node for node in self._standing(state, snapshot)}
        coming = {node.name: node for node in self._coming(state, snapshot)}
        self.coming = frozenset(coming)
        self._nodes = {**standing, **coming}
        self._used: dict[str, _OnNode] = {}
        self.placed: dict[str, str] = {}
        self.lost: frozenset[str] = frozenset()
        self._put(wanted, state)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._used[name].left() if name in self._used else node for name, node in self._nodes.items())

    @property
    def served(self) -> frozenset[str]:
        """UIDs of pods that have a place."""
        return frozenset(self.placed)

    def known_as(self, name: str) -> str:
        """The Node's name, of a node of an increment that is Ready."""
        return self._alias.get(name, name)

    def node(self, name: str, *, empty: bool = False) -> Node | None:
        """The node with what is free on it, or as `empty` of pods that have a place there; None where there is no such
        node, or none to be used."""
        used = None if empty else self._used.get(name)
        return self._nodes.get(name) if used is None else used.left()

    def why_lost(self, spec: PodSpec, name: str) -> str:
        """For people."""
        name = self.known_as(name)
        node = self.node(name)
        if node is None:
            return f"node {name} is gone or not Ready"
        short = {each: amount for each, amount in (*spec.requests, (PODS, 1)) if node.free.get(each, 0) < amount}
        free = ", ".join(f"{each}: {node.free.get(each, 0)} of {amount}" for each, amount in short.items())
        return f"node {name} has not enough free: {free}" if short else f"node {name} does not take it any more"

    def take(self, uid: str, spec: PodSpec, name: str) -> bool:
        """Whether there is room for the pod on this node; it has a place there from now on."""
        if name not in self._nodes:
            return False
        if name not in self._used:
            # A young node may have taints that others take off before long.
            young = name in self.coming or name in self._alias.values()
            self._used[name] = _OnNode(self._nodes[name], young=young)
        if not self._used[name].take(spec):
            return False
        self.placed[uid] = name
        return True

    def _put(self, wanted: Wanted, state: ClusterState) -> None:
        """Every pod that waits where it is wanted: those of the highest priority first, then those that are nominated
        there."""
        waiting = {pod.uid: each.pod_set for each in state.waiting for pod in each.pods if pod.uid in wanted.pods}
        names = {uid: self.known_as(wanted.pods[uid]) for uid in waiting}
        order = sorted(waiting, key=lambda uid: (-waiting[uid].priority, wanted.nominated.get(uid) != names[uid]))
        self.lost = frozenset(uid for uid in order if not self.take(uid, waiting[uid].spec, names[uid]))

    def _standing(self, state: ClusterState, snapshot: FleetSnapshot) -> Iterator[Node]:
        """Nodes that are Ready; without those whose increment is not whole, or that are on their way out."""
        gone = {
            instance.id
            for group in snapshot.groups.values()
            for instance in group.instances
            if instance.state is InstanceState.DELETING
        }
        gone |= snapshot.held_instances - self._ready.keys()
        for each in state.nodes:
            unheard_of = each.held and each.provider_id not in snapshot.group_of_instance  # it is among those coming
            if each.ready and not unheard_of and each.provider_id not in gone:
                yield self._free(each, snapshot)

    def _free(self, each: ClusterNode, snapshot: FleetSnapshot) -> Node:
        """A standing node less what is held there for others."""
        young = self._ready.get(each.provider_id)
        if each.provider_id in snapshot.requested_instances and (young is not None or each.held):
            # For a ProvisioningRequest. What is kept on it can be told once it is seen released: in the same write it
            # gets the request's label.
            return _full(each.node)
        node = keeping(each.node, self._kept.get(each.node.name, ()))
        if young is None:
            return node
        self._alias[young.name] = node.name
        # Its DaemonSets' pods may still come.
        most = self._templates.free(young.node_group)
        return replace(node, free={name: min(amount, most.get(name, amount)) for name, amount in node.free.items()})

    def _coming(self, state: ClusterState, snapshot: FleetSnapshot) -> Iterator[Node]:
        ready = {node.provider_id for node in state.nodes if node.ready}
        for status in snapshot.increments:
            for each in status.nodes:
                # Ready a moment ago, and not, or no longer, a moment later: coming until its increment is released.
                if status.phase is not Phase.READY or each.instance_id not in ready:
                    node = self._templates.node(each)
                    if node is not None:
                        yield _full(node) if status.increment.requests else node


class _Templates:
    """The next node of each group."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._groups = {group.id: group for group in problem.node_groups}
        self._free: dict[str, Resources] = {}

    def free(self, group_id: str) -> Resources:
        """For pods, beside the DaemonSets'. Empty for a group that is not known any more."""
        if group_id not in self._free:
            group = self._groups.get(group_id)
            self._free[group_id] = {} if group is None else after_daemons(group, self._problem.daemon_sets)
        return self._free[group_id]

    def node(self, each: IncrementNode) -> Node | None:
        group = self._groups.get(each.node_group)
        if group is None:
            return None
        labels = {**group.labels, HOSTNAME: each.name}
        return Node(each.name, self.free(each.node_group), labels, group.taints, allocatable=group.allocatable)


class _OnNode:
    """A node that pods with a place take theirs from, one after the other."""

    def __init__(self, node: Node, *, young: bool) -> None:
        self._node = node
        self._free = dict(node.free)
        self._young = young
        self._pods: Counter[PodSpec] = Counter()

    def take(self, spec: PodSpec) -> bool:
        if any(self._free.get(name, 0) < amount for name, amount in (*spec.requests, (PODS, 1))):
            return False
        node = self._node
        if not self._young and why_not_eligible(spec, node.labels, node.taints, node.name) is not None:
            return False
        for name, amount in requested([(spec, 1)]).items():
            self._free[name] -= amount
        self._pods[spec] += 1
        return True

    def left(self) -> Node:
        return keeping(self._node, (RunningPods(*each) for each in self._pods.items()))


def _full(node: Node) -> Node:
    return replace(node, free=dict.fromkeys(node.free, 0))
