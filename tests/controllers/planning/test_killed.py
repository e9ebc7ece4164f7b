"""The process is killed just before, or just after, each commit, order, deletion, nomination and release of a planned
increment, and restarted: it reaches the same end state as one that was not killed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.fleet.journal import SqliteJournal
from tests.support.controllers.planner import BOOT_SECONDS, PlannerHarness
from tests.support.fleet import group
from tests.support.kills import Killed, SteppedJournal, Steps

LONG = 3 * BOOT_SECONDS


class MortalHarness(PlannerHarness):
    """With a journal in a file, and a step before and after whatever the process changes outside of itself."""

    def __init__(self, fatal: int) -> None:
        self.step_at = Steps()
        super().__init__([group("only", cpu=4000)])
        self.step_at.names.clear()  # the first start
        self.step_at.fatal = fatal

    def _start(self) -> None:
        self.file = SqliteJournal(Path(self.directory.name) / "journal.sqlite")
        assert self.file._connection is not None
        self.file._connection.execute("PRAGMA synchronous = OFF")
        self.journal = SteppedJournal(self.file, self.step_at)
        for call in (type(self.backend).order, type(self.backend).delete):
            vars(self.backend)[call.__name__] = self.step_at.around(call.__name__, call.__get__(self.backend))
        super()._start()

    def cluster_api(self) -> Any:
        api = super().cluster_api()
        nominate, release = (self.step_at.around(what, api.patch) for what in ("nominate", "release"))
        api.patch = lambda path, *more, **options: (nominate if "/pods/" in path else release)(path, *more, **options)
        return api

    def restart(self) -> None:
        self.file.close()
        self.step_at = Steps()
        self._start()

    def run_or_die(self, seconds: float) -> None:
        try:
            self.run(seconds)
        except Killed:
            self.restart()
            self.run(seconds)

    def ordered(self) -> int:
        """How many instances were ever ordered, whatever became of them."""
        with closing(sqlite3.connect(Path(self.directory.name) / "simulated.sqlite")) as connection:
            (last,) = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'instances'").fetchone()
        return int(last)

    def close(self) -> None:
        self.file.close()
        super().close()


def to_done(harness: MortalHarness) -> None:
    harness.add(4, cpu=1500)
    harness.run_or_die(LONG)


def a_gang_to_done(harness: MortalHarness) -> None:
    harness.add(4, cpu=1500, gang="gang")
    harness.run_or_die(LONG)


def to_rolled_back(harness: MortalHarness) -> None:
    harness.backend.set_behaviour("*", Behaviour(boot_seconds=BOOT_SECONDS, late_shortage=1))
    harness.add(4, cpu=1500, gang="gang")
    harness.run_or_die(LONG)
    harness.cluster.pods.clear()
    harness.run_or_die(LONG)


Story = Callable[[MortalHarness], None]


def end_of(story: Story, fatal: int = 0) -> tuple[dict[str, object], list[str]]:
    """What there is in the end, and the steps up to it or to the kill."""
    harness = MortalHarness(fatal)
    names = harness.step_at.names
    try:
        story(harness)
        end: dict[str, object] = {
            "phases": {each.phase.value for each in harness.increments()},
            "ordered": harness.ordered(),
            "instances": len(harness.backend.list_instances().instances),
            "held": harness.cluster.held_nodes(),
            "pending": harness.pending(),
            "targets": harness.targets(),
        }
    finally:
        harness.close()
    return end, names


@pytest.mark.parametrize(
    ("story", "end"),
    [
        (to_done, {"phases": {"done"}, "ordered": 2, "instances": 2}),
        (a_gang_to_done, {"phases": {"done"}, "ordered": 2, "instances": 2}),
        (to_rolled_back, {"phases": {"rolled-back"}, "instances": 0}),
    ],
)
def test_killed_at_any_step_it_comes_to_the_same_end(story: Story, end: dict[str, object]) -> None:
    expected, steps = end_of(story)
    assert end.items() <= expected.items()
    for fatal, name in enumerate(steps, start=1):
        found, until = end_of(story, fatal)
        assert until == steps[:fatal]
        assert found == expected, name
