"""Who judges a campaign: from the cloud's own books and from what callers were answered, never from what the fleet has
in memory. At quiet points, with nothing wrong any more and nothing under way, it names whatever must not be."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from bench.faults.callers import Answer, Ask, Callers
from bench.faults.cloud import BookedInstance
from cagrpc.fleet.model import FleetSnapshot, InstanceState, Phase

KEPT = "kept"
"""The node group with a minimum size, which the fleet orders by itself. Nobody else asks for it."""
KEPT_NODES = 2


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known at a quiet point."""

    books: Mapping[str, BookedInstance]
    """By token."""
    refused: AbstractSet[str]
    """Increments of which the cloud has refused an order."""
    callers: Callers
    deadline_seconds: float
    deleted_before_restore: AbstractSet[str]
    """Tokens of instances that were asked to go before the journal was restored last."""
    snapshot: FleetSnapshot
    """What everybody is answered with."""


def violations(found: Evidence) -> list[str]:
    """Return what must not be."""
    return [*_judged_by_instances(found), *_judged_by_asks(found), *_judged_by_groups(found)]


def _by_increment(books: Mapping[str, BookedInstance]) -> dict[str, list[BookedInstance]]:
    result: dict[str, list[BookedInstance]] = defaultdict(list)
    for each in books.values():
        result[each.increment_id].append(each)
    return result


def _judged_by_instances(found: Evidence) -> Iterator[str]:
    """Every order was whole, was asked for, and was carried out once."""
    asks = {ask.id: ask for ask in found.callers.asks if ask.id}
    unclear = [ask for ask in found.callers.asks if ask.answer is Answer.UNCLEAR and not ask.id]
    for increment_id, instances in _by_increment(found.books).items():
        for each in instances:
            if each.made != 1:
                yield f"instance {each.id} with the token {each.token} was made {each.made} times"
        counts = Counter(each.node_group for each in instances)
        ask = asks.get(increment_id)
        if ask is None and counts.keys() == {KEPT}:
            continue
        if ask is None:
            ask = next((each for each in unclear if Counter(each.deltas) == counts), None)
            if ask is None:
                yield f"increment {increment_id} with {dict(counts)} was never asked for"
                continue
            unclear.remove(ask)
            if not ask.lost and not found.deleted_before_restore and any(each.stands for each in instances):
                yield f"increment {increment_id} of {ask.reason} stands, and nobody was ever told of it"
        if counts != Counter(ask.deltas):
            yield f"{ask.reason} for {dict(ask.deltas)} was made in part: {dict(counts)}"
        if ask.answer is Answer.NOTHING:
            yield f"{ask.reason} was answered with an error that changes nothing, and was ordered"


def _judged_by_asks(found: Evidence) -> Iterator[str]:
    """Every increment is whole or gone, for a reason; nothing that was promised is lost, nothing served twice."""
    instances = _by_increment(found.books)
    for demand in found.callers.demands:
        done = [ask for ask in demand.asks if ask.phase is Phase.DONE and not ask.restored]
        if len(done) > 1:
            yield f"{demand.name} was served by {len(done)} increments"
        for ask in demand.asks:
            yield from _judged(ask, instances.get(ask.id, []) if ask.id else [], found)


def _judged(ask: Ask, of_it: Sequence[BookedInstance], found: Evidence) -> Iterator[str]:
    asked = found.callers.deletes
    if kept := [each.id for each in of_it if (asked.get(each.id) or asked.get(each.token)) and each.stands]:
        yield f"{kept} of {ask.reason} were deleted by a caller, who was answered with OK, and stand"
    unasked = {each.id for each in of_it if each.deleted and not asked.keys() & {each.id, each.token}}
    standing = [each.id for each in of_it if each.stands]
    if ask.lost:
        unasked -= {each.id for each in of_it if each.token in found.deleted_before_restore}
        if unasked:
            yield f"{ask.reason} is not in the restored journal, and {sorted(unasked)} were deleted all the same"
    elif ask.phase is Phase.DONE:
        if unasked or not of_it:
            yield f"{ask.reason} is done, and of {len(of_it)} instances {sorted(unasked)} were deleted unasked"
    elif ask.phase is Phase.ROLLED_BACK:
        if standing or not _has_reason(ask, of_it, found):
            yield f"{ask.reason} was rolled back, {'for a reason' if standing else 'for none'}, and {standing} stand"
    elif ask.id or ask.answer is Answer.TAKEN:
        yield f"{ask.reason} does not end: {ask.phase}"


def _has_reason(ask: Ask, of_it: Sequence[BookedInstance], found: Evidence) -> bool:
    failed_at = ask.failed_at_seconds
    return (
        ask.withdrawn
        or ask.restored
        or ask.answer in (Answer.SHORT, Answer.UNCLEAR)
        or ask.id in found.refused
        or any(each.fails or each.vanished for each in of_it)
        or (failed_at is not None and failed_at >= ask.asked_at_seconds + found.deadline_seconds / 2)
    )


def _judged_by_groups(found: Evidence) -> Iterator[str]:
    """Targets are instances, nothing is on its way, and minimum sizes are kept."""
    snapshot = found.snapshot
    standing: dict[str, set[str]] = defaultdict(set)
    for each in found.books.values():
        if each.stands:
            standing[each.node_group].add(each.id)
    for key, state in snapshot.groups.items():
        there = standing[key]
        if {each.id for each in state.instances} != there or state.target_size != len(there):
            shown = sorted(each.id for each in state.instances)
            yield f"node group {key} has a target of {state.target_size} and shows {shown}; there are {sorted(there)}"
    if len(standing[KEPT]) < KEPT_NODES:
        yield f"node group {KEPT} has {len(standing[KEPT])} nodes, and a minimum of {KEPT_NODES}"
    instances = [each for state in snapshot.groups.values() for each in state.instances]
    unsettled = {
        "not running": [i.id for i in instances if i.state is not InstanceState.RUNNING or i.error is not None],
        "in flight": [each.id for each in snapshot.increments if each.phase.in_flight],
        "held": sorted(snapshot.held_instances),
        "orphans": [each.id for each in snapshot.orphans],
    }
    yield from (f"for ever {what}: {which}" for what, which in unsettled.items() if which)
