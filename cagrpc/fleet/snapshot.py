"""The snapshot that readers see, made of what `index` knows of instances and increments; and the uses of limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from cagrpc.fleet.backend import BackendInstance
from cagrpc.fleet.index import FleetIndex
from cagrpc.fleet.model import FleetSnapshot, GroupState, Instance
from cagrpc.fleet.records import Contents, IncrementRecord
from solver.model import Limit, NodeGroup

Shown = Callable[[Sequence[NodeGroup], Mapping[str, int]], Sequence[str]]
"""Picks the ids of the groups that CA is told of; targets by id, absent ones 0."""

_FINISHED_KEPT = 100
_LATELY_SECONDS = 60.0
"""And all that ended so long before the last: readers that follow finished increments for a while (shortages, settling
pods) find them, however many end together. Counted from the last, so that time alone changes no snapshot."""


def used(limit: Limit, groups: Mapping[str, NodeGroup], targets: Mapping[str, int]) -> Limit:
    """Return the limit with `used` brought up to date: what it was given with is used outside the fleet."""
    total = Counter(limit.used)
    for group_id, target in targets.items():
        if limit.node_groups is None or group_id in limit.node_groups:
            for resource, amount in groups[group_id].counted_capacity.items():
                if resource in limit.maxima:
                    total[resource] += amount * target
    return replace(limit, used=dict(total))


def _latest(contents: Contents) -> Iterator[IncrementRecord]:
    """Yield the finished increments that ended last, newest first."""
    ended = [(r.finished_at_seconds or 0.0, r) for r in contents.increments.values() if not r.phase.in_flight]
    ended.sort(key=lambda entry: entry[0])
    for number, (at, record) in enumerate(reversed(ended)):
        if number >= _FINISHED_KEPT and at <= ended[-1][0] - _LATELY_SECONDS:
            return
        yield record


def snapshot(
    previous: FleetSnapshot,
    contents: Contents,
    index: FleetIndex,
    groups: Mapping[str, NodeGroup],
    limits: Sequence[Limit],
    shown: Shown,
    orphans: Sequence[BackendInstance] = (),
) -> FleetSnapshot:
    """Return the next snapshot; the same object as `previous` where nothing changed. Unchanged groups stay the same
    objects too, so that readers may cache what they derived from them. `index` is that of these records."""
    seen, flight = index.view, index.flight
    states = {
        group_id: _state(previous.groups.get(group_id), group, seen.targets.get(group_id, 0), seen.instances)
        for group_id, group in groups.items()
    }
    in_flight = [record for record in contents.increments.values() if record.phase.in_flight]
    listed = {record.id for record in (*in_flight, *_latest(contents))}
    picked = {*shown(tuple(groups.values()), seen.targets), *seen.targets}
    result = FleetSnapshot(
        version=previous.version,
        groups=states,
        shown=tuple(group_id for group_id in groups if group_id in picked),
        group_of_instance=seen.group_of_instance,
        increments=tuple(index.status(key) for key in contents.increments if key in listed),
        limits=tuple(used(limit, groups, seen.targets) for limit in limits),
        held_instances=flight.held_instances,
        requested_instances=flight.requested_instances,
        in_flight_pods=flight.pods,
        orphans=tuple(Instance(each.id, each.node_group, each.state, each.error) for each in orphans),
        disruptions=tuple(contents.disruptions.values()),
    )
    return previous if result == previous else replace(result, version=previous.version + 1)


def _state(
    previous: GroupState | None, group: NodeGroup, target: int, instances: Mapping[str, tuple[Instance, ...]]
) -> GroupState:
    found = instances.get(group.id, ())
    same = previous is not None and (previous.instances is found or previous.instances == found)
    if previous is not None and same and previous.target_size == target:
        return previous
    # Where more exist than allowed (the maximum was lowered, or the group is no longer configured), that is its
    # maximum.
    shown = replace(group, target_size=target, max_size=max(group.max_size, target))
    return GroupState(group=shown, target_size=target, instances=found)
