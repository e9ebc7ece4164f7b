"""What is free on a node and left of a limit: beside DaemonSets' pods, after more nodes, after a plan. Arithmetic on
values; nothing here plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from solver.model.allocation import after_pods, allocate, why_not_allocated
from solver.model.devices import DeviceAlternative, Devices
from solver.model.eligibility import any_ports_collide, why_not_eligible
from solver.model.objects import PODS, Limit, Node, NodeGroup, PodSpec, Resources, RunningPods, SharedVolume
from solver.model.plan import Plan, PodClass, Problem


def remaining(limit: Limit) -> Resources:
    """Return what a limit still allows of each resource that it names; never negative."""
    return {name: max(0, most - limit.used.get(name, 0)) for name, most in limit.maxima.items()}


def taken_of_limits(group: NodeGroup, limits: Sequence[Limit]) -> Sequence[tuple[int, str, int]]:
    """Return what one node of the group takes of limits: (number of the limit, resource, amount)."""
    return [
        (number, resource, amount)
        for number, limit in enumerate(limits)
        for resource, amount in limit.counted(group).items()
        if amount and resource in limit.maxima
    ]


def most_nodes(group: NodeGroup, limits: Iterable[Limit]) -> int:
    """Return how many nodes the group may have in all: its maximum, or what one of the limits would allow of it
    alone."""
    allowed = (
        limit.maxima[resource] // amount
        for limit in limits
        for resource, amount in limit.counted(group).items()
        if amount and resource in limit.maxima
    )
    return min((group.max_size, *allowed))


def room_of(group: NodeGroup, limits: Sequence[Limit]) -> tuple[int, str]:
    """Return how many more nodes the group may have, and the limit that says so; empty where its maximum does."""
    bounds = [(max(0, group.max_size - group.target_size), "")]
    bounds += [
        (left // amount, limit.name)
        for limit in limits
        for resource, left in remaining(limit).items()
        if (amount := limit.counted(group).get(resource))
    ]
    return min(bounds)


def limits_broken(limits: Sequence[Limit], group: NodeGroup, node_count: int) -> tuple[str, ...]:
    """Return the limits, for people, that `node_count` more nodes of the group would break; empty where they fit."""
    broken = []
    for limit in limits:
        counted = limit.counted(group)
        for resource, most in limit.maxima.items():
            added = counted.get(resource, 0) * node_count
            total = limit.used.get(resource, 0) + added
            if added and total > most:
                broken.append(f"{limit.name}: {total} {resource}, at most {most} allowed")
    return tuple(broken)


def with_nodes(limit: Limit, groups: Mapping[str, NodeGroup], change: Mapping[str, int]) -> Limit:
    """Return the limit after a change of groups by so many nodes, below 0 for fewer: what is used is never negative.
    Groups that are not known are passed over."""
    used = Counter(limit.used)
    for group_id, nodes in change.items():
        for name, amount in limit.counted(groups[group_id]).items() if group_id in groups else ():
            used[name] += amount * nodes
    return replace(limit, used={name: max(0, amount) for name, amount in used.items()})


def less_daemons(allocatable: Resources, daemons: Iterable[PodSpec]) -> dict[str, int]:
    """Return what DaemonSets' pods that may run on a node leave of it."""
    return with_daemons(allocatable, daemons)[1]


def with_daemons(allocatable: Resources, daemons: Iterable[PodSpec]) -> tuple[list[PodSpec], dict[str, int]]:
    """Return those of the DaemonSets' pods that a node has room for, each alone, and what they leave of it. One that it
    has no room for waits there, and takes nothing. Where it has none for all together, whichever come first are there:
    then nothing is left of what they are short of. Of those that all want one host port whichever comes first is there:
    they take what the largest of them takes, of each resource."""
    there, left = _together(allocatable, daemons)
    return there, {name: max(0, amount) for name, amount in left.items()}


def _together(allocatable: Resources, daemons: Iterable[PodSpec]) -> tuple[list[PodSpec], dict[str, int]]:
    """Return those that a node has room for alone, and what they leave: less than nothing where they do not all fit."""
    there, left = [], dict(allocatable)
    rivals: list[tuple[list[PodSpec], dict[str, int]]] = []
    for spec in daemons:
        need = {**dict(spec.requests), PODS: 1}
        if any(allocatable.get(name, 0) < amount for name, amount in need.items()):
            continue
        mine = next((each for each in rivals if all(any_ports_collide(spec, other) for other in each[0])), ([], {}))
        more = {name: max(0, amount - mine[1].get(name, 0)) for name, amount in need.items()}
        left |= {name: left.get(name, 0) - amount for name, amount in more.items()}
        there.append(spec)
        if not mine[0]:
            rivals.append(mine)
        mine[0].append(spec)
        mine[1].update({name: mine[1].get(name, 0) + amount for name, amount in more.items()})
    return there, left


def unshared(spec: PodSpec) -> tuple[tuple[str, int], ...]:
    """Return what each pod of the spec takes of a node, itself included, whatever others take for shared volumes."""
    if not spec.shared_volumes:
        return (*spec.requests, (PODS, 1))
    shared = Counter(resource for resource, _ in spec.shared_volumes)
    return (*((name, amount - shared[name]) for name, amount in spec.requests), (PODS, 1))


