"""Whether a request may be done, and what it changes in the journal. Pure: a request is checked whole before anything
of it is done, and everything that is wrong with it is told at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cagrpc import errors
from cagrpc.fleet.model import LARGEST_INCREMENT, IncrementSpec, Instance, InstanceState, Origin, Phase
from cagrpc.fleet.records import Changes, Contents, DeletionRecord, IncrementRecord, Member, MemberState
from cagrpc.fleet.snapshot import View, used
from solver.model import Limit, NodeGroup


@dataclass(frozen=True, slots=True)
class FleetState:
    """What stands when a request comes."""

    contents: Contents
    view: View
    groups: Mapping[str, NodeGroup]
    limits: Sequence[Limit]
    autoscaler_may_grow: bool = True
    """Whether CA may ask for more than a group's minimum size."""


def admit_increment(
    standing: FleetState, increment: IncrementSpec, *, increment_id: str, now: float, deadline_seconds: float
) -> IncrementRecord:
    """The increment as it is to be journalled. Raises `NotFound`, `InvalidInput`, `FailedPrecondition` (not for CA to
    ask), `OutOfRange` or `LimitExceeded`, the first of these that applies, with all problems in its message."""
    found: list[tuple[type[errors.CagrpcError], str]] = []
    if not increment.deltas:
        found.append((errors.InvalidInput, "an increment needs at least one node group and delta"))
    for group_id, delta in increment.deltas.items():
        group = standing.groups.get(group_id)
        if group is None:
            found.append((errors.NotFound, f"node group {_short(group_id)!r} does not exist"))
        elif delta < 1:
            found.append((errors.InvalidInput, f"node group {group_id}: delta is {delta}, it must be at least 1"))
        elif (target := standing.view.targets.get(group_id, 0)) + delta > group.max_size:
            problem = (
                f"node group {group_id}: target size {target} plus delta {delta} is {target + delta},"
                f" more than its maximum of {group.max_size}"
            )
            found.append((errors.OutOfRange, problem))
    if not any(kind in (errors.NotFound, errors.InvalidInput) for kind, _ in found):
        found += [(errors.FailedPrecondition, problem) for problem in _not_for_the_autoscaler(standing, increment)]
        found += [(errors.LimitExceeded, problem) for problem in _over_limits(standing, increment)]
    if not found and (nodes := sum(increment.deltas.values())) > LARGEST_INCREMENT:
        problem = f"an increment of {nodes} nodes; one has at most {LARGEST_INCREMENT}, ask for it in parts"
        found.append((errors.InvalidInput, problem))
    for kind in _BY_WEIGHT:
        if any(found_kind is kind for found_kind, _ in found):
            raise kind("; ".join(problem for _, problem in found))
    members = tuple(
        Member(token=f"{increment_id}-{group_id}-{number}", node_group=group_id)
        for group_id, delta in increment.deltas.items()
        for number in range(1, delta + 1)
    )
    return IncrementRecord(
        id=increment_id,
        increment=replace(increment, deltas=dict(increment.deltas)),
        phase=Phase.PLANNED,
        members=members,
        created_at_seconds=now,
        deadline_at_seconds=now + deadline_seconds,
    )


def admit_all(
    standing: FleetState,
    asked: Sequence[IncrementSpec],
    *,
    new_id: Callable[[], str],
    now: float,
    deadline_seconds: float,
) -> list[IncrementRecord | errors.CagrpcError]:
    """Each as `admit_increment` has it, beside those before it that are admitted, or why it is not."""
    targets = Counter(standing.view.targets)
    standing = replace(standing, view=replace(standing.view, targets=targets))
    found: list[IncrementRecord | errors.CagrpcError] = []
    for increment in asked:
        try:
            record = admit_increment(
                standing, increment, increment_id=new_id(), now=now, deadline_seconds=deadline_seconds
            )
        except errors.CagrpcError as error:
            found.append(error)
        else:
            found.append(record)
            targets.update(increment.deltas)
    return found


_BY_WEIGHT = (
    errors.NotFound,
    errors.InvalidInput,
    errors.FailedPrecondition,
    errors.OutOfRange,
    errors.LimitExceeded,
)
"""Of several errors the first of these is raised."""


def _not_for_the_autoscaler(standing: FleetState, increment: IncrementSpec) -> list[str]:
    if standing.autoscaler_may_grow or increment.origin is not Origin.AUTOSCALER:
        return []
    return [
        f"node group {group_id}: drive: plan: the planner decides on scale-ups; target size {target} plus delta {delta}"
        f" is above the minimum of {standing.groups[group_id].min_size}, up to which it may be asked for"
        for group_id, delta in increment.deltas.items()
        if (target := standing.view.targets.get(group_id, 0)) + delta > standing.groups[group_id].min_size
    ]


