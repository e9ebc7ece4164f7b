"""The lifecycle of increments as pure functions: records, the observed state and the time give the next records and the
orders and deletes that are due.

    planned -> creating -> ready -> done
        \\________\\________\\-> rolling back -> rolled back

With a cluster an increment stays ready, its nodes held, until it is `released` or `withdrawn`; without one, running is
ready and ready is done. Nothing here writes or calls anything; `fleet` does both, and always journals first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cagrpc import errors
from cagrpc.errors import ErrorKind
from cagrpc.fleet.backend import BackendInstance
from cagrpc.fleet.model import Disruption, IncrementNode, InstanceError, InstanceState, Origin, Phase
from cagrpc.fleet.observation import Observation
from cagrpc.fleet.records import Changes, Contents, DeletionRecord, IncrementRecord, Member, MemberState
from solver.model import NodeGroup

_MOST_VALUES = 5
"""Domains that a message names."""
_WAITING = (Phase.PLANNED, Phase.CREATING)


@dataclass(frozen=True, slots=True)
class Times:
    """Time limits, in seconds."""

    deadline: float = 600.0
    """An increment whose instances are not all ready by then is rolled back."""
    failed_listing: float = 600.0
    """How long CA has to delete the failed instances of an increment it asked for before they are given up."""
    retention: float = 86_400.0
    """How long finished increments and deletions are remembered, so that repeated requests for them are recognised."""


def advance(
    contents: Contents, observed: Observation, groups: Mapping[str, NodeGroup], now: float, times: Times
) -> Changes:
    """Return the next phase of every increment and deletion; empty when nothing moves. Each phase is a change of its
    own: the caller commits the changes and calls again until there are none."""
    increments = []
    for record in contents.increments.values():
        moved = _advance_one(record, observed, groups, now, times)
        if moved is not record:
            increments.append(moved)
    deletions = [each for each in contents.deletions.values() if each.done_at_seconds is None]
    if deletions:
        listed = {name for machine in observed.listing for name in (machine.id, machine.token)}
        deletions = [each for each in deletions if each.instance_id not in listed]
    done = tuple(replace(each, done_at_seconds=now) for each in deletions)
    return Changes(increments=tuple(increments), deletions=done)


def taken_over(contents: Contents, now: float, times: Times) -> Changes:
    """Return the times of another process's records by this one's clock, from which its own may have differed by any
    amount. No time lies ahead of now, and of a time limit that has not passed at least half is left, and at most all.
    So an increment in flight is not rolled back before this process has observed it for a while, and never waits longer
    than a new one."""
    moved = ((record, _taken_over(record, now, times)) for record in contents.increments.values())
    return Changes(
        increments=tuple(after for before, after in moved if after != before),
        deletions=tuple(
            replace(deletion, done_at_seconds=now)
            for deletion in contents.deletions.values()
            if deletion.done_at_seconds is not None and deletion.done_at_seconds > now
        ),
        disruptions=tuple(
            after
            for before in contents.disruptions.values()
            if (after := _disruption_taken_over(before, now)) != before
        ),
    )


def _disruption_taken_over(of: Disruption, now: float) -> Disruption:
    seconds, deadline = of.deadline_at_seconds - of.created_at_seconds, of.deadline_at_seconds
    if of.phase.under_way:
        deadline = min(max(deadline, now + seconds / 2), now + seconds)
    finished_at = of.finished_at_seconds
    return replace(
        of,
        created_at_seconds=min(of.created_at_seconds, now),
        deadline_at_seconds=deadline,
        finished_at_seconds=None if finished_at is None else min(finished_at, now),
    )


def _taken_over(record: IncrementRecord, now: float, times: Times) -> IncrementRecord:
    deadline, failed_at, finished_at = record.deadline_at_seconds, record.failed_at_seconds, record.finished_at_seconds
    if record.phase in _WAITING:
        deadline = min(max(deadline, now + times.deadline / 2), now + times.deadline)
    if failed_at is not None and any(member.state is MemberState.FAILED for member in record.members):
        failed_at = max(failed_at, now - times.failed_listing / 2)
    return replace(
        record,
        created_at_seconds=min(record.created_at_seconds, now),
        ordered_at_seconds=None if record.ordered_at_seconds is None else min(record.ordered_at_seconds, now),
        deadline_at_seconds=deadline,
        failed_at_seconds=None if failed_at is None else min(failed_at, now),
        finished_at_seconds=None if finished_at is None else min(finished_at, now),
    )


def _advance_one(
    record: IncrementRecord, observed: Observation, groups: Mapping[str, NodeGroup], now: float, times: Times
) -> IncrementRecord:
    record = _learn(record, observed)
    match record.phase:
        case Phase.PLANNED | Phase.CREATING:
            return _advance_waiting(record, observed, groups, now)
        case Phase.READY if not observed.asks_cluster:
            return _done(record, "every instance runs", now)
        case Phase.READY if not nodes(record, observed):
            return _done(record, "all of its instances are gone", now)
        case Phase.ROLLING_BACK if not any(member.token in observed.machines for member in record.members):
            return replace(record, phase=Phase.ROLLED_BACK, finished_at_seconds=now)
    if record.failed_at_seconds is not None and now >= record.failed_at_seconds + times.failed_listing:
        failed = [member.token for member in record.members if member.state is MemberState.FAILED]
        return record.with_members(dict.fromkeys(failed, MemberState.RELEASED)) if failed else record
    return record


def learnt(contents: Contents, observed: Observation) -> Changes:
    """Return the increments with the ids under which their machines are listed, where they lack any: the journal may
    have been out of reach since that list."""
    found = ((record, _learn(record, observed)) for record in contents.increments.values())
    return Changes(increments=tuple(after for before, after in found if after is not before))


def _learn(record: IncrementRecord, observed: Observation) -> IncrementRecord:
    """Record the ids of listed machines, and that their orders were accepted. What is rolled back is learnt, too, since
    CA may delete it once more after it is gone; a failed member keeps the id under which it is listed."""
    if not (record.phase in _WAITING or record.failing):
        return record
    listed: dict[str, Member] = {}
    for member in record.members:
        machine = observed.machines.get(member.token)
        if machine is None or (record.failing and member.state is MemberState.FAILED):
            continue
        if member.instance_id != machine.id or member.state is MemberState.PLANNED:
            state = MemberState.ORDERED if member.state is MemberState.PLANNED else member.state
            listed[member.token] = replace(member, instance_id=machine.id, state=state)
    if not listed:
        return record
    return replace(record, members=tuple(listed.get(member.token, member) for member in record.members))


def _advance_waiting(
    record: IncrementRecord, observed: Observation, groups: Mapping[str, NodeGroup], now: float
) -> IncrementRecord:
    if not record.remaining:
        return _done(record, "all of its instances were deleted", now)
    broken = _broken(record, observed, groups)
    if broken:
        error = _summary([fault for _, fault in broken])
        return failed(record, error, now, [member.node_group for member, _ in broken])
    domains = _domains(record, groups)
    late = [
        member
        for member in record.remaining
        if not observed.is_ready(member.token)
        or (member.token in domains and not observed.has_labels(member.token, domains[member.token].keys))
    ]
    if not late:
        scattered = _scattered(domains, observed)
        if not scattered:
            return replace(record, phase=Phase.READY)
        error = InstanceError("scattered", "; ".join(scattered.values()))
        return failed(record, error, now, scattered)
    if now >= record.deadline_at_seconds and not observed.deadlines_paused:
        waited = record.deadline_at_seconds - record.created_at_seconds
        error = InstanceError("deadline", f"not whole after {waited:g} s: {progress(record, observed)}")
        # While the cluster is unreachable only the backend's side counts.
        blind = observed.asks_cluster and observed.ready is None
        return failed(
            record,
            error,
            now,
            [member.node_group for member in late if not (blind and observed.is_running(member.token))],
        )
    return record


@dataclass(frozen=True, slots=True)
class _NewDomain:
    """A topology domain that nodes are to share."""

    node_group: str
    domain: str
    keys: tuple[str, ...]


def _domains(record: IncrementRecord, groups: Mapping[str, NodeGroup]) -> Mapping[str, _NewDomain]:
    """Return the new domains that members are to share with others, by token."""
    if not any(each.domain for each in record.increment.placements):
        return {}
    planned, remaining = record.planned(), {member.token for member in record.remaining}
    return {
        token: _NewDomain(of.node_group, of.domain, new.keys)
        for token, of in planned.items()
        if token in remaining and of.domain and (new := groups[of.node_group].new_domains) is not None
    }


def _scattered(domains: Mapping[str, _NewDomain], observed: Observation) -> Mapping[str, str]:
    """Return why nodes that were to come in one topology domain did not, by node group."""
    found: defaultdict[tuple[_NewDomain, str], Counter[str]] = defaultdict(Counter)
    for token, domain in domains.items():
        for key, value in observed.labels_of(token).items():
            if key in domain.keys:
                found[domain, key][value] += 1
    return {
        domain.node_group: (
            f"the nodes of {domain.node_group} had to be in one domain of {key}, but are in {_named(values)}"
        )
        for (domain, key), values in found.items()
        if len(values) > 1
    }


def _named(values: Mapping[str, int]) -> str:
    """Return domains with their nodes, for people."""
    shown = [f"{value} ({count})" for value, count in sorted(values.items())[:_MOST_VALUES]]
    return ", ".join([*shown, *([f"{len(values) - _MOST_VALUES} more"] if len(values) > _MOST_VALUES else [])])


def _done(record: IncrementRecord, message: str, now: float) -> IncrementRecord:
    return replace(record, phase=Phase.DONE, finished_at_seconds=now, message=message)


def _broken(
    record: IncrementRecord, observed: Observation, groups: Mapping[str, NodeGroup]
) -> list[tuple[Member, InstanceError]]:
    """Return members that have failed, each with its error."""
    found = ((member, _fault(member, record, observed, groups)) for member in record.remaining)
    return [(member, fault) for member, fault in found if fault is not None]


def _summary(faults: Sequence[InstanceError]) -> InstanceError:
    """Return the first, with the longest time after which to try again."""
    waits = [fault.retry_after_seconds for fault in faults if fault.retry_after_seconds is not None]
    return replace(faults[0], retry_after_seconds=max(waits, default=None))


def _fault(
    member: Member, record: IncrementRecord, observed: Observation, groups: Mapping[str, NodeGroup]
) -> InstanceError | None:
    if member.node_group not in groups:
        return InstanceError(
            "unknown-group", f"node group {member.node_group} is no longer configured", ErrorKind.CONFIGURATION
        )
    machine = observed.machines.get(member.token)
    if machine is None:
        accepted = member.state is not MemberState.PLANNED
        if not accepted or not observed.is_absent(member.token, record.ordered_at_seconds):
            return None
        name = member.instance_id or f"an instance of node group {member.node_group}"
        return InstanceError("vanished", f"{name} vanished before its increment was whole")
    if machine.error is not None:
        return replace(machine.error, message=f"{machine.id}: {machine.error.message}")
    if machine.state is InstanceState.DELETING:
        return InstanceError("vanished", f"{machine.id} is being deleted by somebody else")
    return None


def progress(record: IncrementRecord, observed: Observation) -> str:
    """Return the progress of an increment, for people."""
    remaining = record.remaining
    running = f"instances running: {sum(observed.is_running(each.token) for each in remaining)} of {len(remaining)}"
    if not observed.asks_cluster:
        return running
    if observed.ready is None:
        return f"{running}; the cluster is unreachable"
    return f"{running}; nodes ready: {sum(observed.is_ready(each.token) for each in remaining)}"


def nodes(record: IncrementRecord, observed: Observation) -> tuple[IncrementNode, ...]:
    """Return the nodes of an increment that is planned, creating or ready. A ready one can no longer fail: a node of it
    that vanished, or that CA has deleted, is left out."""
    if record.phase not in (*_WAITING, Phase.READY):
        return ()
    planned, numbers, found = record.planned(), Counter[str](), []
    for member in record.members:
        name = f"{record.id}/{member.node_group}/{numbers[member.node_group]}"
        numbers[member.node_group] += 1
        there = record.phase is not Phase.READY or observed.exists(member.token)
        if there and member.state is not MemberState.RELEASED:
            machine, of = observed.machines.get(member.token), planned[member.token]
            instance_id = machine.id if machine is not None else member.instance_id or ""
            domain = f"{record.id}/{of.domain}" if of.domain else ""
            found.append(IncrementNode(name, member.node_group, instance_id, of.pods, of.requests, domain))
    return tuple(found)


def released(record: IncrementRecord, now: float) -> IncrementRecord:
    """Return a ready increment as done; a done one as it is. Raises `FailedPrecondition` for any other."""
    if record.phase is Phase.DONE:
        return record
    if record.phase is not Phase.READY:
        raise errors.FailedPrecondition(f"increment {record.id} is {record.phase}; only a ready one can be released")
    return _done(record, "every node was ready; released", now)


def failed(record: IncrementRecord, error: InstanceError, now: float, short_groups: Iterable[str]) -> IncrementRecord:
    """Return the increment rolling back. Instances that CA asked for stay listed as failed until CA has deleted them:
    with the target restored at once, CA takes its scale-up for finished and asks the same group again. `short_groups`
    may have duplicates."""
    state = MemberState.FAILED if record.increment.origin is Origin.AUTOSCALER else MemberState.RELEASED
    return replace(
        record.with_members({member.token: state for member in record.remaining}),
        phase=Phase.ROLLING_BACK,
        message=error.message,
        error=error,
        failed_at_seconds=now,
        short_groups=tuple(dict.fromkeys(short_groups)),
    )


def refused(record: IncrementRecord, refusal: errors.CagrpcError, now: float, *, answered: bool) -> IncrementRecord:
    """Return the increment after the backend refused its order. Where the caller gets the refusal (`answered`), nothing
    stays listed; otherwise it is a failure like any later one. Machines of an earlier try whose answer was lost are
    rolled back first. Where the backend does not name the short groups, all of the increment's are."""
    if record.phase not in _WAITING:
        return record  # withdrawn, or all of it deleted, while the order was under way
    error, named = _refusal(refusal)
    deltas = record.increment.deltas
    short_groups = [group for group in deltas if group in named] or list(deltas)
    result = failed(record, error, now, short_groups)
    if answered:
        result = result.with_members({member.token: MemberState.RELEASED for member in result.members})
    if all(member.instance_id is None for member in record.members):
        result = replace(result, phase=Phase.ROLLED_BACK, finished_at_seconds=now)
    return result