def taken(pods: Iterable[tuple[PodSpec, int]], there: AbstractSet[SharedVolume] = frozenset()) -> dict[str, int]:
    """Return what so many pods of each spec take of a node of which some volumes are `there`: each further one that
    they share counts once."""
    total: Counter[str] = Counter()
    volumes: set[SharedVolume] = set()
    for spec, count in pods:
        for name, amount in unshared(spec):
            total[name] += amount * count
        if count:
            volumes.update(spec.shared_volumes)
    total.update(resource for resource, _ in volumes - there)
    return dict(total)


def emptied(node: Node) -> Node:
    """Return a node that goes: no pod runs or finds room there, but until it has gone it is a domain of hostnames."""
    return Node(node.name, {}, node.labels, node.taints)


def without_room(group: NodeGroup, daemon_sets: Iterable[PodSpec]) -> list[PodSpec]:
    """Return those of the DaemonSets' pods that may run on new nodes of the group, and that these have no room for once
    those before them are there."""
    mine = [spec for spec in daemon_sets if why_not_eligible(spec, group.labels, group.taints) is None]
    there, left = _together(group.allocatable, mine)
    waiting = list((Counter(mine) - Counter(there)).elements())
    before: list[PodSpec] = []
    for spec in there if min(left.values(), default=0) < 0 else ():
        with_it = _together(group.allocatable, [*before, spec])[1]
        (before if min(with_it.values()) >= 0 else waiting).append(spec)
    return waiting


def with_devices(devices: tuple[Devices, ...], daemons: Iterable[PodSpec]) -> tuple[list[PodSpec], tuple[Devices, ...]]:
    """Return those of the daemons whose claims a node's devices serve, and what they leave of the devices; where one
    may get any of several kinds of devices, none of them is counted on."""
    served, left = [], devices
    for spec in daemons:
        found = allocate(devices, spec.claims) if spec.claims else None
        if found is None and spec.claims:
            continue
        served.append(spec)
        for asked in (each for claim in found.chosen for each in claim) if found else ():
            if not asked.admin_access:
                left = tuple(_less(each, asked) for each in left)
    return served, left


def _less(devices: Devices, asked: DeviceAlternative) -> Devices:
    lost = min(devices.count, devices.count if asked.all else asked.count) if asked.selector in devices.selectors else 0
    return replace(devices, count=devices.count - lost, taken=devices.taken + lost) if lost else devices


def new_node(group: NodeGroup, daemon_sets: Iterable[PodSpec]) -> Node:
    """Return a new node of the group, without a name, with the resources and devices that DaemonSets leave to other
    pods."""
    mine = (spec for spec in daemon_sets if why_not_eligible(spec, group.labels, group.taints) is None)
    served, devices = with_devices(group.devices, mine)
    return Node("", less_daemons(group.allocatable, served), group.labels, group.taints, devices=devices)


def fits(spec: PodSpec, node: Node) -> bool:
    """Return whether such a node takes the pod alone."""
    if why_not_eligible(spec, node.labels, node.taints, node.name) or why_not_allocated(node.devices, spec.claims):
        return False
    return all(node.free.get(name, 0) >= amount for name, amount in ((PODS, 1), *spec.requests))


def planned_name(group_id: str, batch: int, copy: int) -> str:
    """Return how a node is called that a plan opens, before it has a name: by its place in `Plan.nodes`."""
    return f"{group_id}/planned-{batch}-{copy}"


def after_plan(problem: Problem, plan: Plan, kept: Iterable[int]) -> Problem:
    """Return the problem after the plan was carried out: its nodes stand, with the pods of the classes `kept` on them.
    Pods that wait are left out."""
    stay, classes = set(kept), plan.pod_classes
    groups = {group.id: group for group in problem.node_groups}
    deltas = {increment.node_group: increment.delta for increment in plan.increments}
    on_node = {placed.node: placed.pods for placed in plan.existing}
    nodes = [
        _with_pods(node, [(classes[i], n) for i, n in on_node.get(node.name, {}).items() if i in stay])
        for node in problem.nodes
    ]
    for number, batch in enumerate(plan.nodes):
        group = groups[batch.node_group]
        here = [(classes[i], n) for i, n in batch.pods.items() if i in stay]
        filled = _with_pods(new_node(group, problem.daemon_sets), here)
        nodes.extend(replace(filled, name=planned_name(group.id, number, copy)) for copy in range(batch.count))
    return replace(
        problem,
        pod_sets=(),
        node_groups=tuple(replace(g, target_size=g.target_size + deltas.get(g.id, 0)) for g in problem.node_groups),
        nodes=tuple(nodes),
        limits=tuple(with_nodes(limit, groups, deltas) for limit in problem.limits),
        previous=None,
    )


def _with_pods(node: Node, pods: Sequence[tuple[PodClass, int]]) -> Node:
    free = dict(node.free)
    for name, amount in taken(((each.spec, count) for each, count in pods), node.volumes).items():
        free[name] = free.get(name, 0) - amount
    claims = [each.spec.claims for each, count in pods if each.spec.claims for _ in range(count)]
    return replace(
        node,
        free=free,
        running=(*node.running, *(RunningPods(c.spec, n) for c, n in pods)),
        devices=after_pods(node.devices, claims) if claims else node.devices,
        volumes=node.volumes.union(*(each.spec.shared_volumes for each, count in pods if count)),
    )
