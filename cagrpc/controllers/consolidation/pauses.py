"""How long nothing is begun after steps that failed: that were undone, or saved nothing since so many nodes had to stay
that the new ones cost as much. Pure: it follows from the journal, so a restart does not shorten it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.fleet.model import Disruption, DisruptionPhase
from cagrpc.runtime.back_off import BackOff
from solver.consolidation.model import DisruptionReason


@dataclass(frozen=True, slots=True)
class Pause:
    """After the steps that failed one after the other."""

    until_seconds: float
    """Since the epoch."""
    why: str
    nodes: frozenset[str]
    """Which they were to take away."""


def pause(disruptions: Sequence[Disruption], settings: ConsolidationSettings, now_seconds: float) -> Pause | None:
    """Return the pause at a time. `disruptions` are the last ones, in order."""
    ended = [each for each in disruptions if not each.phase.under_way]
    failed = list(takewhile(_failed, reversed(ended)))
    if not failed:
        return None
    back_off = BackOff(settings.pause_after_failure_seconds, settings.longest_pause_seconds)
    last = failed[0]
    until = (last.finished_at_seconds or last.created_at_seconds) + back_off.seconds(len(failed))
    if now_seconds >= until:
        return None
    why = last.message if last.phase is DisruptionPhase.UNDONE else "it saved nothing: nodes had to stay"
    return Pause(until, why, frozenset(node.name for each in failed for node in each.nodes))


def _failed(ended: Disruption) -> bool:
    saved_nothing = ended.reason == DisruptionReason.UNDERUTILIZED and ended.saving_usd_per_hour <= 0
    return ended.phase is DisruptionPhase.UNDONE or saved_nothing
