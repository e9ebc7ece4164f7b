"""The trace of an increment (`cagrpc.runtime.tracing`): a span for each phase that it has left, one for how long its
pods had waited before, and one for all of it once it is over. What becomes of its pods is added by whoever watches
them (`cagrpc.controllers.placement.traces`).
"""

from __future__ import annotations

from cagrpc.fleet.model import Phase
from cagrpc.fleet.records import IncrementRecord
from cagrpc.runtime import tracing

WAITING = "waiting"


class IncrementSpans:
    """Not for several threads."""

    def __init__(self, since_seconds: float) -> None:
        """`since_seconds` is when this process began to watch increments."""
        self._since_seconds = since_seconds
        self._entered: dict[str, float] = {}
        """When each increment in flight entered its phase, where this process saw it."""

    def moved(self, before: IncrementRecord | None, after: IncrementRecord, now: float) -> None:
        """Add to the trace what is over with this change."""
        if not tracing.on():
            return
        subject = tracing.increment(after.id)
        if before is None:
            waiting_since = after.increment.waiting_since_seconds
            if waiting_since is not None:
                self._add(subject, WAITING, waiting_since, after.created_at_seconds)
        elif before.phase is not after.phase:
            seen_at = self._entered.get(after.id)
            began_at = self._entered_before(before) if seen_at is None else seen_at
            self._add(subject, before.phase.value, began_at, now, taken_over=seen_at is None)
        if after.phase.in_flight:
            self._entered[after.id] = now
        else:
            self._entered.pop(after.id, None)
            tracing.past(_whole(subject, after, now))

    def _entered_before(self, record: IncrementRecord) -> float:
        """Return when an increment entered its phase in another process, as far as the journal has it."""
        match record.phase:
            case Phase.PLANNED:
                return record.created_at_seconds
            case Phase.CREATING:
                return record.ordered_at_seconds or record.created_at_seconds
            case Phase.ROLLING_BACK if record.failed_at_seconds is not None:
                return record.failed_at_seconds
        return self._since_seconds

    def _add(
        self, subject: tracing.Subject, name: str, began_at: float, ended_at: float, *, taken_over: bool = False
    ) -> None:
        attributes = {**subject.attributes, **({"cagrpc.taken_over": True} if taken_over else {})}
        tracing.past(tracing.Past(subject, name, began_at, ended_at, attributes))


def _whole(subject: tracing.Subject, record: IncrementRecord, now: float) -> tracing.Past:
    """Return the span of all of an increment that is over, with a link to the round that planned it."""
    asked = record.increment
    plan = tracing.plan(asked.plan) if asked.plan else None
    attributes: dict[str, tracing.Value] = {
        **subject.attributes,
        **(plan.attributes if plan is not None else {}),
        "cagrpc.phase": record.phase.value,
        "cagrpc.origin": asked.origin.value,
        "cagrpc.node_groups": ", ".join(f"{group}+{delta}" for group, delta in asked.deltas.items())[:1000],
        "cagrpc.nodes": sum(asked.deltas.values()),
        "cagrpc.pods": len(asked.pods),
        "cagrpc.reason": asked.reason[:1000],
    }
    began_at = asked.waiting_since_seconds or record.created_at_seconds
    links = () if plan is None else (plan,)
    # One that was withdrawn has no short groups, and is no failure.
    error = record.message if record.short_groups else ""
    return tracing.Past(subject, subject.kind, min(began_at, record.created_at_seconds), now, attributes, links, error)
