"""Keeping node groups at their minimum size: which increments the fleet makes on its own, and when to try again.

Pure: derived from the journal's records, so that the back-off after failures survives a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cagrpc.fleet.model import LARGEST_INCREMENT, IncrementSpec, Origin
from cagrpc.fleet.records import Contents
from solver.model import NodeGroup

REASON = "minimum size"
_FIRST_BACK_OFF_SECONDS = 60.0
_LONGEST_BACK_OFF_SECONDS = 1800.0


def missing(
    groups: Mapping[str, NodeGroup], targets: Mapping[str, int], contents: Contents, now: float
) -> Iterator[IncrementSpec]:
    """One increment for each group below its minimum, unless the last attempts for it failed too recently: a minute
    after one failure, twice as long after each further one, at most half an hour. What is more than one increment may
    have is the next step's."""
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
    failures = 0
    for record in reversed(attempts):
        if not record.failing:
            break
        failures += 1
    if not failures:
        return float("-inf")
    failed_at = attempts[-1].failed_at_seconds or 0.0
    return failed_at + min(_FIRST_BACK_OFF_SECONDS * 2.0 ** (failures - 1), _LONGEST_BACK_OFF_SECONDS)
