"""What a process follows: a reflector, with what its sink did not take; and several of them as one."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

from cagrpc.kube.informer.reflector import Reflector
from cagrpc.runtime.health import still_to_come
from cagrpc.runtime.stopping import STOP_SECONDS, stop_all


@dataclass(frozen=True, slots=True)
class Informer:
    """One followed resource, as `cagrpc.runtime.health.SyncedResource`."""

    reflector: Reflector[Any]
    needed: bool = True
    """Where it is not, it is done without as long as it cannot be listed."""
    refused: Sized = ()
    """What the sink could not take."""

    @property
    def name(self) -> str:
        return self.reflector.name

    @property
    def synced(self) -> bool:
        return self.reflector.synced

    @property
    def problem(self) -> str | None:
        return self.reflector.problem

    @property
    def left_out(self) -> int:
        return len(self.reflector.left_out) + len(self.refused)

    def start(self) -> None:
        self.reflector.start()

    def stop(self, wait_seconds: float) -> None:
        self.reflector.stop(wait_seconds)


class InformerStore:
    """Base of stores that informers keep up to date, from `start` to `stop`."""

    informers: tuple[Informer, ...]

    def start(self) -> None:
        for each in self.informers:
            each.start()

    def stop(self, wait_seconds: float = STOP_SECONDS) -> None:
        """Wait at most so long. May be repeated."""
        stop_all([each.stop for each in self.informers], wait_seconds)

    @property
    def synced(self) -> bool:
        """Whether all has been listed once, as far as it is needed."""
        return not still_to_come(self.informers)

    @property
    def problem(self) -> str | None:
        """Why what is needed is not known as it is now; None where all is well."""
        return next((each.problem for each in self.informers if each.needed and each.problem), None)
