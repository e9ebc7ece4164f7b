"""Answers that are ready before anybody asks, for a front that needs no Python to give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadyCalls:
    """Calls of one method that were answered so, all with OK."""

    method: str
    by_bucket: tuple[int, ...]
    """How many took no longer than each bound of `cagrpc.services.grpc.metrics`, and no less than the one before; the
    last are those that took longer than all."""
    seconds: float
    """How long all of them took together."""


class ReadyAnswers:
    """The answers of the current snapshot. This one has no front and keeps nothing. Thread-safe."""

    keeps = False
    """Whether it is worth while to make answers that nobody has asked for yet."""

    def advance(self, version: int) -> None:
        """Give no answer of an earlier version from now on: there is a snapshot of this one."""

    def put(self, version: int, method: str, key: bytes, answer: bytes) -> None:
        """Have the answer to a request ready; ignored where there is a newer snapshot."""

    def fill(self, version: int, method: str, answer_of: Mapping[str, str], answers: Mapping[str, bytes]) -> None:
        """Have the answers to many keys ready: `answer_of` has the name of each key's answer in `answers`."""

    def calls(self) -> Iterable[ReadyCalls]:
        """Return how often and how fast they were given."""
        return ()
