"""The last part of an increment's trace: from its release until its pods are bound, once, by who released it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from cagrpc.controllers.placement.metrics import PATIENCE_SECONDS, RELEASED, ReleasedTraces
from cagrpc.fleet.model import FleetSnapshot, IncrementSpec, IncrementStatus, Phase
from cagrpc.runtime import tracing
from tests.support.fleet import FakeClock
from tests.support.traces import Spans, traced

BEFORE_SECONDS = 40.0


@dataclass
class _Increments:
    """One of two pods, and who of them waits."""

    clock: FakeClock
    waiting: set[str] = field(default_factory=lambda: {"p", "q"})
    snapshot: FleetSnapshot = field(default_factory=lambda: FleetSnapshot(1, {}, (), {}))

    def become(self, phase: Phase, finished_at: float | None = None) -> None:
        spec = IncrementSpec({"a": 1}, pods=frozenset({"p", "q"}))
        status = IncrementStatus("i", spec, phase, finished_at_seconds=finished_at)
        self.snapshot = FleetSnapshot(1, {}, (), {}, (status,))

    def pending(self, uids: Iterable[str]) -> Mapping[str, Any]:
        return dict.fromkeys(self.waiting.intersection(uids))

    def nodes_of(self, uids: Iterable[str]) -> Mapping[str, str]:
        return {uid: "node" for uid in uids if uid not in self.waiting}


def _told(spans: Spans) -> list[str]:
    return [each.name for each in spans.of(tracing.increment("i"))]


@pytest.mark.parametrize("seen", [True, False], ids=["seen in flight", "released between two looks"])
@pytest.mark.parametrize("bound", [True, False], ids=["its pods are bound at once", "its pods wait for a while"])
def test_it_ends_once_where_this_process_released_it(*, seen: bool, bound: bool) -> None:
    clock = FakeClock()
    fleet: Any = _Increments(clock)
    fleet.become(Phase.READY)
    with traced(clock) as spans:
        traces = ReleasedTraces(fleet, fleet, clock)
        if seen:
            traces.step()
        clock.advance(1)
        fleet.become(Phase.DONE, clock())
        if not bound:
            traces.step()
            assert _told(spans) == []
            clock.advance(1)
        fleet.waiting.clear()
        for _ in range(3):
            traces.step()
        assert _told(spans) == [RELEASED]


@pytest.mark.parametrize("waits", [True, False], ids=["its pods still wait", "its pods are bound"])
def test_of_what_another_process_released_only_what_is_still_to_come_is_told(*, waits: bool) -> None:
    clock = FakeClock()
    fleet: Any = _Increments(clock)
    fleet.become(Phase.DONE, clock() - BEFORE_SECONDS)
    with traced(clock) as spans:
        traces = ReleasedTraces(fleet, fleet, clock)
        if waits:
            traces.step()
            clock.advance(1)
        fleet.waiting.clear()
        for _ in range(3):
            traces.step()
        assert _told(spans) == [RELEASED] * waits


def test_pods_that_are_never_bound_end_it_as_failed() -> None:
    clock = FakeClock()
    fleet: Any = _Increments(clock)
    fleet.become(Phase.DONE, clock())
    with traced(clock) as spans:
        traces = ReleasedTraces(fleet, fleet, clock)
        traces.step()
        clock.advance(PATIENCE_SECONDS)
        for _ in range(3):
            traces.step()
        (found,) = spans.of(tracing.increment("i"))
        assert not found.status.is_ok