def _refusal(refusal: errors.CagrpcError) -> tuple[InstanceError, Sequence[str]]:
    """Return the error of a refusal, and the node groups that it names."""
    if not isinstance(refusal, errors.OrderRefused):
        refusal = errors.OrderRefused(str(refusal))
    error = InstanceError(refusal.code, str(refusal), refusal.kind, refusal.retry_after_seconds)
    return error, refusal.node_groups


def withdrawn(record: IncrementRecord, message: str, now: float) -> IncrementRecord:
    """Return the increment withdrawn by its owner: rolling back, with nothing listed and no group short. One that is
    finished or failing stays as it is."""
    if record.phase not in (*_WAITING, Phase.READY):
        return record
    result = failed(record, InstanceError("withdrawn", message), now, ())
    result = result.with_members({member.token: MemberState.RELEASED for member in result.members})
    if record.phase is Phase.PLANNED:  # nothing of it was ordered
        return replace(result, phase=Phase.ROLLED_BACK, finished_at_seconds=now)
    return result


def to_order(record: IncrementRecord) -> tuple[str, ...]:
    """Return the tokens to order, or to order again where no answer came. Call it after `advance`."""
    if record.phase not in _WAITING:
        return ()
    return tuple(member.token for member in record.members if member.state is MemberState.PLANNED)


