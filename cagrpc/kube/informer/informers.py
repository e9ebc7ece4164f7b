"""What a process follows: a reflector, with what its sink did not take."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

from cagrpc.kube.informer.reflector import Reflector


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
