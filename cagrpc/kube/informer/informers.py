"""Informers, each a reflector with the objects that its sink refused, and stores that several of them keep up to
date."""

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
    """If false, the process works without it while it cannot be listed."""
    refused: Sized = ()
    """Objects that the sink could not accept."""

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
    """Base class of stores that informers keep up to date between `start` and `stop`."""

    informers: tuple[Informer, ...]

    def start(self) -> None:
        for each in self.informers:
            each.start()

    def stop(self, wait_seconds: float = STOP_SECONDS) -> None:
        """Stop the informers, waiting at most this long. Idempotent."""
        stop_all([each.stop for each in self.informers], wait_seconds)

    @property
    def synced(self) -> bool:
        """Whether every needed resource has been listed once."""
        return not still_to_come(self.informers)

    @property
    def problem(self) -> str | None:
        """Why a needed resource is not up to date; None where all are."""
        return next((each.problem for each in self.informers if each.needed and each.problem), None)