def must_go(contents: Contents, machine: BackendInstance) -> bool:
    """Return whether by the journal this machine has to be deleted."""
    place = contents.by_token.get(machine.token)
    if machine.id in contents.deletions or machine.token in contents.deletions:
        return True
    return place is not None and (place.record.failing or place.member.state is MemberState.RELEASED)


def expired(contents: Contents, observed: Observation, now: float, times: Times) -> Changes:
    """Return the records to forget: finished longer ago than the retention, with no instance listed."""
    before = now - times.retention
    return Changes(
        forgotten_increments=tuple(record.id for record in _finished_before(contents, before, observed)),
        forgotten_deletions=tuple(
            deletion.instance_id for deletion in contents.deletions.values() if _is_done_before(deletion, before)
        ),
    )


def _finished_before(contents: Contents, before: float, observed: Observation) -> Iterator[IncrementRecord]:
    for record in contents.increments.values():
        if record.finished_at_seconds is None or record.finished_at_seconds >= before:
            continue
        still_needed = any(
            member.state is MemberState.FAILED or (record.failing and member.token in observed.machines)
            for member in record.members
        )
        if not still_needed:
            yield record


def _is_done_before(deletion: DeletionRecord, before: float) -> bool:
    return deletion.done_at_seconds is not None and deletion.done_at_seconds < before
