"""What each piece of work takes: of this process, or of the server that is attacked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Totals:
    """Of one attack."""

    cpu_seconds: float
    grown_mib: float
    """The peak of memory over what it was at first."""


@dataclass
class Meter:
    """Prints a line for each piece of work."""

    tell: Callable[[str], None] = print
    pid: int = field(default_factory=os.getpid)
    cpu_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.look_at(self.pid)

    def look_at(self, pid: int) -> None:
        """Look at this process from now on."""
        self.pid = pid
        self._first_mib = self._peak_mib = memory_mib(pid)

    def measure(self, what: str, work: Callable[[], _T]) -> _T:
        """Do it, and print what it took."""
        with self.measuring(what):
            return work()

    @contextmanager
    def measuring(self, what: str) -> Iterator[None]:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")  # the peak of memory is this work's own
        wall, cpu = time.perf_counter(), cpu_seconds(self.pid)
        yield
        seconds, used = time.perf_counter() - wall, cpu_seconds(self.pid) - cpu
        peak = memory_mib(self.pid, "VmHWM")
        self.cpu_seconds += used
        self._peak_mib = max(self._peak_mib, peak)
        self.tell(f"  {what:<58} {seconds:8.2f} s {used:8.2f} s CPU {peak:7.0f} MiB")

    def note(self, found: str) -> None:
        """Print what came of it."""
        self.tell(f"    {found}")

    def note_memory(self, when: str) -> None:
        """Print how much memory is not given back."""
        self.note(f"{when}: {memory_mib(self.pid) - self._first_mib:+.0f} MiB")

    @property
    def totals(self) -> Totals:
        return Totals(self.cpu_seconds, self._peak_mib - self._first_mib)


def memory_mib(pid: int, which: str = "VmRSS") -> float:
    """Return the memory of a process: what it has now, or (VmHWM) had at most."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(which)), 0.0)


def cpu_seconds(pid: int) -> float:
    """Return what all threads of a process have used."""
    if pid == os.getpid():
        return time.process_time()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