def _over_limits(standing: FleetState, increment: IncrementSpec) -> list[str]:
    problems = []
    for limit in standing.limits:
        before = used(limit, standing.groups, standing.view.targets).used
        more = used(replace(limit, used={}), standing.groups, increment.deltas).used
        problems += [
            f"limit {limit.name}: {resource} is at {before.get(resource, 0)} of {limit.maxima[resource]},"
            f" {amount} more would exceed it"
            for resource, amount in sorted(more.items())
            if amount and before.get(resource, 0) + amount > limit.maxima[resource]
        ]
    return problems


def admit_deletion(standing: FleetState, group_id: str, instance_ids: Sequence[str], now: float) -> Changes:
    """What deleting these instances of the group changes; empty where all of them go or are gone already.

    Raises `NotFound` for an unknown group or instance, `InvalidInput` for one of another group (all wrong ids are
    named), and `FailedPrecondition` where fewer than the minimum of sound nodes would be left.
    """
    group = _known_group(standing, group_id)
    listed = {instance.id: instance for instance in standing.view.instances.get(group_id, ())}
    unknown: list[str] = []
    foreign: list[str] = []
    wanted: list[Instance] = []
    for instance_id in dict.fromkeys(instance_ids):
        owner = _owner(standing, instance_id)
        if owner is None:
            unknown.append(f"instance {_short(instance_id)!r} is not known")
        elif owner != group_id:
            foreign.append(f"instance {instance_id} belongs to node group {owner}")
        elif (instance := listed.get(instance_id)) is not None and instance.state is not InstanceState.DELETING:
            wanted.append(instance)
    if unknown or foreign:
        kind = errors.InvalidInput if foreign else errors.NotFound
        raise kind(f"node group {group_id}: nothing was deleted: " + "; ".join([*foreign, *unknown]))
    sound = [instance for instance in wanted if instance.error is None]
    failed_listed = sum(instance.error is not None for instance in listed.values())
    left = standing.view.targets.get(group_id, 0) - failed_listed - len(sound)
    if sound and left < group.min_size:
        raise errors.FailedPrecondition(
            f"node group {group_id}: deleting {len(sound)} instances would leave {left} nodes,"
            f" fewer than its minimum of {group.min_size}"
        )
    return _deletion_changes(standing.contents, wanted, now)


def _owner(standing: FleetState, instance_id: str) -> str | None:
    """The group of an instance that is listed, or was: deleted, failed or vanished."""
    listed = standing.view.group_of_instance.get(instance_id)
    if listed is not None:
        return listed
    if instance_id in standing.contents.deletions:
        return standing.contents.deletions[instance_id].node_group
    place = standing.contents.by_instance.get(instance_id)
    return None if place is None else place.member.node_group


def _deletion_changes(contents: Contents, wanted: Sequence[Instance], now: float) -> Changes:
    """A member of an increment in flight is released, so that the increment goes on with the others; a failed one is
    released too, and its machine is the roll-back's business. What exists is remembered as deleted."""
    released: dict[str, dict[str, MemberState]] = {}
    deletions: list[DeletionRecord] = []
    for instance in wanted:
        place = contents.by_instance.get(instance.id)
        if place is not None and (place.record.phase.in_flight or place.member.state is MemberState.FAILED):
            released.setdefault(place.record.id, {})[place.member.token] = MemberState.RELEASED
        if place is None or place.member.state is not MemberState.FAILED:
            deletions.append(DeletionRecord(instance.id, instance.node_group, now))
    increments = tuple(contents.increments[key].with_members(states) for key, states in released.items())
    return Changes(increments=increments, deletions=tuple(deletions))


def admit_decrease(standing: FleetState, group_id: str, delta: int) -> Changes:
    """What lowering the target by up to `-delta` gives back: failed instances that are still listed, oldest first.

    CA calls it for an increase that it believes timed out, and asks for all of it even if some nodes came. Nodes that
    exist are never given up for it. Neither is an increment in flight: it stands or falls whole, by a deadline that
    is shorter than CA's own. So what is left to give back is what failed. Raises `NotFound`, and `InvalidInput`
    for a delta that is not negative.
    """
    _known_group(standing, group_id)
    if delta >= 0:
        raise errors.InvalidInput(f"node group {group_id}: delta is {delta}, it must be negative")
    failed = [
        (record, member)
        for record in standing.contents.increments.values()
        for member in record.members
        if member.node_group == group_id and member.state is MemberState.FAILED
    ]
    released: dict[str, dict[str, MemberState]] = {}
    for record, member in failed[:-delta]:
        released.setdefault(record.id, {})[member.token] = MemberState.RELEASED
    return Changes(
        increments=tuple(standing.contents.increments[key].with_members(states) for key, states in released.items())
    )


def _known_group(standing: FleetState, group_id: str) -> NodeGroup:
    group = standing.groups.get(group_id)
    if group is None:
        raise errors.NotFound(f"node group {_short(group_id)!r} does not exist")
    return group


def _short(unknown_id: str) -> str:
    """An id that may be anything, for a message."""
    return unknown_id[:100]
