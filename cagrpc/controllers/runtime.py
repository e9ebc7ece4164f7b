"""What the controllers of a process run on: its clocks, the budgets of planning, and threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cagrpc.runtime.clock import EpochClock, MonotonicClock, monotonic
from solver.model import Budget


@dataclass(frozen=True, slots=True)
class Runtime:
    """What controllers run on. The defaults are real; who needs the same result on every machine brings fake clocks, a
    deterministic budget and one writer."""

    now: EpochClock
    """The fleet's clock."""
    clock: MonotonicClock = monotonic
    cpu: Callable[[], float] = time.thread_time
    """Return the CPU seconds of the thread."""
    budget: Budget | None = None
    """Of each plan, instead of the settings'."""
    writers: int = 8
    """The threads that write ProvisioningRequests and the labels of Nodes."""
