"""The record of planning rounds, which `/plans` and `cagrpc status` show, and their metrics: how long they take, and
what the latest one came to. docs/reference/planner-loop.md has the JSON. The journal has the increments; here is only
their last known phase."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from threading import Lock
from typing import Any

from prometheus_client import Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from cagrpc.cluster.shortages import Shortage
from cagrpc.cluster.state import IncompleteGang
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.runtime import tracing
from cagrpc.runtime.metrics import AtScrape, gauge
from solver.explanation.choices import limited_json
from solver.explanation.model import WhyLimited, WhyWaiting
from solver.model import Plan, Status
from solver.model.quantities import pluralize

RETAINED_ROUNDS = 50
_MOST_NAMED = 10
"""Namespaces in warnings of one kind."""


_SECONDS_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0)
"""From a round for a few pods, over `planner.budget` (5 s by default) and what comes on top of it, to the minutes that
plans of the largest clusters take."""


def _without_preferences(plan: Plan) -> Iterator[str]:
    """Yield whose pods were planned without their preferences, and why."""
    found: Counter[tuple[str, str]] = Counter()
    for each in plan.relaxed:
        if each.reason:
            # Where no constraint looks at it, a spec has no namespace.
            found[plan.pod_classes[each.pod_class].example.partition("/")[0], each.reason] += each.count
    for (namespace, reason), pods in sorted(found.items())[:_MOST_NAMED]:
        yield f"namespace {namespace}: {pluralize(pods, 'pod')} planned without preferences, because {reason}"
    if len(found) > _MOST_NAMED:
        yield f"and pods of {len(found) - _MOST_NAMED} more namespaces"


def _may_get_stuck(plan: Plan) -> Iterator[str]:
    """Yield which planned pods may be left without a node, and why."""
    for each in plan.may_get_stuck[:_MOST_NAMED]:
        example = plan.pod_classes[each.pod_class].example
        yield f"{pluralize(each.count, 'pod')} like {example} may get stuck without a node: {each.reason}"
    if len(plan.may_get_stuck) > _MOST_NAMED:
        yield f"and pods of {len(plan.may_get_stuck) - _MOST_NAMED} more kinds"


@dataclass(frozen=True, slots=True)
class Ordered:
    """An increment of a round: what was ordered, and what became of it."""

    node_groups: Mapping[str, int]
    pods: int
    cost_per_hour: float
    id: str = ""
    """Empty where the fleet refused it."""
    phase: str = "refused"
    message: str = ""
    """Why it was refused or rolled back, or what it waits for."""


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """One planning round."""

    id: str
    at_seconds: float
    """Since the epoch."""
    why: str
    """Why it was due."""
    pods: int = 0
    """How many pods were planned. Without any, and without placeholders, there was nothing to plan."""
    classes: int = 0
    status: str = Status.OPTIMAL.value
    planned_cost_per_hour: float = 0.0
    """Of new nodes."""
    lower_bound_per_hour: float | None = 0.0
    """None where nothing is proven."""
    gap: float | None = 0.0
    """None also where more pods might have been served."""
    unserved_unproven: int = 0
    """Pods and placeholders that are left out though nothing proves that they have to be."""
    price_of_priority_per_hour: float = 0.0
    elapsed_seconds: float = 0.0
    nodes: int = 0
    """New nodes."""
    on_existing: int = 0
    """Pods planned onto nodes that exist or are in flight already."""
    increments: tuple[Ordered, ...] = ()
    unplaced: tuple[WhyWaiting, ...] = ()
    shortages: tuple[Shortage, ...] = ()
    """Offerings that were left out."""
    placeholders: int = 0
    """Of the slack, planned beside the pods: all of them, or where there were no pods those that were left over."""
    unplaced_placeholders: tuple[WhyWaiting, ...] = ()
    incomplete_gangs: tuple[IncompleteGang, ...] = ()
    """Without their pods, which would be many to retain."""
    warnings: tuple[str, ...] = ()
    waiting: tuple[int, ...] | None = None
    """How many of `unplaced` wait still; None where that is not known: it is of the latest round only."""
    limited: WhyLimited | None = None
    """What the maximum sizes and limits that the plan used up cost; None where nothing, or not known yet."""

    def of(self, plan: Plan) -> PlanRecord:
        """Return the record with what the plan certifies."""
        certificate = plan.certificate
        return replace(
            self,
            classes=len(plan.pod_classes),
            status=certificate.status.value,
            planned_cost_per_hour=certificate.cost_usd_per_hour,
            lower_bound_per_hour=certificate.least_usd_per_hour,
            gap=certificate.gap,
            unserved_unproven=certificate.unserved_unproven,
            price_of_priority_per_hour=certificate.price_of_priority_usd_per_hour,
            elapsed_seconds=plan.elapsed_seconds,
            warnings=(*self.warnings, *_without_preferences(plan), *_may_get_stuck(plan)),
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as `/plans` has it."""
        gangs = [{"gang": each.name, "pods": each.there, "needed": each.needed} for each in self.incomplete_gangs]
        limited = None if self.limited is None else limited_json(self.limited)
        shown = asdict(replace(self, incomplete_gangs=(), limited=None), dict_factory=_with_lists)
        for each, waiting in zip(shown["unplaced"], shown.pop("waiting") or (), strict=False):
            each["waiting"] = waiting
        return {**shown, "incomplete_gangs": gangs, "limited": limited}


