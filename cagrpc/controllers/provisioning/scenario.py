"""Where there is room for requests, and where room can be made: scenarios as they are, as they may be one day, and less
what is reserved; and the planner's problem of one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cagrpc.cluster.drop_invalid import drop_invalid
from cagrpc.cluster.node_info import Reservations, merged, requested
from cagrpc.cluster.shortages import Shortage, after_shortages, could_hold, offering, would_take
from cagrpc.cluster.state import ClusterState, ConsumerStage
from cagrpc.controllers.assume_cache.snapshot import Snapshot
from cagrpc.controllers.provisioning.model import Candidate
from cagrpc.fleet.model import FleetSnapshot
from solver.model import PODS, Limit, Node, NodeGroup, Plan, PodSet, PodSpec, Problem, Resources
from solver.model.allocation import allocate
from solver.model.capacity import room_of, with_nodes
from solver.model.domains import one_domain_terms
from solver.model.quantities import pluralize


@dataclass(frozen=True, slots=True)
class Scenario:
    """Where there is room, and where room can be made."""

    nodes: tuple[Node, ...] = ()
    """With what is free on them, less what is reserved for other requests and planned pods. They have their booking
    labels."""
    groups: tuple[NodeGroup, ...] = ()
    """All that may grow, with their target sizes, and labels as their Nodes will have them."""
    limits: tuple[Limit, ...] = ()
    daemon_sets: tuple[PodSpec, ...] = ()
    short: Mapping[str, Shortage] = field(default_factory=dict)
    """The groups that are left out for now, by id, and why."""
    foreign: frozenset[str] = frozenset()
    """Names of nodes that belong to no node group: they exist whatever the sizes of groups."""
    returning: Mapping[str, Resources] | None = None
    """By node, what requests have there that will be free again: reserved for them, or used by their consumers. None
    where it is unknown: then everything counts as free one day."""
    coming: Mapping[str, int] = field(default_factory=dict)
    """Node group -> nodes in flight for other requests. They count as full, and will be free again, too."""


def problem_of(scenario: Scenario, pod_sets: Iterable[PodSet]) -> Problem:
    """Return the planner's problem. Groups with a shortage are left out."""
    return Problem(
        tuple(pod_sets),
        tuple(group for group in scenario.groups if group.id not in scenario.short),
        scenario.nodes,
        scenario.limits,
        scenario.daemon_sets,
        possible=after_shortages(dict.fromkeys(scenario.short.values()), scenario.groups),
    )


def pods_of(candidates: Iterable[Candidate], *, priority: int = 0, gang: str | None = None) -> list[PodSet]:
    """Return the pods of candidates for planning. Only their order tells requests apart, not their pods, but for those
    that are to be in one topology domain: these are a gang."""
    return [
        PodSet(
            pods.name,
            pods.spec,
            pods.count,
            priority,
            gang=gang or (candidate.key if one_domain_terms(pods.spec) else None),
        )
        for candidate in candidates
        for pods in candidate.pod_sets
    ]


def without_faults(scenario: Scenario) -> Scenario:
    """Return the scenario without invalid Nodes and DaemonSets."""
    left = drop_invalid(Problem((), nodes=scenario.nodes, daemon_sets=scenario.daemon_sets))
    return replace(scenario, nodes=left.nodes, daemon_sets=left.daemon_sets)


def emptied(scenario: Scenario) -> Scenario:
    """Return the scenario with all groups at size 0 and no limit used. Nodes that belong to no group exist, and are
    empty."""
    foreign = [node for node in scenario.nodes if node.name in scenario.foreign]
    return replace(
        scenario,
        nodes=tuple(map(_vacated, foreign)),
        groups=tuple(replace(group, target_size=0) for group in scenario.groups),
        limits=tuple(replace(limit, used={}) for limit in scenario.limits),
        short={},
    )


def _vacated(node: Node) -> Node:
    devices = tuple(replace(each, count=each.count + each.taken, taken=0) for each in node.devices)
    return replace(node, free=node.allocatable or node.free, running=(), devices=devices)


def in_the_end(scenario: Scenario) -> Scenario:
    """Return the scenario once other requests are finished."""
    if scenario.returning is None:
        return emptied(scenario)
    nodes = tuple(replace(node, free=_sum(node.free, scenario.returning.get(node.name, {}))) for node in scenario.nodes)
    groups = without(scenario, {}, {group_id: -count for group_id, count in scenario.coming.items()})
    return replace(groups, nodes=nodes, short={})


