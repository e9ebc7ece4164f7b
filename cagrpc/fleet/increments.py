"""The life of increments as a pure function: records, what the backend lists, and the time give the next records and
what has to be asked of the backend.

    planned -> creating -> ready -> done
        \\________\\-> rolling back -> rolled back

Nothing here stores or calls anything; `fleet` does both, and always stores first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cagrpc.fleet.backend import BackendInstance
from cagrpc.fleet.model import InstanceError, InstanceState, Origin, Phase
from cagrpc.fleet.records import Changes, Contents, DeletionRecord, IncrementRecord, MemberState

Machines = Mapping[str, BackendInstance]
"""What the backend lists, by token."""

_WAITING = (Phase.PLANNED, Phase.CREATING)


@dataclass(frozen=True, slots=True)
class Times:
    """How long things take at most. All in seconds."""

    deadline: float = 600.0
    """An increment whose instances do not all run by then is rolled back."""
    failed_listing: float = 600.0
    """How long CA has to delete the failed instances of an increment it asked for before they are given up."""
    retention: float = 86_400.0
    """How long finished increments and deletions are remembered, so that repeated requests for them are recognised."""


def by_token(listing: Sequence[BackendInstance]) -> Machines:
    """What the backend lists, by token."""
    return {machine.token: machine for machine in listing}


def advance(
    contents: Contents, listing: Sequence[BackendInstance], groups: Collection[str], now: float, times: Times
) -> Changes:
    """The next step of every increment and deletion; empty when nothing moves. Each phase is a step of its own, so
    the caller stores these changes and asks again until there are none."""
    machines = by_token(listing)
    increments = []
    for record in contents.increments.values():
        moved = _advance_one(record, machines, groups, now, times)
        if moved is not record:
            increments.append(moved)
    listed = {machine.id for machine in listing}
    deletions = tuple(
        replace(deletion, done_at_seconds=now)
        for deletion in contents.deletions.values()
        if deletion.done_at_seconds is None and deletion.instance_id not in listed
    )
    return Changes(increments=tuple(increments), deletions=deletions)


def _advance_one(
    record: IncrementRecord, machines: Machines, groups: Collection[str], now: float, times: Times
) -> IncrementRecord:
    match record.phase:
        case Phase.PLANNED | Phase.CREATING:
            return _advance_waiting(_learn(record, machines), machines, groups, now)
        case Phase.READY:
            # Without a start-up taint to lift, running is ready and ready is done.
            return replace(record, phase=Phase.DONE, finished_at_seconds=now, message="every instance runs")
        case Phase.ROLLING_BACK if not any(member.token in machines for member in record.members):
            return replace(record, phase=Phase.ROLLED_BACK, finished_at_seconds=now)
    failed = [member.token for member in record.members if member.state is MemberState.FAILED]
    if failed and record.failed_at_seconds is not None and now >= record.failed_at_seconds + times.failed_listing:
        return record.with_members(dict.fromkeys(failed, MemberState.RELEASED))
    return record


def _learn(record: IncrementRecord, machines: Machines) -> IncrementRecord:
    """A listed machine tells its id, and that its order was taken."""
    members = tuple(
        replace(
            member,
            instance_id=machines[member.token].id,
            state=MemberState.ORDERED if member.state is MemberState.PLANNED else member.state,
        )
        if member.token in machines
        else member
        for member in record.members
    )
    return record if members == record.members else replace(record, members=members)


def _advance_waiting(
    record: IncrementRecord, machines: Machines, groups: Collection[str], now: float
) -> IncrementRecord:
    remaining = [member for member in record.members if member.state is not MemberState.RELEASED]
    if not remaining:
        return replace(record, phase=Phase.DONE, finished_at_seconds=now, message="all of its instances were deleted")
    trouble = _trouble(record, machines, groups, now)
    if trouble is not None:
        return failed(record, trouble, now)
    if all(member.token in machines and _runs(machines[member.token]) for member in remaining):
        return replace(record, phase=Phase.READY)
    return record


def _trouble(record: IncrementRecord, machines: Machines, groups: Collection[str], now: float) -> InstanceError | None:
    """Why the increment cannot be whole any more: the first of its members that failed, else the deadline."""
    running = 0
    remaining = [member for member in record.members if member.state is not MemberState.RELEASED]
    for member in remaining:
        machine = machines.get(member.token)
        if member.node_group not in groups:
            return InstanceError("unknown-group", f"node group {member.node_group} is no longer configured")
        if machine is not None and machine.error is not None:
            return replace(machine.error, message=f"{machine.id}: {machine.error.message}")
        if machine is None and member.instance_id is not None:
            return InstanceError("vanished", f"{member.instance_id} vanished before its increment was whole")
        if machine is not None and machine.state is InstanceState.DELETING:
            return InstanceError("vanished", f"{machine.id} is being deleted by somebody else")
        running += machine is not None and _runs(machine)
    if now >= record.deadline_at_seconds and running < len(remaining):
        waited = record.deadline_at_seconds - record.created_at_seconds
        return InstanceError("deadline", f"{running} of {len(remaining)} instances were running after {waited:g} s")
    return None


def _runs(machine: BackendInstance) -> bool:
    return machine.state is InstanceState.RUNNING and machine.error is None


def failed(record: IncrementRecord, error: InstanceError, now: float) -> IncrementRecord:
    """Rolling back. What CA asked for stays listed as failed until CA has deleted it: with the target restored at
    once, CA takes its scale-up for finished and asks the same group again."""
    state = MemberState.FAILED if record.increment.origin is Origin.AUTOSCALER else MemberState.RELEASED
    remaining = [member.token for member in record.members if member.state is not MemberState.RELEASED]
    return replace(
        record.with_members(dict.fromkeys(remaining, state)),
        phase=Phase.ROLLING_BACK,
        message=error.message,
        error=replace(error, out_of_resources=True),
        failed_at_seconds=now,
    )


def refused(record: IncrementRecord, message: str, now: float, *, answered: bool) -> IncrementRecord:
    """The backend refused the order. Where the caller is told so (`answered`), nothing is left to see; otherwise it
    is a failure like any later one. Machines of an earlier try whose answer was lost are rolled back first."""
    result = failed(record, InstanceError("out-of-capacity", message), now)
    if answered:
        result = result.with_members({member.token: MemberState.RELEASED for member in result.members})
    if all(member.instance_id is None for member in record.members):
        result = replace(result, phase=Phase.ROLLED_BACK, finished_at_seconds=now)
    return result


def to_order(record: IncrementRecord) -> tuple[str, ...]:
    """Tokens to order, or to order again where the answer never came. Call it with what the backend lists learnt."""
    if record.phase not in _WAITING:
        return ()
    return tuple(member.token for member in record.members if member.state is MemberState.PLANNED)


def to_delete(contents: Contents, listing: Sequence[BackendInstance]) -> Mapping[str, Sequence[str]]:
    """Instances that must go and do not go yet, by node group: deleted ones, members of failed increments (also those
    that turn up late) and members that CA gave back."""
    doomed: dict[str, list[str]] = {}
    for machine in listing:
        if machine.state is not InstanceState.DELETING and must_go(contents, machine):
            doomed.setdefault(machine.node_group, []).append(machine.id)
    return doomed


def must_go(contents: Contents, machine: BackendInstance) -> bool:
    """Whether the journal says that this machine has to be deleted."""
    place = contents.by_token.get(machine.token)
    return machine.id in contents.deletions or (
        place is not None and (place.record.failing or place.member.state is MemberState.RELEASED)
    )


def expired(contents: Contents, listing: Sequence[BackendInstance], now: float, times: Times) -> Changes:
    """What is finished for so long that it may be forgotten: nothing of it is listed, and no repetition is expected."""
    before, machines = now - times.retention, by_token(listing)
    return Changes(
        forgotten_increments=tuple(record.id for record in _finished_before(contents, before, machines)),
        forgotten_deletions=tuple(
            deletion.instance_id for deletion in contents.deletions.values() if _is_done_before(deletion, before)
        ),
    )


def _finished_before(contents: Contents, before: float, machines: Machines) -> Iterator[IncrementRecord]:
    for record in contents.increments.values():
        if record.finished_at_seconds is None or record.finished_at_seconds >= before:
            continue
        still_needed = any(
            member.state is MemberState.FAILED or (record.failing and member.token in machines)
            for member in record.members
        )
        if not still_needed:
            yield record


def _is_done_before(deletion: DeletionRecord, before: float) -> bool:
    return deletion.done_at_seconds is not None and deletion.done_at_seconds < before