def _with_lists(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields}


class Rounds:
    """The latest rounds. Thread-safe."""

    def __init__(self) -> None:
        self._ring: deque[PlanRecord] = deque(maxlen=RETAINED_ROUNDS)
        self._lock = Lock()

    def add(self, record: PlanRecord) -> None:
        """Add a round, dropping the oldest where there are too many."""
        with self._lock:
            self._ring.append(record)

    def explain(self, record_id: str, unplaced: tuple[WhyWaiting, ...], limited: WhyLimited | None) -> None:
        """Replace the unplaced pods of a round by explained ones, but for those that an earlier one left out and it did
        not plan, and add what limits cost."""
        with self._lock:
            for number, record in enumerate(self._ring):
                if record.id == record_id:
                    unplaced += record.unplaced[len(unplaced) :]
                    self._ring[number] = replace(record, unplaced=unplaced, limited=limited)

    def learn(self, snapshot: FleetSnapshot) -> None:
        """Update the phases and messages of increments from the snapshot."""
        found = {status.id: status for status in snapshot.increments}
        with self._lock:
            for number, record in enumerate(self._ring):
                increments = tuple(
                    replace(each, phase=found[each.id].phase.value, message=found[each.id].message)
                    if each.id in found
                    else each
                    for each in record.increments
                )
                if increments != record.increments:
                    self._ring[number] = replace(record, increments=increments)

    def unplaced(self) -> tuple[WhyWaiting, ...]:
        """Return what the latest round left out."""
        with self._lock:
            return self._ring[-1].unplaced if self._ring else ()

    def incomplete_gangs(self) -> tuple[IncompleteGang, ...]:
        """Return the incomplete gangs of the latest round."""
        with self._lock:
            return self._ring[-1].incomplete_gangs if self._ring else ()

    def latest(self) -> tuple[PlanRecord, ...]:
        """Return the rounds, oldest first."""
        with self._lock:
            return tuple(self._ring)


class RoundMetrics:
    """Rounds that had something to plan."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._seconds = Histogram(
            "cagrpc_planning_round_duration_seconds",
            "How long planning rounds took until their increments were ordered, by the status of their plan.",
            ("status",),
            buckets=_SECONDS_BUCKETS,
            registry=None,
        )

    def observe(self, record: PlanRecord, seconds: float) -> None:
        """Count a round that is over."""
        ordered = next((each.id for each in record.increments if each.id), None)
        exemplar = tracing.exemplar(ordered) if ordered is not None else None
        self._seconds.labels(record.status).observe(seconds, exemplar)

    def collectors(self) -> tuple[Collector, ...]:
        return self._seconds, AtScrape(self._latest)

    def _latest(self) -> Iterator[Metric]:
        """Yield what the latest round that had something to plan came to."""
        found = next((each for each in reversed(self._rounds.latest()) if each.pods or each.placeholders), None)
        unplaced = None if found is None else sum(each.count for each in found.unplaced)
        yield gauge("cagrpc_plan_unplaced_pods", "Pods that the latest planning round did not place.", unplaced)
        cost = None if found is None else found.planned_cost_per_hour
        yield gauge("cagrpc_plan_cost_usd_per_hour", "Cost of the latest plan's new nodes.", cost)
        least, gap = (None, None) if found is None else (found.lower_bound_per_hour, found.gap)
        meaning = "The proven least for the same pods; absent where nothing is proven."
        yield gauge("cagrpc_plan_lower_bound_usd_per_hour", meaning, least)
        meaning = (
            "How far the latest plan is above that at most; absent where nothing is proven, or pods are left out that"
            " might have a place."
        )
        yield gauge("cagrpc_plan_gap_ratio", meaning, gap)
