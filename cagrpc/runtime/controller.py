"""The contract of controllers: what one is made of. Who runs them (threads, back-off, logging, health) is `runner`'s.

A minimal controller has a name, a pace and a step:

    class Sweeper(Controller):
        name = "sweeping"
        every_seconds = 10.0

        def step(self) -> None:
            self._sweep()

It brings all else that concerns it: members of `/status`, metrics, pages, informers, queues.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from prometheus_client.registry import Collector

from cagrpc.errors import CagrpcError, unexpected
from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.health import SyncedResource, still_to_come
from cagrpc.runtime.heartbeat import PATIENCE_SECONDS, Heartbeat
from cagrpc.runtime.stopping import STOP_SECONDS, stop_all
from cagrpc.runtime.work_queue import WorkQueue
from solver.model.errors import NotCompiledError

Json = Mapping[str, Any]
"""An object as JSON has it."""


def described(error: Exception) -> str:
    """Return what `/status` says of a step that raised this."""
    return (
        str(error)
        if isinstance(error, (CagrpcError, NotCompiledError))
        else f"failed unexpectedly: {unexpected(error)}"
    )


@dataclass(frozen=True, slots=True)
class JsonList:
    """A list, oldest first, that is shown by pages: only items that are shown are turned into JSON."""

    items: Sequence[Any]
    as_json: Callable[[Any], Json] = lambda item: item


@dataclass(frozen=True, slots=True)
class JsonPage:
    """A page over HTTP. Both may raise InvalidInput and Unavailable."""

    get: Callable[[], Json | JsonList]
    put: Callable[[Json], Json] | None = None
    """Change what is named, and return the whole as it is then; None where the page is only read."""


class Controller:
    """A loop against the cluster, the fleet or a backend. `step` is called by one thread, never twice at once; all else
    is called by any."""

    name: str
    """For people and as a label of metrics: what is done."""
    every_seconds: float | None = None
    """The pace of steps; None where queues and informers do all the work."""
    patience_seconds: float = PATIENCE_SECONDS
    """A step that does nothing new for so long is stuck."""
    back_off: ClassVar[BackOff] = BackOff(first_seconds=1.0, longest_seconds=5.0)
    """The pause after steps that failed."""
    heartbeat: Heartbeat | None = None
    """Its own, where others report its progress too."""
    wake: threading.Event | None = None
    """Set by whoever has something for the next step to do now."""
    waits_for: str = "starting"
    """Why its latest step failed, or did nothing, where it says that; empty where it worked."""
    stopping: bool = False
    """Whether `stop` was called: no further step is taken, and the one under way begins nothing more."""

    def step(self) -> bool | None:
        """Compare what is with what should be, and do what is due. What is raised is logged (the same problem once),
        and the step is tried again after a back-off; False: something failed and has been logged here."""
        return None

    def start(self) -> None:
        """Start queues and informers. The first step comes after it."""
        for part in self._parts():
            part.start()

    def stop(self, wait_seconds: float = STOP_SECONDS) -> None:
        """Begin nothing more, and wait at most so long for what is under way. May be repeated."""
        self.stopping = True
        stop_all([part.stop for part in self._parts()], wait_seconds)

    def queues(self) -> Sequence[WorkQueue[Any]]:
        """Return the queues whose threads belong to it."""
        return ()

    def informers(self) -> Sequence[SyncedResource]:
        """Return the resources that it follows."""
        return ()

    def still_to_come(self) -> str:
        """Return why what it works on is not known yet; empty once it is."""
        return still_to_come(self.informers())

    def status(self) -> Json:
        """Return its members of `/status`, for people."""
        return {}

    def collectors(self) -> Iterable[Collector]:
        """Return its metrics. Called at each scrape."""
        return ()

    def pages(self) -> Mapping[str, JsonPage]:
        """Return its pages by path."""
        return {}

    def _parts(self) -> list[WorkQueue[Any] | SyncedResource]:
        return [*self.queues(), *self.informers()]
