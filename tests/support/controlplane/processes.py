"""A program that runs beside the tests and never outlives them. Knows nothing of Kubernetes."""

from __future__ import annotations

import itertools
import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.controlplane.binaries import program

STOP_WITHIN_SECONDS = 20.0
LOG_LINES_SHOWN = 15


class Process:
    """Started at once. It has a process group of its own, so that Ctrl-C reaches only pytest, and the kernel kills it
    when the thread that started it ends in whatever way (`setpriv --pdeathsig`): start it from the main thread."""

    def __init__(self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None) -> None:
        """`environment` has variables beside this process's own."""
        self.name = Path(command[0]).name
        self._log = log
        setpriv = program("setpriv")
        assert setpriv, "asked for only where nothing is lacking"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [setpriv, "--pdeathsig", "KILL", "--", *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                process_group=0,
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self, *, kill: bool = False) -> None:
        """Ended when this returns: by SIGTERM, and by SIGKILL where that does not help in time or `kill` is asked."""
        if kill:
            self._process.kill()
        else:
            self._process.terminate()
        try:
            self._process.wait(STOP_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        return "\n".join([f"the end of {self._log}:", *lines])


def wait_for(
    condition: Callable[[], bool], what: str, *, seconds: float = 120.0, process: Process | None = None
) -> None:
    """Until the condition holds. Fails, naming `what` was waited for, after `seconds` or when `process` has ended.

    What takes long to find out is asked less often, so that waiting does not keep the machine from what is waited for.
    """
    deadline = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        if condition():
            return
        words = f"\n{process.last_words()}" if process else ""
        assert process is None or process.running, f"{process.name} ended before {what}{words}"
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}{words}"
        time.sleep(min(0.5, max(0.02, 4 * (time.monotonic() - asked))))


@contextmanager
def meanwhile(step: Callable[[], object], every_seconds: float) -> Iterator[None]:
    """Does something again and again, in a thread of its own."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(every_seconds):
            step()

    thread = threading.Thread(target=work, name="meanwhile", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _ports() -> Iterator[int]:
    """Those of this process, each before any comes again: a port is free until its server listens, which some do after
    minutes."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = list(range(20_000 + worker, 32_000, workers))
    # Hypothesis seeds the global generator, so that every process would begin with the same ports.
    random.SystemRandom().shuffle(ports)
    return itertools.cycle(ports)


_own_ports = _ports()


def free_port() -> int:
    """A port of 127.0.0.1 below those that the kernel gives to outgoing connections, so that a server that is stopped
    gets it again."""
    for port in itertools.islice(_own_ports, 1_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("none of 1,000 ports is free")
