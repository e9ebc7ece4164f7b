"""How full nodes are: existing ones, and those of a plan. Thousands of nodes become a few bars for each shape."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cagrpc.fleet.prices import GPUS
from cagrpc.report.model import Bar, ClusterName, NameKind, RoomUse, ShapeUse
from cagrpc.report.standing import ReportedNode
from solver import Plan, Problem
from solver.model import CPU, MEMORY, NodeGroup, PodSpec, Resources
from solver.model.capacity import new_node

_MOST_BARS = 48
"""Of one shape; more nodes than that share bars."""


class Fill(NamedTuple):
    """So many nodes that are equally full. Amounts are millicores and bytes of one node."""

    nodes: int
    cpu: int
    cpu_overhead: int
    memory: int
    memory_overhead: int
    gpus: int = 0


def standing_packing(nodes: Iterable[ReportedNode], names: Mapping[str, NodeGroup]) -> RoomUse:
    """Return how full these nodes are; `names` has their node groups."""
    fills: defaultdict[str, list[Fill]] = defaultdict(list)
    shapes = {}
    for node in nodes:
        group = names[node.name]
        fills[group.id].append(_fill(1, node.requested(overhead=False), node.requested(overhead=True)))
        shapes[group.id] = group
    groups = ((shapes[name], found) for name, found in fills.items())
    return _packing([(group, found, group.capacity or group.allocatable) for group, found in groups])


def planned_packing(problem: Problem, plan: Plan) -> RoomUse:
    """Return how full a plan's new nodes are."""
    groups = {each.id: each for each in problem.node_groups}
    asked = {each.index: dict(each.spec.requests) for each in plan.pod_classes}
    overhead = {name: _overhead(groups[name], problem.daemon_sets) for name in {e.node_group for e in plan.nodes}}
    fills: defaultdict[str, list[Fill]] = defaultdict(list)
    for each in plan.nodes:
        used: Counter[str] = Counter()
        for index, count in each.pods.items():
            used.update({name: count * asked[index].get(name, 0) for name in (CPU, MEMORY, *GPUS)})
        fills[each.node_group].append(_fill(each.count, used, overhead[each.node_group]))
    return _packing([(groups[name], found, groups[name].allocatable) for name, found in fills.items()])


def _fill(nodes: int, pods: Resources, with_node: Resources) -> Fill:
    cpu, memory = ((pods.get(each, 0), with_node.get(each, 0)) for each in (CPU, MEMORY))
    return Fill(nodes, *cpu, *memory, _gpus(pods) + _gpus(with_node))


def _overhead(group: NodeGroup, daemons: Iterable[PodSpec]) -> Resources:
    left = new_node(group, daemons).free
    return {name: amount - left.get(name, 0) for name, amount in group.allocatable.items()}


def _gpus(amounts: Resources) -> int:
    return sum(amounts.get(each, 0) for each in GPUS)


def _packing(found: Sequence[tuple[NodeGroup, Sequence[Fill], Resources]]) -> RoomUse:
    shapes = [_shape(group, fills, room) for group, fills, room in found]
    shapes.sort(key=lambda each: (-each.usd_per_hour, each.group))
    every = [(each, room) for _, fills, room in found for each in fills]
    return RoomUse(
        nodes=sum(each.nodes for each in shapes),
        usd_per_hour=sum(each.usd_per_hour for each in shapes),
        cpu_milli=sum(each.nodes * room.get(CPU, 0) for each, room in every),
        cpu_requested_milli=sum(each.nodes * (each.cpu + each.cpu_overhead) for each, _ in every),
        memory_bytes=sum(each.nodes * room.get(MEMORY, 0) for each, room in every),
        memory_requested_bytes=sum(each.nodes * (each.memory + each.memory_overhead) for each, _ in every),
        shapes=tuple(shapes),
        gpus=sum(each.gpus for each in shapes),
        gpus_requested=sum(each.gpus_requested for each in shapes),
    )


def _shape(group: NodeGroup, fills: Sequence[Fill], room: Resources) -> ShapeUse:
    nodes = sum(each.nodes for each in fills)
    cpu, memory = max(1, room.get(CPU, 0)), max(1, room.get(MEMORY, 0))
    return ShapeUse(
        group=ClusterName(NameKind.GROUP, group.id),
        instance_type=ClusterName(NameKind.INSTANCE_TYPE, group.instance_type),
        zone=ClusterName(NameKind.ZONE, group.zone),
        capacity_type=ClusterName(NameKind.CAPACITY_TYPE, group.capacity_type),
        pool=ClusterName(NameKind.POOL, group.provisioner),
        nodes=nodes,
        usd_per_hour=nodes * group.price_usd_per_hour,
        cpu_milli=cpu,
        memory_bytes=memory,
        bars=tuple(_bars(fills, cpu, memory)),
        gpus=nodes * _gpus(room),
        gpus_requested=sum(each.nodes * each.gpus for each in fills),
    )


def _bars(fills: Sequence[Fill], cpu: int, memory: int) -> Iterable[Bar]:
    """Yield at most `_MOST_BARS` bars of about as many nodes each, fullest first."""
    ordered = sorted(fills, key=lambda each: (-(each.cpu / cpu + each.memory / memory), each))
    nodes = sum(each.nodes for each in ordered)
    bars = min(nodes, _MOST_BARS)
    queue, left, before = iter(ordered), 0, 0
    current: Fill | None = None
    for index in range(1, bars + 1):
        wanted = index * nodes // bars - before
        before += wanted
        sums, missing = [0.0] * 4, wanted
        while missing:
            if not left:
                current = next(queue)
                left = current.nodes
            assert current is not None
            taken = min(left, missing)
            left, missing = left - taken, missing - taken
            sums = [total + taken * amount for total, amount in zip(sums, current[1:5], strict=True)]
        rooms = (cpu, cpu, memory, memory)
        yield Bar(wanted, *(round(total / wanted / room, 4) for total, room in zip(sums, rooms, strict=True)))
