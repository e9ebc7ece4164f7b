"""What is to be seen of the fleet, derived from the journal's records and the backend's list: instances, targets, the
use of limits, and the snapshot made of them. Pure, and the only place that says what counts.

A target is what is listed and not being deleted, plus what is asked for and not listed yet. It is never stored, so it
cannot disagree with the instances behind it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cagrpc.fleet.backend import BackendInstance
from cagrpc.fleet.lifecycle import must_go, nodes, progress
from cagrpc.fleet.model import (
    FleetSnapshot,
    GroupState,
    IncrementStatus,
    Instance,
    InstanceState,
    Phase,
    PodKey,
)
from cagrpc.fleet.observation import Observation
from cagrpc.fleet.records import Contents, IncrementRecord, MemberState
from solver.model import Limit, NodeGroup
from solver.model.quantities import several

Shown = Callable[[Sequence[NodeGroup], Mapping[str, int]], Sequence[str]]
"""Picks the ids of the groups that CA is told of; targets by id, absent ones 0."""

_FINISHED_KEPT = 100
_LATELY_SECONDS = 60.0
"""And all that ended so long before the last: readers that follow finished increments for a while (shortages, settling
pods) find them, however many end together. Counted from the last, so that time alone changes no snapshot."""


@dataclass(frozen=True, slots=True)
class View:
    """Instances by group in order of creation, targets above 0 by group, and the group of every listed instance."""

    instances: Mapping[str, tuple[Instance, ...]]
    targets: Mapping[str, int]
    group_of_instance: Mapping[str, str]


def view(contents: Contents, observed: Observation, groups: Mapping[str, NodeGroup]) -> View:
    """Return what is listed. Instances of groups that are not in `groups`, which were never configured, are ignored."""
    listed = sorted(_listed(contents, observed), key=lambda entry: entry[0])
    instances: dict[str, list[Instance]] = defaultdict(list)
    targets: Counter[str] = Counter()
    for _, instance in listed:
        if instance.node_group in groups:
            instances[instance.node_group].append(instance)
            targets[instance.node_group] += instance.state is not InstanceState.DELETING
    for group_id in _coming(contents, observed):
        targets[group_id] += group_id in groups
    return View(
        instances={group_id: tuple(found) for group_id, found in instances.items()},
        targets={group_id: count for group_id, count in targets.items() if count},
        group_of_instance={instance.id: instance.node_group for found in instances.values() for instance in found},
    )


def _listed(contents: Contents, observed: Observation) -> Iterator[tuple[tuple[int, int], Instance]]:
    """Yield each instance to list with its position in the order of creation; those of unknown origin come first."""
    for position, machine in enumerate(observed.listing):
        place = contents.by_token.get(machine.token)
        if place is not None and place.member.state is MemberState.FAILED:
            continue  # Listed below, machine or not.
        deleting = must_go(contents, machine) or machine.state is InstanceState.DELETING
        yield (
            (-1, position) if place is None else place.order,
            Instance(
                id=machine.id,
                node_group=machine.node_group if place is None else place.member.node_group,
                state=InstanceState.DELETING if deleting else machine.state,
                error=None if deleting else machine.error,
            ),
        )
    for record in contents.increments.values():
        if record.error is None:
            continue
        for member in record.members:
            if member.state is MemberState.FAILED:
                failed = Instance(member.listed_id, member.node_group, InstanceState.CREATING, record.error)
                yield contents.by_token[member.token].order, failed


def _coming(contents: Contents, observed: Observation) -> Iterator[str]:
    """Yield the group of every node that is requested and not listed yet."""
    for record in contents.increments.values():
        if record.phase in (Phase.PLANNED, Phase.CREATING):
            for member in record.remaining:
                if member.token not in observed.machines:
                    yield member.node_group


def used(limit: Limit, groups: Mapping[str, NodeGroup], targets: Mapping[str, int]) -> Limit:
    """Return the limit with `used` brought up to date: what it was given with is used outside the fleet."""
    total = Counter(limit.used)
    for group_id, target in targets.items():
        if limit.node_groups is None or group_id in limit.node_groups:
            for resource, amount in groups[group_id].counted_capacity.items():
                if resource in limit.maxima:
                    total[resource] += amount * target
    return replace(limit, used=dict(total))


def status(record: IncrementRecord, observed: Observation) -> IncrementStatus:
    """Return an increment's status: while it is in flight the message says what it waits for."""
    match record.phase:
        case Phase.PLANNED:
            return record.status("waits to be ordered", nodes(record, observed))
        case Phase.CREATING:
            return record.status(progress(record, observed), nodes(record, observed))
        case Phase.READY:
            held = nodes(record, observed)
            return record.status(f"waits until {several(len(held), 'node')} can be released", held)
    return record.status()


