"""What consolidation shows: its member of `/status`, the page `/consolidation` with the whole plan, and metrics: what
the cluster costs and could cost, which nodes stay, and what became of steps."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from cagrpc.controllers.consolidation.evictions import Evictions
from cagrpc.controllers.consolidation.holds import Hold
from cagrpc.controllers.consolidation.holds import as_json as hold_as_json
from cagrpc.fleet.model import Disruption
from cagrpc.runtime.metrics import AtScrape, gauge, gauges
from solver.consolidation.model import ConsolidationPlan, ConsolidationStep

_MOST_STEPS = 5
_MOST_EXAMPLES = 3
_NAMES = re.compile(r'"[^"]*"|\S*[/\d]\S*')
"""Parts of a reason that are of one node: namespaces with names, quoted ones, numbers."""


_SECONDS_BUCKETS = (5.0, 15.0, 30.0, 60.0, 120.0, 180.0, 300.0, 450.0, 600.0, 900.0, 1800.0, 3600.0)
"""From empty nodes to new ones that come and pods that take long to end."""


@dataclass(frozen=True, slots=True)
class PublishedPlan:
    """A plan, and when it was made."""

    at_seconds: float
    """Since the epoch."""
    plan: ConsolidationPlan


@dataclass(frozen=True, slots=True)
class Pause:
    """How long nothing is begun after steps that failed one after the other: that were undone, or saved nothing since
    so many nodes had to stay that the new ones cost as much."""

    until_seconds: float
    """Since the epoch."""
    why: str
    nodes: frozenset[str]
    """Which they were to take away."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything that is shown at one moment."""

    mode: str
    waits_for: str
    """Why no step is begun now; empty where one is under way."""
    published: PublishedPlan | None = None
    under_way: Disruption | None = None
    last: Disruption | None = None
    """The one that ended last."""
    pause: Pause | None = None
    holding: tuple[Hold, ...] = ()
    """Who keeps it from beginning."""


def in_short(shown: Shown) -> Mapping[str, Any]:
    """Return the member of `/status`: the first steps, the first of who holds it, and examples of nodes that stay."""
    return _as_json(shown, _MOST_STEPS, _MOST_EXAMPLES)


def in_full(shown: Shown) -> Mapping[str, Any]:
    """Return the page: all steps, and all nodes that stay."""
    return _as_json(shown, None, None)


def _as_json(shown: Shown, steps: int | None, examples: int | None) -> Mapping[str, Any]:
    found: dict[str, Any] = {
        "mode": shown.mode,
        "waits_for": shown.waits_for,
        "held_by": [hold_as_json(each) for each in shown.holding[:steps]],
        "under_way": None if shown.under_way is None else disruption_as_json(shown.under_way),
        "last": None if shown.last is None else disruption_as_json(shown.last),
        "paused": None if shown.pause is None else {"until_seconds": shown.pause.until_seconds, "why": shown.pause.why},
        "plan": None,
    }
    if shown.published is not None:
        plan = shown.published.plan
        found["plan"] = {
            "at_seconds": shown.published.at_seconds,
            "cost_usd_per_hour": plan.cost_before_usd_per_hour,
            "cost_after_usd_per_hour": plan.cost_after_usd_per_hour,
            "least_usd_per_hour": plan.least_usd_per_hour,
            "least_if_all_moved_usd_per_hour": plan.least_if_all_moved_usd_per_hour,
            "saving_usd_per_hour": plan.saving_usd_per_hour,
            "steps_planned": len(plan.steps),
            "steps": [step_as_json(each) for each in plan.steps[:steps]],
            "stays": [
                {"reason": kind, "nodes": len(nodes), "examples": [f"{name}: {why}" for name, why in nodes[:examples]]}
                for kind, nodes in sorted(by_kind(plan.stays).items(), key=lambda each: (-len(each[1]), each[0]))
            ],
            "elapsed_seconds": plan.elapsed_seconds,
        }
    return found


def step_as_json(step: ConsolidationStep) -> Mapping[str, Any]:
    return {
        "reason": step.reason.value,
        "nodes": list(step.nodes),
        "new_nodes": {each.node_group: each.delta for each in step.plan.increments},
        "pods_moved": step.pods_moved,
        "saving_usd_per_hour": step.saving_usd_per_hour,
    }


