"""From the cluster and the fleet to the planner's question: pods that nothing serves yet, what is free for them, and
which nodes may be opened. Pure. Which pods are served is the assume cache's, what becomes of the plan `increments`'s.

Free is the room on Ready Nodes and on nodes in flight (`assume_cache.placements`), less that of served pods that still
exist; other Nodes are there, and full. A pod that is gone leaves its room to others, its own replacement among them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cagrpc.cluster.fleet_capacity import deleting_instances
from cagrpc.cluster.shortages import after_shortages, offering
from cagrpc.cluster.state import ClusterState, PodRef, oldest_first
from cagrpc.controllers.assume_cache.placements import PlacedPods
from cagrpc.controllers.assume_cache.snapshot import Snapshot
from cagrpc.fleet.model import FleetSnapshot, GroupState
from solver.model import PODS, Limit, Node, NodeGroup, Plan, PodSet, Problem
from solver.model.plan import ClassKey, class_key


@dataclass(frozen=True, slots=True)
class Question:
    """A problem, and the pods that it is about."""

    problem: Problem
    pods: Mapping[ClassKey, tuple[PodRef, ...]]
    """Oldest first. Placeholders have none."""
    coming: frozenset[str]
    """Nodes of the problem that the scheduler does not see yet."""


def question(
    snapshot: Snapshot,
    state: ClusterState,
    placed: PlacedPods,
    previous: Plan | None = None,
    placeholders: Sequence[PodSet] = (),
) -> Question:
    """Return what to plan. `state` is without the pods that are served (`placed`); `previous` is the plan of the last
    round, applied or not; `placeholders` are planned beside the pods."""
    waiting = [
        replace(each, pod_set=replace(each.pod_set, spec=state.devices.left_out(each.pod_set.spec)))
        for each in state.waiting
    ]
    pods: defaultdict[ClassKey, list[PodRef]] = defaultdict(list)
    for each in waiting:
        pods[class_key(each.pod_set)].extend(each.pods)
    problem = Problem(
        pod_sets=(*(each.pod_set for each in waiting), *placeholders),
        node_groups=tuple(group for group in snapshot.groups if offering(group) not in snapshot.short),
        nodes=(*placed.nodes, *_not_ready(state, snapshot.fleet)),
        limits=snapshot.fleet.limits,
        daemon_sets=state.daemon_sets,
        # A source of good nodes only: its increments were ordered or refused, and nothing is compared with them.
        previous=None if previous is None else replace(previous, increments=()),
        possible=after_shortages(snapshot.shortages, snapshot.groups),
    )
    return Question(
        problem,
        {key: tuple(sorted(refs, key=oldest_first)) for key, refs in pods.items()},
        placed.in_flight,
    )


def _not_ready(state: ClusterState, fleet: FleetSnapshot) -> Iterator[Node]:
    """Yield the nodes that are not Ready, without room for a pod: for the scheduler their domains are there, and what
    runs on them counts. Those of increments in flight are planned with as coming."""
    if all(each.ready for each in state.nodes):
        return
    in_flight = {node.instance_id for status in fleet.increments for node in status.nodes}
    left_out = in_flight | fleet.held_instances | deleting_instances(fleet)
    for each in state.nodes:
        if not (each.ready or each.held or (each.provider_id and each.provider_id in left_out)):
            yield replace(each.node, free={**each.node.free, PODS: 0}, devices=(), ready=False)


def beside(state: ClusterState, groups: Sequence[NodeGroup], limits: Sequence[Limit]) -> Problem:
    """Return the problem of the pods that wait in a cluster beside node groups of which no fleet of ours has nodes."""
    states = {each.id: GroupState(each, each.target_size) for each in groups}
    snapshot = Snapshot(FleetSnapshot(0, states, (), {}, limits=tuple(limits)), state)
    problem = question(snapshot, state, snapshot.placed()).problem
    least = {each.id: each.min_size for each in groups}
    return replace(problem, node_groups=tuple(replace(each, min_size=least[each.id]) for each in problem.node_groups))
