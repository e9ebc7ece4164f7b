"""The node groups of a fleet: the configured ones, validated; retired ones, which are no longer configured, for as long
as they have instances; and which increments the fleet makes on its own to keep groups at their minimum size. Pure:
retired groups and the back-off after failures are known from the journal, so both survive a restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import takewhile

from cagrpc import errors
from cagrpc.errors import shown
from cagrpc.fleet.model import LARGEST_INCREMENT, IncrementSpec, Origin
from cagrpc.fleet.records import Changes, Contents, GroupRecord
from cagrpc.runtime.back_off import BackOff
from solver.model import Limit, NodeGroup

NODE_PROVISION_SECONDS = 900.0
"""CA's default node provision and start-up times, after which CA itself would give up on an increment."""

REASON = "minimum size"
_BACK_OFF = BackOff(60.0, 1800.0)


@dataclass(frozen=True, slots=True)
class Served:
    """The groups of a fleet. `groups` are the configured ones, then the retired ones: as they were, with maximum 0."""

    configured: Mapping[str, NodeGroup]
    groups: Mapping[str, NodeGroup]
    limits: Sequence[Limit]
    """Including the retired groups that they bounded when those were configured."""

    @property
    def retired(self) -> AbstractSet[str]:
        return self.groups.keys() - self.configured.keys()


def served(configured: Mapping[str, NodeGroup], limits: Sequence[Limit], known: Mapping[str, GroupRecord]) -> Served:
    """Return the groups to serve. `known` are all groups in the journal."""
    retired = {key: record for key, record in known.items() if key not in configured}
    return Served(
        configured=configured,
        groups={**configured, **{key: replace(r.group, min_size=0, max_size=0) for key, r in retired.items()}},
        limits=tuple(
            limit
            if limit.node_groups is None
            else replace(
                limit, node_groups=limit.node_groups | {key for key, r in retired.items() if limit.name in r.limits}
            )
            for limit in limits
        ),
    )


def to_journal(groups: Sequence[NodeGroup], limits: Sequence[Limit], known: Mapping[str, GroupRecord]) -> Changes:
    """Return the definitions that the journal lacks."""
    by_id = [(limit.name, limit.node_groups) for limit in limits if limit.node_groups is not None]
    records = [
        GroupRecord(group, tuple(name for name, node_groups in by_id if group.id in node_groups)) for group in groups
    ]
    return Changes(groups=tuple(record for record in records if known.get(record.group.id) != record))


def check(groups: Sequence[NodeGroup], deadline_seconds: float, failed_listing_seconds: float) -> None:
    """Raise `InvalidConfiguration` with every invalid group or time."""
    problems = []
    seen: set[str] = set()
    for group in groups:
        if group.id in seen:
            problems.append(f"node group {shown(group.id)}: defined twice; ids must be unique")
        seen.add(group.id)
        if not group.id:
            problems.append("a node group has an empty id")
        if not 0 <= group.min_size <= group.max_size:
            problems.append(
                f"node group {group.id}: min size {group.min_size} and max size {group.max_size};"
                " 0 <= min <= max must hold"
            )
    if not 0 < deadline_seconds < NODE_PROVISION_SECONDS:
        problems.append(
            f"increment deadline: {deadline_seconds:g} s; it must be above 0 and below {NODE_PROVISION_SECONDS:g} s,"
            " after which the cluster-autoscaler gives nodes up by itself"
        )
    if failed_listing_seconds < 0:
        problems.append(f"failed listing time: {failed_listing_seconds:g} s; it must not be negative")
    if problems:
        raise errors.InvalidConfiguration(problems)


def below_minimum(
    groups: Mapping[str, NodeGroup], targets: Mapping[str, int], contents: Contents, now: float
) -> Iterator[IncrementSpec]:
    """Yield one increment for each group below its minimum, unless the last attempts for it failed too recently: a
    minute after one failure, twice as long after each further one, at most half an hour. What is more than one
    increment may have is the next step's."""
    for group in groups.values():
        short = min(group.min_size, group.max_size) - targets.get(group.id, 0)
        if short > 0 and now >= _not_before(group.id, contents):
            yield IncrementSpec(deltas={group.id: min(short, LARGEST_INCREMENT)}, origin=Origin.CAGRPC, reason=REASON)


def _not_before(group_id: str, contents: Contents) -> float:
    attempts = [
        record
        for record in contents.increments.values()
        if record.increment.reason == REASON and group_id in record.increment.deltas
    ]
    failed = [*takewhile(lambda record: record.failing, reversed(attempts))]
    return (failed[0].failed_at_seconds or 0.0) + _BACK_OFF.seconds(len(failed)) if failed else float("-inf")
