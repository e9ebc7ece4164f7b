"""Events on pods: why they are not served, or what serves them, from the plan, from what was left out after a shortage,
and, where there is time, from the explanations. Pure; `controllers.events` writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import zip_longest

from cagrpc import errors
from cagrpc.cluster.shortages import Shortage, could_hold, offering
from cagrpc.cluster.shortages import left_out as describe
from cagrpc.cluster.state import IncompleteGang, PodRef
from cagrpc.controllers.events import Note, pod_object
from cagrpc.controllers.planning.increments import AssignedPods, format_deltas
from cagrpc.controllers.planning.problem import Question
from cagrpc.controllers.planning.records import LeftOut
from cagrpc.fleet.model import IncrementSpec, IncrementStatus
from solver.explanation.kinds import advice
from solver.explanation.model import Explanation
from solver.model import NodeGroup, Plan, PodClass

CONTROLLER, ACTION = "cagrpc.io/planner", "Planning"
"""`reportingController` and `action` of the planner's Events,"""
PLANNED, NOT_PLANNED = "Planned", "NotPlanned"
"""and their reasons."""

_MOST_WAYS = 2


def still_waits(pod_of: Callable[[str], PodRef | None]) -> Callable[[Note], bool]:
    """Return the predicate whether a note is still worth writing: its pod is pending. `pod_of` returns such a pod by
    UID."""
    return lambda note: pod_of(note.about.uid) is not None


def _planned(pod: PodRef, text: str, increment: str = "", plan: str = "") -> Note:
    return Note(pod_object(pod), PLANNED, text, increment=increment, plan=plan)


def _not_planned(pod: PodRef, text: str) -> Note:
    return Note(pod_object(pod), NOT_PLANNED, text, warning=True)


def left_out(
    plan: Plan, asked: Question, shortages: Sequence[Shortage], *, placeholders: bool = False
) -> dict[int, LeftOut]:
    """Return the pods that the plan does not place, by class; with `placeholders` those of the slack instead."""
    classes = {each.index: each for each in plan.pod_classes}
    found = {}
    for each in plan.unplaced:
        cls = classes[each.pod_class]
        if cls.placeholder is placeholders:
            short = _short_for(cls, asked.short, shortages)
            found[cls.index] = LeftOut(
                cls.example, each.count, (*short, *_elsewhere(each.reasons, short)), gang=cls.gang
            )
    return found


def _elsewhere(reasons: Iterable[str], short: tuple[str, ...]) -> Iterator[str]:
    """Yield the reasons of a plan; beside offerings that are left out, they are only about what else there is."""
    return (f"elsewhere: {reason}" if short else reason for reason in reasons)


def _short_for(cls: PodClass, groups: Iterable[NodeGroup], shortages: Iterable[Shortage]) -> tuple[str, ...]:
    """Return the offerings left out that the pods could run on, in a sentence: the first reason, as nothing was tried
    there."""
    names = {offering(group) for group in groups if could_hold(group, cls.spec)}
    mine = [each for each in shortages if each.offering in names]
    return (describe(mine),) if mine else ()


def explained(unplaced: Mapping[int, LeftOut], explanation: Explanation) -> dict[int, LeftOut]:
    """Return these with the smallest changes that would serve them."""
    result = dict(unplaced)
    for each in explanation.unserved:
        ways = tuple(", and ".join(map(advice, way.changes)) for way in each.ways[:_MOST_WAYS])
        for index in each.pod_classes:
            if index in result:
                result[index] = replace(result[index], ways=ways)
    return result


def not_planned(unplaced: Mapping[int, LeftOut], assigned: AssignedPods) -> Iterator[Note]:
    """Yield notes on unplaced pods, one of every class first: each class has one even where the queue drops some."""
    rows = []
    for index, each in unplaced.items():
        text = "; ".join(each.reasons) or "no room was found in the time for planning"
        if each.ways:
            text = f"{text}. What would serve it: {'; or '.join(each.ways)}"
        rows.append([_not_planned(pod, text) for pod in assigned.unplaced.get(index, ())])
    yield from _in_turn(rows)


def waiting_for_gangs(gangs: Iterable[IncompleteGang]) -> Iterator[Note]:
    """Yield notes on pods of incomplete gangs, one of every gang first."""
    rows = []
    for each in gangs:
        text = f"gang {each.name} has {each.there} of {each.needed} pods"
        rows.append([_not_planned(pod, text) for pod in each.pods])
    return _in_turn(rows)


def _in_turn(rows: Iterable[Sequence[Note]]) -> Iterator[Note]:
    for row in zip_longest(*rows):
        yield from (note for note in row if note is not None)


def has_room(assigned: AssignedPods, coming: AbstractSet[str]) -> Iterator[Note]:
    """Yield notes on pods that need no new node."""
    for node, pods in assigned.existing.items():
        where = "a node that is coming" if node in coming else "a node that stands, for the scheduler to find"
        yield from (_planned(pod, f"there is room on {where}") for pod in pods)


def planned(status: IncrementStatus, pods: Iterable[PodRef]) -> Iterator[Note]:
    """Yield notes on pods of an increment that was ordered."""
    text = f"increment {status.id}: {format_deltas(status.increment.deltas)}"
    return (_planned(pod, text, status.id, status.increment.plan) for pod in pods)


def refused(asked: IncrementSpec, error: errors.CagrpcError, pods: Iterable[PodRef]) -> Iterator[Note]:
    """Yield notes on pods of an increment that the fleet refused."""
    text = f"{format_deltas(asked.deltas)} was refused: {error}"
    return (_not_planned(pod, text) for pod in pods)
