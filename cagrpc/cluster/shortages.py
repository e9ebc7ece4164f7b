"""Which offerings are left out of planning for a while, since they could not be had: learnt from increments that were
rolled back, so that a restart learns the same from the journal. What is left out is said here, nothing is planned.

An offering is an instance type in a zone at a capacity type, whatever node groups it has; where a group does not tell
these, the group is its own offering.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.fleet.model import FleetSnapshot, IncrementStatus, Phase
from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.clock import EpochClock
from solver.model import Labels, NodeGroup, PodSpec, PossibleGroups, Resources, Taint
from solver.model.allocation import why_not_allocated
from solver.model.eligibility import why_not_eligible
from solver.model.quantities import some_of

MOST_TIMES = 6
"""Times the base is the longest that an offering is left out; so long after its end a shortage is forgotten too."""

_MOST_NAMED = 3

_FAILED = (Phase.ROLLING_BACK, Phase.ROLLED_BACK)
_SUCCEEDED = (Phase.READY, Phase.DONE)


@dataclass(frozen=True, slots=True)
class Shortage:
    """An offering that its cloud was short of. Times are seconds since the epoch."""

    offering: str
    failures: int
    """How many failures there were in a row."""
    since_seconds: float
    """The time of the latest failure."""
    until_seconds: float
    cause: str
    """What the latest increment that failed said."""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Shortage:
        """Return a shortage of `/plans`; earlier servers do not say since when."""
        return cls(**{"since_seconds": 0.0, "failures": 1, **found})


def offering(group: NodeGroup) -> str:
    """Return the offering of a group, for people and as a key."""
    if group.instance_type and group.zone:
        return "/".join(part for part in (group.instance_type, group.zone, group.capacity_type) if part)
    return f"node group {group.id}"


def could_hold(group: NodeGroup, spec: PodSpec) -> bool:
    """Return whether a new node of the group would have room, and the devices, for such a pod."""
    if why_not_allocated(group.devices, spec.claims) is not None:
        return False
    return would_take(spec, group.labels, group.taints, group.allocatable)


def would_take(spec: PodSpec, labels: Labels, taints: Sequence[Taint], allocatable: Resources, name: str = "") -> bool:
    """Return whether such a node, if it were empty, would take the pod; devices apart."""
    fits = all(allocatable.get(resource, 0) >= amount for resource, amount in spec.requests)
    return fits and why_not_eligible(spec, labels, taints, name) is None


def after_shortages(shortages: Iterable[Shortage], groups: Sequence[NodeGroup]) -> tuple[PossibleGroups, ...]:
    """Return the node groups of these offerings, which are there once the shortages are over."""
    found = ((each, tuple(group for group in groups if offering(group) == each.offering)) for each in shortages)
    return tuple(
        PossibleGroups(
            each.offering,
            f"backed off after a shortage until {until(each)}{_cause(each)}",
            f"wait until {until(each)}, when {each.offering} is tried again",
            mine,
        )
        for each, mine in sorted(found, key=lambda of: (of[0].until_seconds, of[0].offering))
        if mine
    )


def backed_off(shortages: Iterable[Shortage]) -> str:
    """Return the offerings that are left out, with until when and what was said of them, in a sentence; those that come
    back first are named first."""
    found = sorted(set(shortages), key=lambda each: (each.until_seconds, each.offering))
    names = [f"{each.offering} until {until(each)}{_cause(each)}" for each in found]
    return f"backed off after a shortage: {some_of(names, _MOST_NAMED)}"


def until(shortage: Shortage) -> str:
    """Return the end of a shortage, as Kubernetes writes times; a second that has begun counts whole."""
    return timestamp(math.ceil(shortage.until_seconds))


def _cause(shortage: Shortage) -> str:
    return f" ({shortage.cause})" if shortage.cause else ""


def worsened(before: Shortage | None, name: str, at: float, asked_at: float, cause: str, base: float) -> Shortage:
    """Return the shortage after a failure. One more failure in a row doubles the time, unless it was asked for before
    the last one was known: then it says nothing new."""
    if before is not None and _forgotten(before, at, base):
        before = None
    if before is not None and asked_at <= before.since_seconds:
        failures = before.failures
    else:
        failures = 1 if before is None else before.failures + 1
    length = BackOff(base, MOST_TIMES * base).seconds(failures)
    since = at if before is None else max(at, before.since_seconds)
    return Shortage(name, failures, since, since + length, cause)


def _forgotten(shortage: Shortage, now: float, base: float) -> bool:
    return now >= shortage.until_seconds + MOST_TIMES * base


def _ended_at(status: IncrementStatus, now: float) -> float:
    return now if status.finished_at_seconds is None else status.finished_at_seconds


class Shortages:
    """Remembers which offerings are short, and for how long. Thread-safe."""

    def __init__(self, base_seconds: float, clock: EpochClock) -> None:
        """`clock` is the fleet's."""
        self._base = base_seconds
        self._clock = clock
        self._known: dict[str, Shortage] = {}
        self._counted: frozenset[str] = frozenset()
        self._version = 0
        """The version of the snapshot that was learnt from last."""
        self._lock = RLock()

    def learn(self, snapshot: FleetSnapshot) -> None:
        """Counts each increment that ended since the last call, once. After a restart that is all that the journal
        tells of, each at its time."""
        with self._lock:
            if snapshot.version >= self._version:  # else another thread knows more
                self._version = snapshot.version
                self._learn(snapshot)

    def _learn(self, snapshot: FleetSnapshot) -> None:
        now = self._clock()
        ended = [status for status in snapshot.increments if status.phase in (*_FAILED, *_SUCCEEDED)]
        new = [(_ended_at(status, now), status) for status in ended if status.id not in self._counted]
        for at, status in sorted(new, key=lambda each: each[0]):
            groups = [snapshot.groups[name].group for name in status.increment.deltas if name in snapshot.groups]
            if status.phase in _SUCCEEDED:
                self._forget(groups, status)
            else:
                short = [group for group in groups if group.id in status.short_groups]
                least = status.retry_after_seconds or 0.0
                self.note(short, status.message, at=at, asked_at=status.created_at_seconds, at_least_seconds=least)
        self._counted = frozenset(status.id for status in ended)
        self._known = {name: each for name, each in self._known.items() if not _forgotten(each, now, self._base)}

    def note(
        self, groups: Iterable[NodeGroup], cause: str, *, at: float, asked_at: float, at_least_seconds: float = 0.0
    ) -> None:
        """Note one failure of the groups' offerings, which were asked for at `asked_at`. The backend goes on refusing
        them for `at_least_seconds`."""
        with self._lock:
            for name in dict.fromkeys(map(offering, groups)):
                after = worsened(self._known.get(name), name, at, asked_at, cause, self._base)
                until = max(after.until_seconds, at + at_least_seconds)
                self._known = {**self._known, name: replace(after, until_seconds=until)}

    def active(self) -> tuple[Shortage, ...]:
        """Return what is left out now."""
        now = self._clock()
        return tuple(each for each in self._known.values() if now < each.until_seconds)

    def _forget(self, groups: Iterable[NodeGroup], status: IncrementStatus) -> None:
        """Forget the shortages that are over, as what was asked for after the failure and came shows."""
        names = {offering(group) for group in groups}
        self._known = {
            name: each
            for name, each in self._known.items()
            if name not in names or status.created_at_seconds < each.since_seconds
        }
