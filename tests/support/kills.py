"""A process that is killed at one of its steps, played in this process: at the step and ever after `Killed` is raised,
and whoever plays it drops all its objects and opens new ones over the same files. Real processes die in
tests/fleet/test_crash.py, tests/cli/test_serve.py and tests/controlplane.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from cagrpc.fleet.journal import Journal
from cagrpc.fleet.records import Changes, Contents


class Killed(BaseException):
    """The process ends here. Not an `Exception`, so that nothing recovers from it."""


class Steps:
    """Counts the steps, keeps their names, and ends the process at the one with the number `fatal` (0: never)."""

    def __init__(self, fatal: int = 0) -> None:
        self.fatal = fatal
        self.names: list[str] = []
        self.dead = False

    def __call__(self, name: str) -> None:
        if self.dead:  # what `finally` would still do
            raise Killed
        self.names.append(name)
        if len(self.names) == self.fatal:
            self.dead = True
            self.end()

    def end(self) -> None:
        raise Killed

    def around(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call with a step before it and one after it."""

        def stepped(*arguments: Any, **more: Any) -> Any:
            self(f"before {what}")
            result = call(*arguments, **more)
            self(f"after {what}")
            return result

        return stepped


class FatalSteps(Steps):
    """The process itself ends, by SIGKILL."""

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class SteppedJournal:
    """A journal with a step before and after each commit, named for what is committed."""

    def __init__(self, journal: Journal, step: Steps) -> None:
        self.journal = journal
        self.step = step

    def read(self) -> Contents:
        return self.journal.read()

    def commit(self, changes: Changes) -> None:
        phases = [record.phase.value for record in changes.increments]
        what = ",".join([*phases, *("delete" for _ in changes.deletions)])
        self.step.around(f"commit {what}", self.journal.commit)(changes)

    def probe(self) -> None:
        self.journal.probe()

    def check(self) -> None:
        self.journal.check()

    def close(self) -> None:
        self.journal.close()
