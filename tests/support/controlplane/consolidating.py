"""A rotten cluster with simulated nodes, `cagrpc serve` that consolidates it, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.controlplane.live import Live, group
from tests.support.controlplane.observer import History, Observer, observing
from tests.support.controlplane.rotting import (
    PRICES,
    SHAPES,
    Workload,
    allocatable,
    create,
    least_usd_per_hour,
    rot,
)

KIND = "pool"
"""The label of a node that has its node group."""
LEAST_AGE_SECONDS = 15.0
ON: Mapping[str, Any] = {
    "mode": "on",
    "every": "3s",
    "budget": "3s",
    "minimum_node_age": f"{LEAST_AGE_SECONDS:.0f}s",
    "budgets": [{"nodes": "50%"}],
    "pause_after_failure": "1s",
}
AT_ITS_END = ("nothing is worth moving", "the planned steps no longer apply")
"""What the server says it waits for."""
PATIENCE_SECONDS = 1200.0
_PLANNER = {"idle": "3s", "budget": "10s"}


@dataclass(frozen=True, slots=True)
class Outcome:
    history: History
    least_usd_per_hour: float
    """Proven: none leaves less that keeps what may not be disrupted."""

    @property
    def above_least(self) -> float:
        """1.05 is 5 % above."""
        return self.history.cost / self.least_usd_per_hour

    def __str__(self) -> str:
        seen = self.history
        return (
            f"{seen.costs[0][1]:.2f} -> {seen.cost:.2f} $/h, {self.above_least:.3f} of the proven least;"
            f" {len(seen.evictions)} pods moved in {len(seen.steps_seconds)} steps,"
            f" {len(seen.lives) - seen.made} -> {len(seen.places)} nodes, {seen.made} made,"
            f" {seen.last_change_seconds / 60:.1f} min"
        )


def provisioners() -> list[dict[str, Any]]:
    """One, of all shapes."""
    groups = []
    for name in SHAPES:
        resources = allocatable(name)
        groups.append(group(name, resources["cpu"], resources["memory"], PRICES[name], max_size=1000))
    return [{"name": "all", "node_groups": groups}]


def configure(live: Live, consolidation: Mapping[str, Any]) -> None:
    """For the next process."""
    live.configure(provisioners(), planner=_PLANNER, consolidation=consolidation)


@contextmanager
def rotten(live: Live, found: Sequence[Workload], consolidation: Mapping[str, Any] = ON) -> Iterator[Observer]:
    """Nobody serves; the configuration is one that consolidates."""
    live.configure(provisioners(), planner=_PLANNER)
    live.start()
    create(live.cluster, found)
    live.wait_for_running(sum(each.replicas for each in found), seconds=PATIENCE_SECONDS)
    live.wait_until_settled()
    rot(live.cluster, found)
    live.kill()
    configure(live, consolidation)
    with observing(live.cluster.plane, found, PRICES, KIND) as observer:
        yield observer


def at_its_end(live: Live) -> bool:
    """Return whether no step is under way, and none is to be begun: neither after a pause nor once pods are bound."""
    found = live.serving.get("/status")["consolidation"]
    return found["under_way"] is None and found["waits_for"] in AT_ITS_END


def observed_epoch_seconds(live: Live) -> float:
    """Return when that was the case which the server has planned for last."""
    plan = live.serving.get("/status")["consolidation"]["plan"]
    return float(plan["at_seconds"] - plan["elapsed_seconds"]) if plan is not None else 0.0


def consolidated(live: Live, observer: Observer, before: History, found: Sequence[Workload]) -> Outcome:
    """Wait until nothing comes, goes or moves any more, all pods run, and the server finds nothing more to do, also
    once the last node that has come is old enough to go."""
    began, left = observer.now(), sum(each.left for each in found)

    def quiet() -> bool:
        history = observer.history()
        all_may_go = max(began, history.last_change_seconds) + LEAST_AGE_SECONDS
        if history.healthy.total() != left or not at_its_end(live):
            return False
        return observed_epoch_seconds(live) > observer.began_epoch_seconds + all_may_go

    live.wait_for(quiet, "nothing changes any more", seconds=PATIENCE_SECONDS)
    least = least_usd_per_hour(found, before.kinds, before.places)
    return Outcome(observer.history(), least)