def disruption_as_json(disruption: Disruption) -> Mapping[str, Any]:
    """Return a step that was begun as JSON."""
    return {
        "id": disruption.id,
        "reason": disruption.reason,
        "phase": disruption.phase.value,
        "nodes": [each.name for each in disruption.nodes],
        "increment": disruption.increment_id,
        "pods_moved": disruption.pods,
        "saving_usd_per_hour": disruption.saving_usd_per_hour,
        "message": disruption.message,
        "created_at_seconds": disruption.created_at_seconds,
        "deadline_at_seconds": disruption.deadline_at_seconds,
        "finished_at_seconds": disruption.finished_at_seconds,
    }


def kind_of(reason: str) -> str:
    """Return a reason without the names and numbers in it, so that few kinds are left."""
    return _NAMES.sub("…", reason)


def by_kind(stays: Mapping[str, str]) -> Mapping[str, list[tuple[str, str]]]:
    """Return nodes that stay with their reasons, by kind of it."""
    found: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, why in sorted(stays.items()):
        found[kind_of(why)].append((name, why))
    return found


class ConsolidationMetrics:
    """Steps that ended since the start, and what is shown now."""

    def __init__(self, shown: Callable[[], Shown], evictions: Evictions) -> None:
        self._shown, self._evictions = shown, evictions
        self._steps = Counter(
            "cagrpc_consolidation_steps",
            "Steps that ended: `done` or `undone`; reason is `Empty`, `Underutilized`, `BetterWeight`, `Interrupted` or"
            " `Unhealthy`.",
            ("reason", "outcome"),
            registry=None,
        )
        self._seconds = Histogram(
            "cagrpc_consolidation_step_duration_seconds",
            "How long steps of consolidation took, from being journalled until their end, by outcome.",
            ("outcome",),
            buckets=_SECONDS_BUCKETS,
            registry=None,
        )
        self._known: frozenset[str] | None = None

    def learn(self, disruptions: Sequence[Disruption]) -> bool:
        """Count those that have ended since the last call; return whether there are any. What had ended before the
        first call was another process's."""
        ended = {each.id: each for each in disruptions if not each.phase.under_way}
        before, self._known = self._known, frozenset(ended)
        new = [] if before is None else [each for name, each in ended.items() if name not in before]
        for each in new:
            self._steps.labels(each.reason, each.phase.value).inc()
            seconds = (each.finished_at_seconds or each.created_at_seconds) - each.created_at_seconds
            self._seconds.labels(each.phase.value).observe(max(0.0, seconds))
        return bool(new)

    def collectors(self) -> tuple[Collector, ...]:
        return AtScrape(self._now), self._steps, self._seconds

    def _now(self) -> Iterator[Metric]:
        shown = self._shown()
        plan = None if shown.published is None else shown.published.plan
        costs: dict[tuple[str, ...], float] = {}
        if plan is not None:
            costs["now",] = plan.cost_before_usd_per_hour
            costs["planned",] = plan.cost_after_usd_per_hour
            costs["least",] = plan.least_usd_per_hour
            costs["least_if_all_moved",] = plan.least_if_all_moved_usd_per_hour
        yield gauges(
            "cagrpc_consolidation_cost_usd_per_hour",
            "Cost of the fleet's nodes: `now`, after the latest plan (`planned`), the proven `least`, and the proven"
            " `least_if_all_moved`.",
            ("state",),
            costs,
        )
        yield gauges(
            "cagrpc_consolidation_nodes_kept",
            "Nodes that cost more than their pods are worth and stay, by reason.",
            ("reason",),
            {} if plan is None else {(kind,): len(nodes) for kind, nodes in by_kind(plan.stays).items()},
        )
        paused = "1 while no step is begun, after one that was undone."
        yield gauge("cagrpc_consolidation_paused", paused, shown.pause is not None)
        yield CounterMetricFamily(
            "cagrpc_consolidation_pods_moved", "Pods evicted by steps of consolidation.", value=self._evictions.evicted
        )
        yield CounterMetricFamily(
            "cagrpc_consolidation_evictions_refused",
            "Evictions refused for now, by PodDisruptionBudgets or an API server that is busy; they are tried again.",
            value=self._evictions.refused,
        )