def why_no_room(scenario: Scenario, candidate: Candidate) -> str:
    """Return why there is no room for the candidate whatever is planned: of one of its specs there are more pods than
    nodes and node groups could hold if they held nothing else. Empty where only planning can tell."""
    asked: Counter[PodSpec] = Counter()
    for pods in candidate.pod_sets:
        asked[pods.spec] += pods.count
    names = {pods.spec: pods.name for pods in candidate.pod_sets}
    for spec, count in asked.items():
        most = _most(scenario, spec, count)
        if most < count:
            return f"there is room for at most {most} of {pluralize(count, 'pod')} of {names[spec]}"
    return ""


def _most(scenario: Scenario, spec: PodSpec, enough: int) -> int:
    """Return how many such pods there is room for at most; no more than `enough` are counted."""
    found = 0
    for node in scenario.nodes:
        if found >= enough:
            break
        here = _pods_within(node.free, spec)
        if here and would_take(spec, node.labels, node.taints, node.free, node.name):
            found += here if allocate(node.devices, spec.claims) is not None else 0
    for group in scenario.groups:
        if found >= enough:
            break
        if group.id not in scenario.short and could_hold(group, spec):
            found += room_of(group, scenario.limits)[0] * _pods_within({PODS: enough, **group.allocatable}, spec)
    return min(found, enough)


def _pods_within(free: Resources, spec: PodSpec) -> int:
    return min(max(0, free.get(name, 0)) // amount for name, amount in ((PODS, 1), *spec.requests) if amount)


def without(scenario: Scenario, on_nodes: Mapping[str, Resources], deltas: Mapping[str, int]) -> Scenario:
    """Return the scenario less what is reserved on existing nodes, and less so many new nodes by group; negative counts
    give nodes back."""
    groups = {group.id: group for group in scenario.groups}
    return replace(
        scenario,
        nodes=tuple(_less(node, on_nodes.get(node.name, {})) for node in scenario.nodes),
        groups=tuple(_smaller(group, deltas.get(group.id, 0)) for group in scenario.groups),
        limits=tuple(with_nodes(limit, groups, deltas) for limit in scenario.limits),
    )


def _less(node: Node, reserved: Resources) -> Node:
    if not reserved:
        return node
    return replace(node, free={name: max(0, amount - reserved.get(name, 0)) for name, amount in node.free.items()})


def _smaller(group: NodeGroup, delta: int) -> NodeGroup:
    return replace(group, max_size=max(group.min_size, group.max_size - delta)) if delta else group


def _sum(one: Resources, other: Resources) -> Resources:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *other)}


def held_alone(plan: Plan, who: frozenset[int]) -> tuple[dict[str, Resources], dict[str, int]]:
    """Return what pods of these classes get in a plan: on existing nodes, and the new nodes by group that are theirs
    alone."""
    mine = {
        placed.node: [(plan.pod_classes[index].spec, count) for index, count in placed.pods.items() if index in who]
        for placed in plan.existing
    }
    deltas: Counter[str] = Counter()
    for nodes in plan.nodes:
        if nodes.pods and nodes.pods.keys() <= who:
            deltas[nodes.node_group] += nodes.count
    return {name: requested(pods) for name, pods in mine.items() if pods}, dict(deltas)


def scenario_of(snapshot: Snapshot, booked: Reservations) -> Scenario:
    """Return where there is room now, and where it can be made. `booked` are the reservations of bookings."""
    fleet, state = snapshot.fleet, snapshot.cluster
    short = {each.offering: each for each in snapshot.shortages}
    placed = snapshot.placed(merged(booked, snapshot.displaced))
    going = {each.name for each in fleet.disruption.nodes} if fleet.disruption is not None else set()
    usable = {
        each.node.name for each in state.nodes if not each.held and each.provider_id not in fleet.held_instances
    } - going
    return Scenario(
        tuple(node for node in placed.nodes if node.name in usable and node.name not in placed.in_flight),
        snapshot.groups,
        fleet.limits,
        state.daemon_sets,
        {group.id: short[name] for group in snapshot.groups if (name := offering(group)) in short},
        frozenset(each.node.name for each in state.nodes if each.provider_id not in fleet.group_of_instance),
        _returning(state, booked),
        _coming(fleet),
    )


def _returning(state: ClusterState, booked: Reservations) -> dict[str, dict[str, int]]:
    """Return what requests have on each node, which will be free again."""
    pods = {name: [(each.spec, each.count) for each in reserved] for name, reserved in booked.items()}
    on_nodes = Counter((each.node, each.spec) for each in state.consumers if each.stage is ConsumerStage.BOUND)
    for (name, spec), count in on_nodes.items():
        pods.setdefault(name, []).append((spec, count))
    return {name: requested(there) for name, there in pods.items()}


def _coming(snapshot: FleetSnapshot) -> Counter[str]:
    """Return the number of nodes in flight for requests, by group."""
    found: Counter[str] = Counter()
    for status in snapshot.increments:
        if status.phase.in_flight and status.increment.requests:
            found.update(status.increment.deltas)
    return found