def _held_instances(contents: Contents, observed: Observation) -> Iterator[str]:
    """Yield instances of increments in flight, and those that a failed one still has to delete: no pod may run
    there."""
    for machine in observed.listing:
        place = contents.by_token.get(machine.token)
        if place is not None and (place.record.phase.in_flight or place.record.failing):
            yield machine.id
    for record in contents.increments.values():
        if record.failing:
            yield from (member.listed_id for member in record.members if member.state is MemberState.FAILED)


def _in_flight_pods(contents: Contents, observed: Observation) -> Iterator[PodKey]:
    """Yield the pods that increments in flight serve. One that is rolling back serves none, and neither does a node
    that was deleted, or that vanished from a ready increment: their pods can be planned elsewhere at once."""
    for record in contents.increments.values():
        if not record.phase.in_flight or record.phase is Phase.ROLLING_BACK or record.increment.requests:
            continue
        planned = record.planned() if record.increment.placements else {}
        lost = {
            pod
            for member in record.members
            if member.state is MemberState.RELEASED
            or (observed.listed and record.phase is Phase.READY and not observed.exists(member.token))
            for pod in (planned[member.token].pods if planned else ())
        }
        yield from record.increment.pods - lost


def _requested_instances(contents: Contents, observed: Observation) -> Iterator[tuple[str, frozenset[str]]]:
    for record in contents.increments.values():
        if record.failing or not record.increment.requests:
            continue
        planned = record.planned()
        for member in record.remaining:
            if member.token in observed.machines:
                yield observed.machines[member.token].id, frozenset(planned[member.token].requests)


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
    observed: Observation,
    groups: Mapping[str, NodeGroup],
    limits: Sequence[Limit],
    shown: Shown,
    orphans: Sequence[BackendInstance] = (),
) -> FleetSnapshot:
    """Return the next snapshot; the same object as `previous` where nothing changed. Unchanged groups stay the same
    objects too, so that readers may cache what they derived from them."""
    seen = view(contents, observed, groups)
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
        increments=tuple(status(record, observed) for record in contents.increments.values() if record.id in listed),
        limits=tuple(used(limit, groups, seen.targets) for limit in limits),
        held_instances=frozenset(_held_instances(contents, observed)),
        requested_instances=dict(_requested_instances(contents, observed)),
        in_flight_pods=frozenset(_in_flight_pods(contents, observed)),
        orphans=tuple(Instance(each.id, each.node_group, each.state, each.error) for each in orphans),
        disruptions=tuple(contents.disruptions.values()),
    )
    return previous if result == previous else replace(result, version=previous.version + 1)


def _state(
    previous: GroupState | None, group: NodeGroup, target: int, instances: Mapping[str, tuple[Instance, ...]]
) -> GroupState:
    found = instances.get(group.id, ())
    if previous is not None and previous.target_size == target and previous.instances == found:
        return previous
    # Where more exist than allowed (the maximum was lowered, or the group is no longer configured), that is its
    # maximum.
    shown = replace(group, target_size=target, max_size=max(group.max_size, target))
    return GroupState(group=shown, target_size=target, instances=found)
