"""When kernels are compiled and loaded: once on a machine, in a process of its own, and not before they are needed.

What is small is planned by interpreted kernels, to the same answer (`while_small`). What is not waits for compiled
ones: loading those that are kept takes a second, compiling them half a minute of CPU. Small is counted, in steps that
each kernel estimates before it takes them, and never asked of a clock.

`python -m solver.planning.warm_up` compiles what is not kept yet, and ends when all is. With `--background` it does
it at the lowest priority, apart from the terminal, and leaves it to another one that has begun.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TypeVar

from solver.compiled import Interpreted, TooManyStepsError, counted, interpreted, waits
from solver.model.budget import Budget, Interruption
from solver.model.errors import NotCompiledError
from solver.planning import compiling

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

COMPILING = (
    "the planner is being compiled, once on a machine, which takes about a minute; what is small is planned meanwhile"
)
"""What is waited for, for people."""
_MOST_STEPS = 5_000_000
"""That are interpreted of one problem: most of a second."""
_WORTH_LOADING = 5_000_000
"""Steps that a process has interpreted from which on it loads kernels that are kept: loading takes as long as these
took."""
_BACKGROUND = "--background"


class _Process:
    """What this process does to have compiled kernels."""

    def __init__(self) -> None:
        self.loading = threading.Lock()
        self.interpreted = 0
        """Steps so far."""
        self.background: subprocess.Popen[bytes] | None = None
        self.thread: threading.Thread | None = None


_here = _Process()


def while_small(work: Callable[[Budget], _T], budget: Budget) -> _T:
    """Return what `work` returns: by interpreted kernels where few steps are enough, otherwise, from its beginning, by
    compiled ones, for which it waits. `not_waiting` it loads kernels, but waits for no compiler: one begins, and
    NotCompiledError is raised. Seconds in interpreted kernels are none of the budget's, which is for planning at full
    speed. Raises KeyboardInterrupt where the budget's interruption comes while it waits: there is no plan yet."""
    if compiling.loaded() or counted():
        return work(budget)
    if _here.interpreted < _WORTH_LOADING or compiling.kept() is None:
        account = Interpreted(_MOST_STEPS, budget.clock)
        try:
            with interpreted(account):
                return work(replace(budget, clock=lambda: budget.clock() - account.seconds))
        except TooManyStepsError:
            pass
        finally:
            _here.interpreted += account.steps
    if not waits() and compiling.kept() is None:
        if _here.thread is None or not _here.thread.is_alive():
            _log.info(COMPILING)
            _here.thread = threading.Thread(target=warm_up, args=(logging.DEBUG,), name="compiling", daemon=True)
            _here.thread.start()
        raise NotCompiledError(COMPILING)
    warm_up(interruption=budget.interruption)
    return work(budget)


def warm_up(level: int = logging.WARNING, interruption: Interruption | None = None) -> None:
    """Load compiled kernels, and compile them before where none are kept, once; that is logged at this level. No budget
    begins before it ends."""
    with _here.loading:
        if compiling.loaded():
            return
        if compiling.kept() is None:
            _log.log(level, COMPILING)
            _compile_and_load(interruption or Interruption())
        else:
            compiling.load(compiling.kept())


def in_background() -> None:
    """Let another process compile, at the lowest priority, where no kernels are kept. It may outlive this one."""
    if not compiling.loaded() and compiling.kept() is None:
        _here.background = _begun(_BACKGROUND)


def why_wait() -> str:
    """Return what a problem that is not small would wait for; empty where it need not."""
    return "" if compiling.loaded() or compiling.kept() is not None else COMPILING


def _compile_and_load(interruption: Interruption) -> None:
    """Compile in a process of its own, so that this one's threads go on meanwhile; where none can be started, or it
    could write nothing anywhere, in this one."""
    if compiling.writable() is not None:
        problem = _compiled_by_another({}, interruption)
        compiling.load(compiling.kept())
    else:
        try:
            with TemporaryDirectory(prefix="cagrpc-") as base:
                problem = _compiled_by_another({compiling.BASE: base}, interruption)
                compiling.load(Path(base) / compiling.name())
        except FileNotFoundError as error:  # there is no directory for temporary files either
            problem = error.strerror or str(error)
            compiling.load(None)
    if problem:
        _log.warning("kernels were compiled in this process, which did nothing else meanwhile: %s", problem)


def _compiled_by_another(environment: Mapping[str, str], interruption: Interruption) -> str:
    """Wait for a process that compiles. Return why there was none, or what it failed with."""
    try:
        process = _begun(environment=environment)
    except OSError as error:
        return error.strerror or str(error)
    with interruption.stopping(process.terminate):
        _, said = process.communicate()
    if interruption.happened:
        raise KeyboardInterrupt
    ended = f"the process that compiled ended with {process.returncode}"  # which is a signal's number, negative
    return (said.decode(errors="replace").strip().rpartition("\n")[2] or ended) if process.returncode else ""


def _begun(*arguments: str, environment: Mapping[str, str] = MappingProxyType({})) -> subprocess.Popen[bytes]:
    """Start a process that compiles."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(  # noqa: S603 - this interpreter, on this module
        [sys.executable, "-P", "-m", "solver.planning.warm_up", *arguments],
        env={**os.environ, **environment, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if arguments else subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for whoever waits, who ends it
    )


def main() -> None:
    """Compile, one process at a time for each priority."""
    background = _BACKGROUND in sys.argv[1:]
    if background:
        os.nice(19)
        with suppress(PermissionError):  # where it leads a session of its own already
            os.setsid()
    if compiling.kept() is not None:
        return
    directory = compiling.writable()
    if directory is None:
        sys.exit("nothing can be written where compiled kernels are kept")
    with (directory / ("background" if background else "waited-for")).open("w") as turn:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | (fcntl.LOCK_NB if background else 0))
        except BlockingIOError:
            return
        if compiling.kept() is None:
            compiling.load(directory, keep=True)


if __name__ == "__main__":
    main()
