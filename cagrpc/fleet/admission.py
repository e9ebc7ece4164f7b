"""Admission: whether a request is allowed, and what it changes in the journal. Pure: a request is checked as a whole
before any part of it takes effect, and all of its problems are reported at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from cagrpc import errors
from cagrpc.errors import shown
from cagrpc.fleet.index import View, used
from cagrpc.fleet.model import LARGEST_INCREMENT, IncrementSpec, Instance, InstanceState, Origin, Phase
from cagrpc.fleet.records import Changes, Contents, DeletionRecord, IncrementRecord, Member, MemberState
from solver.model import Limit, NodeGroup
from solver.model.quantities import pluralize


@dataclass(frozen=True, slots=True)
class FleetState:
    """The state against which a request is checked."""

    contents: Contents
    view: View
    groups: Mapping[str, NodeGroup]
    limits: Sequence[Limit]
    autoscaler_may_grow: bool = True
    """Whether CA may grow a group beyond its minimum size."""


def admit_increment(
    state: FleetState, increment: IncrementSpec, *, increment_id: str, now: float, deadline_seconds: float
) -> IncrementRecord:
    """Return the increment's record. Raises `NotFound`, `InvalidInput`, `FailedPrecondition` (CA may not grow the
    group), `OutOfRange` or `LimitExceeded`, the first of these that applies, with all problems in its message."""
    found: list[tuple[type[errors.CagrpcError], str]] = []
    if not increment.deltas:
        found.append((errors.InvalidInput, "an increment needs at least one node group and delta"))
    for group_id, delta in increment.deltas.items():
        group = state.groups.get(group_id)
        if group is None:
            found.append((errors.NotFound, f"node group {shown(group_id)} does not exist"))
        elif delta < 1:
            found.append((errors.InvalidInput, f"node group {group_id}: delta is {delta}, it must be at least 1"))
        elif (target := state.view.targets.get(group_id, 0)) + delta > group.max_size:
            problem = (
                f"node group {group_id}: target size {target} plus delta {delta} is {target + delta},"
                f" more than its maximum of {group.max_size}"
            )
            found.append((errors.OutOfRange, problem))
    if not any(kind in (errors.NotFound, errors.InvalidInput) for kind, _ in found):
        found += [(errors.FailedPrecondition, problem) for problem in _not_for_the_autoscaler(state, increment)]
        found += [(errors.LimitExceeded, problem) for problem in _over_limits(state, increment)]
    if not found and (nodes := sum(increment.deltas.values())) > LARGEST_INCREMENT:
        problem = f"an increment of {nodes:,} nodes; one has at most {LARGEST_INCREMENT:,}: ask for it in parts"
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
    state: FleetState,
    asked: Sequence[IncrementSpec],
    *,
    new_id: Callable[[], str],
    now: float,
    deadline_seconds: float,
) -> list[IncrementRecord | errors.CagrpcError]:
    """Admit each increment in turn, counting those admitted before; return its record, or the error that refuses it."""
    targets = Counter(state.view.targets)
    state = replace(state, view=replace(state.view, targets=targets))
    found: list[IncrementRecord | errors.CagrpcError] = []
    for increment in asked:
        try:
            record = admit_increment(
                state, increment, increment_id=new_id(), now=now, deadline_seconds=deadline_seconds
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
"""The first of these is raised where there are several errors."""


def _not_for_the_autoscaler(state: FleetState, increment: IncrementSpec) -> list[str]:
    if state.autoscaler_may_grow or increment.origin is not Origin.AUTOSCALER:
        return []
    return [
        f"node group {group_id}: drive: plan: the planner decides on scale-ups; target size {target} plus delta {delta}"
        f" is above the minimum of {state.groups[group_id].min_size}, up to which CA may grow it"
        for group_id, delta in increment.deltas.items()
        if (target := state.view.targets.get(group_id, 0)) + delta > state.groups[group_id].min_size
    ]


def _over_limits(state: FleetState, increment: IncrementSpec) -> list[str]:
    problems = []
    for limit in state.limits:
        before = used(limit, state.groups, state.view.targets).used
        more = used(replace(limit, used={}), state.groups, increment.deltas).used
        problems += [
            f"limit {limit.name}: {resource} is at {before.get(resource, 0)} of {limit.maxima[resource]},"
            f" {amount} more would exceed it"
            for resource, amount in sorted(more.items())
            if amount and before.get(resource, 0) + amount > limit.maxima[resource]
        ]
    return problems


def admit_deletion(
    state: FleetState,
    group_id: str,
    instance_ids: Sequence[str],
    now: float,
    unregistered: AbstractSet[str] = frozenset(),
) -> Changes:
    """Return the changes of deleting these instances of the group; empty where all are being deleted or gone already.
    Those that are `unregistered` never became Nodes: they may go at the group's minimum, which is then filled up again.

    Raises `NotFound` for an unknown group or instance, `InvalidInput` for an instance of another group (with all
    invalid ids), and `FailedPrecondition` where fewer healthy nodes than the minimum would remain.
    """
    group = _known_group(state, group_id)
    listed = {instance.id: instance for instance in state.view.instances.get(group_id, ())}
    unknown: list[str] = []
    foreign: list[str] = []
    wanted: dict[str, Instance] = {}
    registered: set[str] = set()
    for instance_id in dict.fromkeys(instance_ids):
        owner = _owner(state, instance_id)
        if owner is None:
            unknown.append(f"instance {shown(instance_id)} does not exist")
        elif owner != group_id:
            foreign.append(f"instance {instance_id} belongs to node group {owner}")
        else:
            instance = listed.get(instance_id) or listed.get(_present_id(state, instance_id))
            if instance is not None and instance.state is not InstanceState.DELETING:
                wanted[instance.id] = instance  # once, also where it is named by both of its ids
                if instance_id not in unregistered:
                    registered.add(instance.id)
    if unknown or foreign:
        kind = errors.InvalidInput if foreign else errors.NotFound
        raise kind(f"node group {group_id}: nothing was deleted: " + "; ".join([*foreign, *unknown]))
    healthy = [instance for instance in wanted.values() if instance.error is None]
    failed_listed = sum(instance.error is not None for instance in listed.values())
    left = state.view.targets.get(group_id, 0) - failed_listed - len(healthy)
    if left < group.min_size and any(instance.id in registered for instance in healthy):
        raise errors.FailedPrecondition(
            f"node group {group_id}: deleting {pluralize(len(healthy), 'instance')} would leave"
            f" {pluralize(left, 'node')}, fewer than its minimum of {group.min_size}"
        )
    return _deletion_changes(state.contents, tuple(wanted.values()), now)


def _owner(state: FleetState, instance_id: str) -> str | None:
    """Return the group of an instance that is or was listed: also a deleted, failed or vanished one."""
    listed = state.view.group_of_instance.get(instance_id)
    if listed is not None:
        return listed
    if instance_id in state.contents.deletions:
        return state.contents.deletions[instance_id].node_group
    ref = state.contents.by_instance.get(instance_id)
    return None if ref is None else ref.member.node_group


def _present_id(state: FleetState, instance_id: str) -> str:
    """Return the id under which an instance is listed now: CA may remember its token, which was its id before."""
    ref = state.contents.by_instance.get(instance_id)
    return instance_id if ref is None else ref.member.listed_id


def _deletion_changes(contents: Contents, wanted: Sequence[Instance], now: float) -> Changes:
    """Release members of increments in flight, which continue with the others, and failed members, whose instances the
    rollback deletes. Existing instances are recorded as deleted."""
    released: dict[str, dict[str, MemberState]] = {}
    deletions: list[DeletionRecord] = []
    for instance in wanted:
        ref = contents.by_instance.get(instance.id)
        if ref is not None and (ref.record.phase.in_flight or ref.member.state is MemberState.FAILED):
            released.setdefault(ref.record.id, {})[ref.member.token] = MemberState.RELEASED
        if ref is None or ref.member.state is not MemberState.FAILED:
            deletions.append(DeletionRecord(instance.id, instance.node_group, now))
    increments = tuple(contents.increments[key].with_members(states) for key, states in released.items())
    return Changes(increments=increments, deletions=tuple(deletions))


def admit_decrease(state: FleetState, group_id: str, delta: int) -> Changes:
    """Return the changes of lowering the target by up to `-delta`: the oldest failed instances that are still listed
    are released.

    CA calls it for an increase that it considers timed out, for the whole delta even if some nodes came. Existing nodes
    are never released for it, nor increments in flight: those succeed or fail as a whole, by a deadline that is shorter
    than CA's. Raises `NotFound`, and `InvalidInput` for a delta that is not negative.
    """
    _known_group(state, group_id)
    if delta >= 0:
        raise errors.InvalidInput(f"node group {group_id}: delta is {delta}, it must be negative")
    failed = [
        (record, member)
        for record in state.contents.increments.values()
        for member in record.members
        if member.node_group == group_id and member.state is MemberState.FAILED
    ]
    released: dict[str, dict[str, MemberState]] = {}
    for record, member in failed[:-delta]:
        released.setdefault(record.id, {})[member.token] = MemberState.RELEASED
    return Changes(
        increments=tuple(state.contents.increments[key].with_members(states) for key, states in released.items())
    )


def _known_group(state: FleetState, group_id: str) -> NodeGroup:
    group = state.groups.get(group_id)
    if group is None:
        raise errors.NotFound(f"node group {shown(group_id)} does not exist")
    return group
