"""How long nothing is begun after steps that were undone. Pure: it follows from the journal, so a restart does not
shorten it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.fleet.model import Disruption, DisruptionPhase
from cagrpc.runtime.back_off import BackOff


@dataclass(frozen=True, slots=True)
class Pause:
    """After the steps that were undone one after the other."""

    until_seconds: float
    """Since the epoch."""
    why: str
    nodes: frozenset[str]
    """Which they were to take away."""


def pause(disruptions: Sequence[Disruption], settings: ConsolidationSettings, now_seconds: float) -> Pause | None:
    """Return the pause at a time. `disruptions` are the last ones, in order."""
    ended = [each for each in disruptions if not each.phase.under_way]
    failed = list(takewhile(lambda each: each.phase is DisruptionPhase.UNDONE, reversed(ended)))
    if not failed:
        return None
    back_off = BackOff(settings.pause_seconds, settings.longest_pause_seconds)
    last = failed[0]
    until = (last.finished_at_seconds or last.created_at_seconds) + back_off.seconds(len(failed))
    if now_seconds >= until:
        return None
    return Pause(until, last.message, frozenset(node.name for each in failed for node in each.nodes))
