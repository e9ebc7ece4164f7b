"""Programs of this repository as processes of their own, forked from one that has imported what they need: each has a
pid, an exit code and signals like any other, but begins without the seconds that the imports take."""

from __future__ import annotations

import gc
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from subprocess import TimeoutExpired

_context = get_context("forkserver")
_context.set_forkserver_preload(["tests.support.preloaded"])


class ForkedProcess:
    """`python -m MODULE ARGUMENTS...`, started at once, with the methods of `subprocess.Popen`. It has the environment
    and the working directory that the test has now, and does not outlive the tests."""

    def __init__(self, command: Sequence[str], output: Path, errors: Path) -> None:
        """`command` begins with the module; what is printed is appended to the two files."""
        self.args = list(command)
        for file in (output, errors):
            file.touch()
        how = (self.args, str(output), str(errors), dict(os.environ), str(Path.cwd()))
        self._process = _context.Process(target=_run, args=how, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(command: Sequence[str], output: str, errors: str, environment: Mapping[str, str], directory: str) -> None:
    """In the new process."""
    gc.freeze()  # what is inherited is no garbage: looking through it would copy its pages
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    for stream, path in ((1, output), (2, errors)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(file, stream)
        os.close(file)
    module, *arguments = command
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
