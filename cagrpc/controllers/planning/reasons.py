"""Why pods are not served, or what serves them, in Events on the pods and in `/plans`: from the plan and, where there
is time, from its explanation (`solver.explanation.waiting`). `controllers.events` writes the former, planning is
`controller`'s."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest

from cagrpc import errors
from cagrpc.api.core.gangs import incomplete
from cagrpc.cluster.drop_invalid import faults
from cagrpc.cluster.state import IncompleteGang, PodRef
from cagrpc.controllers.events import Note, pod_object
from cagrpc.controllers.planning.increments import AssignedPods, format_deltas
from cagrpc.controllers.planning.problem import Question
from cagrpc.controllers.planning.records import Rounds
from cagrpc.errors import in_one_line
from cagrpc.fleet.model import IncrementSpec, IncrementStatus
from cagrpc.fleet.provisioners import Widen
from solver import explain
from solver.explanation.choices import reached, without
from solver.explanation.model import WhyLimited, WhyWaiting, sentence
from solver.explanation.waiting import with_ways
from solver.model import Budget, Plan, PodSet, Problem
from solver.model.budget import Interruption
from solver.model.errors import NotCompiledError
from solver.model.plan import class_key

CONTROLLER, ACTION = "cagrpc.io/planner", "Planning"
"""`reportingController` and `action` of the planner's Events."""
PLANNED, NOT_PLANNED = "Planned", "NotPlanned"
"""Reasons of these Events."""

EXPLAIN_SECONDS = 2.0
"""The most that explaining one round may take."""
_ASK_SECONDS = 0.05
"""How often an explanation checks whether there is news, for which it stops."""


def _planned(pod: PodRef, text: str, increment: str = "", plan: str = "") -> Note:
    return Note(pod_object(pod), PLANNED, text, increment=increment, plan=plan)


def _not_planned(pod: PodRef, text: str) -> Note:
    return Note(pod_object(pod), NOT_PLANNED, text)


def invalid(dropped: Iterable[PodSet], asked: Question) -> tuple[dict[int, WhyWaiting], dict[int, tuple[PodRef, ...]]]:
    """Return pods that were planned without, as no problem may have them, and who they are: as if by class, under
    numbers that no class has."""
    found, pods = {}, {}
    for number, each in enumerate(each for each in dropped if not each.placeholder):
        why = f"it cannot be planned: {in_one_line(faults(Problem((each,))))}"
        ways = ("a pod that planning can read",)
        found[-1 - number] = WhyWaiting(each.name, each.count, (why,), ways, each.gang)
        pods[-1 - number] = asked.pods.get(class_key(each), ())
    return found, pods


def not_planned(unplaced: Mapping[int, WhyWaiting], assigned: AssignedPods) -> Iterator[Note]:
    """Yield notes on unplaced pods, one of every class first: each class has one even where the queue drops some."""
    rows = []
    for index, each in unplaced.items():
        rows.append([_not_planned(pod, str(each)) for pod in assigned.unplaced.get(index, ())])
    yield from _in_turn(rows)


def waiting_for_gangs(gangs: Iterable[IncompleteGang]) -> Iterator[Note]:
    """Yield notes on pods of incomplete gangs, one of every gang first."""
    rows = []
    for each in gangs:
        text = sentence(incomplete(each.name, each.there, each.needed), ["the rest of the gang"])
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


class _AtNews(Interruption):
    """Interrupts explaining once there is something new to plan."""

    def __init__(self, is_news: Callable[[], bool]) -> None:
        super().__init__()
        self._is_news, self._next = is_news, 0.0

    @property
    def happened(self) -> bool:
        if not super().happened and time.monotonic() >= self._next:
            self._next = time.monotonic() + _ASK_SECONDS
            if self._is_news():
                self.interrupt()
        return super().happened


@dataclass(frozen=True, slots=True)
class _Round:
    record_id: str
    problem: Problem
    plan: Plan
    assigned: AssignedPods
    unplaced: dict[int, WhyWaiting]
    limited: WhyLimited | None = None


class Unserved:
    """What the latest round left out, and what limited it, until that is reported. For one thread."""

    def __init__(
        self, rounds: Rounds, budget: Budget, widen: Widen, record: Callable[[Iterable[Note], str], None]
    ) -> None:
        """`record` writes Events about a round of this id. `budget` is that of a round; explaining takes no longer.
        `widen` adds node groups that could be there."""
        self._rounds = rounds
        self._budget = replace(budget, seconds=min(EXPLAIN_SECONDS, budget.seconds))
        self._widen = widen
        self._record = record
        self._round: _Round | None = None
        self._explained: tuple[dict[int, WhyWaiting], dict[int, WhyWaiting]] = ({}, {})
        """The unplaced pods that were explained last, without and with their explanations."""

    def found(
        self, record_id: str, problem: Problem, plan: Plan, assigned: AssignedPods, unplaced: dict[int, WhyWaiting]
    ) -> None:
        """Remember what a round did not place."""
        self._round = _Round(record_id, problem, plan, assigned, unplaced)

    def explain(self, is_news: Callable[[], bool]) -> None:
        """Explain what would serve the latest round's unplaced pods, and report it; later where that takes kernels that
        are still being compiled, and not to its end where news come for the next round."""
        with suppress(NotCompiledError):
            self._explain(_AtNews(is_news))

    def _explain(self, at_news: Interruption) -> None:
        waiting = self._round
        if waiting is None:
            return
        budget = replace(self._budget, interruption=at_news)
        known, found = self._explained
        if waiting.unplaced and known != waiting.unplaced:
            problem = self._widen(waiting.problem, waiting.plan)
            found = with_ways(waiting.unplaced, explain(problem, waiting.plan, budget).unserved)
            if at_news.happened:
                return
            self._explained = (waiting.unplaced, found)
        changes = reached(waiting.problem, waiting.plan)
        limited = without(waiting.problem, waiting.plan, changes, budget) if changes else None
        if at_news.happened:
            return
        self._round = replace(waiting, unplaced=found if waiting.unplaced else {}, limited=limited)
        self.report()

    def report(self) -> None:
        """Report the latest round's unplaced pods with what is known by now."""
        known, self._round = self._round, None
        if known is not None:
            self._rounds.explain(known.record_id, tuple(known.unplaced.values()), known.limited)
            self._record(not_planned(known.unplaced, known.assigned), known.record_id)
