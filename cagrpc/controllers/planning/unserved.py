"""What a round did not place: why, and what would serve it; and what limits cost the round. Explained while no round is
due, then reported on the pods and in `/plans`.
Planning is `controller`'s, the texts are `reasons`'s."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from cagrpc.controllers.events import Note
from cagrpc.controllers.planning import reasons
from cagrpc.controllers.planning.increments import AssignedPods
from cagrpc.controllers.planning.records import LeftOut, Rounds
from solver import explain
from solver.explanation.choices import reached, without
from solver.explanation.model import WhyLimited
from solver.model import Budget, Plan, Problem
from solver.model.errors import NotCompiledError

EXPLAIN_SECONDS = 2.0
"""The most that explaining one round may take."""


@dataclass(frozen=True, slots=True)
class _Round:
    record_id: str
    problem: Problem
    plan: Plan
    assigned: AssignedPods
    unplaced: dict[int, LeftOut]
    limited: WhyLimited | None = None


class Unserved:
    """What the latest round left out, and what limited it, until that is reported. For one thread."""

    def __init__(self, rounds: Rounds, budget: Budget, record: Callable[[Iterable[Note], str], None]) -> None:
        """`record` writes Events about a round of this id. `budget` is that of a round; explaining takes no longer."""
        self._rounds = rounds
        self._budget = replace(budget, seconds=min(EXPLAIN_SECONDS, budget.seconds))
        self._record = record
        self._round: _Round | None = None
        self._explained: tuple[dict[int, LeftOut], dict[int, LeftOut]] = ({}, {})
        """The unplaced pods that were explained last, without and with their explanations."""

    def found(
        self, record_id: str, problem: Problem, plan: Plan, assigned: AssignedPods, unplaced: dict[int, LeftOut]
    ) -> None:
        """Remember what a round did not place."""
        self._round = _Round(record_id, problem, plan, assigned, unplaced)

    def explain(self) -> None:
        """Explain what would serve the latest round's unplaced pods, and report it; later where that takes kernels that
        are still being compiled."""
        with suppress(NotCompiledError):
            self._explain()

    def _explain(self) -> None:
        waiting = self._round
        if waiting is None:
            return
        known, found = self._explained
        if waiting.unplaced and known != waiting.unplaced:
            found = reasons.explained(waiting.unplaced, explain(waiting.problem, waiting.plan, self._budget))
            self._explained = (waiting.unplaced, found)
        changes = reached(waiting.problem, waiting.plan)
        limited = without(waiting.problem, waiting.plan, changes, self._budget) if changes else None
        self._round = replace(waiting, unplaced=found if waiting.unplaced else {}, limited=limited)
        self.report()

    def report(self) -> None:
        """Report the latest round's unplaced pods with what is known by now."""
        known, self._round = self._round, None
        if known is not None:
            self._rounds.explain(known.record_id, tuple(known.unplaced.values()), known.limited)
            self._record(reasons.not_planned(known.unplaced, known.assigned), known.record_id)
