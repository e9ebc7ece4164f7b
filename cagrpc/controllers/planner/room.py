"""What is free for pods that nothing serves yet, on Nodes that are Ready and on those that are coming. Pure; a part of
`problem`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from cagrpc.controllers.kept import Kept, keeping, requested
from cagrpc.controllers.planner.serving import ComingNode, Serving
from cagrpc.controllers.state import ClusterState
from cagrpc.fleet.model import FleetSnapshot, InstanceState, Placement
from cagrpc.wire.nodes import HOSTNAME
from solver.explain_question import after_daemons
from solver.model import Node, NodeGroup, PodSpec, Problem, Resources, RunningPods

_Waiting = Mapping[str, PodSpec]
"""Specs of all pods that wait, served or not, by UID. Others are bound, and counted where they run, or gone."""


class Room:
    """`nodes` have what is free on them, less what is kept for pods that are served; `coming` names those of them that
    the scheduler does not see yet; `served` are those pods: planned for increments in flight, or for one that was let
    go, and still with room there."""

    def __init__(
        self,
        state: ClusterState,
        snapshot: FleetSnapshot,
        serving: Serving,
        groups: Sequence[NodeGroup],
        held: Kept | None = None,
    ) -> None:
        """`state` is with all pods, `groups` have labels as their Nodes have them, `held` is kept for others."""
        self._kept = held or {}
        self._waiting = waiting = {pod.uid: each.pod_set.spec for each in state.waiting for pod in each.pods}
        self._templates = _Templates(Problem((), tuple(groups), daemon_sets=state.daemon_sets))
        standing = list(self._standing(state, snapshot, serving))
        coming = list(self._coming(state, snapshot, serving))
        placed = _settle(standing, snapshot, serving.settling, waiting)
        settling = (pod for pods in placed.values() for pod in pods)
        self.served = (serving.pods & waiting.keys()).union(settling)
        kept = [_holding(node, placed.get(provider_id, ()), waiting) for provider_id, node in standing]
        self.nodes = (*kept, *coming)
        self.coming = frozenset(node.name for node in coming)

    def _standing(self, state: ClusterState, snapshot: FleetSnapshot, serving: Serving) -> Iterator[tuple[str, Node]]:
        """Nodes that are Ready, by instance; without those whose increment is not whole, or that are on their way
        out."""
        gone = {
            instance.id
            for group in snapshot.groups.values()
            for instance in group.instances
            if instance.state is InstanceState.DELETING
        }
        gone |= snapshot.held_instances - serving.held.keys()
        for each in state.nodes:
            unheard_of = each.held and each.provider_id not in snapshot.group_of_instance  # it is among those coming
            if not each.ready or unheard_of or each.provider_id in gone:
                continue
            held = serving.held.get(each.provider_id)
            if each.provider_id in snapshot.requested_instances and (held is not None or each.held):
                # For a ProvisioningRequest. What is kept on it can be told once it is seen let go: in the same write
                # it gets the request's label.
                yield each.provider_id, _full(each.node)
                continue
            node = keeping(each.node, self._kept.get(each.node.name, ()))
            if held is None:
                yield each.provider_id, node
                continue
            # A young node, to which its DaemonSets' pods may still come.
            most = self._templates.free(held.node_group)
            free = {name: min(amount, most.get(name, amount)) for name, amount in node.free.items()}
            yield each.provider_id, _holding(replace(node, free=free), held.pods, self._waiting)

    def _coming(self, state: ClusterState, snapshot: FleetSnapshot, serving: Serving) -> Iterator[Node]:
        ready = {node.provider_id for node in state.nodes if node.ready}
        # Ready a moment ago, and not, or no longer, a moment later: coming until its increment is let go.
        not_ready = (
            ComingNode(each.instance_id, each.node_group, each.pods, each.instance_id in snapshot.requested_instances)
            for each in serving.held.values()
            if each.instance_id not in ready
        )
        for each in (*serving.coming, *not_ready):
            node = self._templates.node(each.name, each.node_group)
            if node is not None:
                yield _full(node) if each.for_requests else _holding(node, each.pods, self._waiting)


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
            self._free[group_id] = {} if group is None else after_daemons(self._problem, group)
        return self._free[group_id]

    def node(self, name: str, group_id: str) -> Node | None:
        group = self._groups.get(group_id)
        if group is None:
            return None
        labels = {**group.labels, HOSTNAME: name}
        return Node(name, self.free(group_id), labels, group.taints, allocatable=group.allocatable)


def _settle(
    standing: Iterable[tuple[str, Node]], snapshot: FleetSnapshot, placements: Iterable[Placement], waiting: _Waiting
) -> Mapping[str, tuple[str, ...]]:
    """Instance -> pods of placements that still wait and that fit there together. Whose placement fits no node of its
    group any more has lost its room to others, and is planned again."""
    nodes: defaultdict[str, list[tuple[str, Node]]] = defaultdict(list)
    for provider_id, node in standing:
        group_id = snapshot.group_of_instance.get(provider_id)
        if group_id is not None:
            nodes[group_id].append((provider_id, node))
    # The emptiest first: most likely those that have just come. Each placement had a node of its own.
    for each in nodes.values():
        each.sort(key=lambda entry: sum(running.count for running in entry[1].running))
    placed: dict[str, tuple[str, ...]] = {}
    hopeless: set[tuple[str, frozenset[tuple[str, int]]]] = set()  # what is left only becomes less
    for placement in placements:
        pods = tuple(uid for uid in placement.pods if uid in waiting)
        wanted = requested((waiting[uid], 1) for uid in pods)
        question = placement.node_group, frozenset(wanted.items())
        candidates = nodes[placement.node_group] if pods and question not in hopeless else []
        for number, (provider_id, node) in enumerate(candidates):
            if all(node.free.get(name, 0) >= amount for name, amount in wanted.items()):
                placed[provider_id] = pods
                del candidates[number]
                break
        else:
            hopeless.add(question)
    return placed


def _full(node: Node) -> Node:
    return replace(node, free=dict.fromkeys(node.free, 0))


def _holding(node: Node, pods: Iterable[str], waiting: _Waiting) -> Node:
    """The node with the room kept for those of the pods that still wait."""
    kept = Counter(waiting[uid] for uid in pods if uid in waiting)
    return keeping(node, (RunningPods(*each) for each in kept.items()))
