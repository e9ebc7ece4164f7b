"""Why pods wait and what would serve them, in words: of a plan, and of its explanation once there is one. Events,
`/plans` and the page, ProvisioningRequests, `cagrpc plan` and `explain`, and the report all have what is said here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from solver.explanation.kinds import advice, reason
from solver.explanation.model import Constraint, ConstraintChange, Way, WhyUnserved, WhyWaiting
from solver.model import Plan

MOST_WAYS = 2
"""Ways that a message has; `cagrpc explain` has more."""
MORE_TIME = "more time for planning: there is room as things are"
OUT_OF_TIME = "not known: planning ran out of time"
NOTHING = "nothing that was tried: neither other node groups, sizes and limits nor a change of the pods"
OTHERS = "pods of the same or a higher priority take the room"


def why_waiting(plan: Plan, *, placeholders: bool = False) -> dict[int, WhyWaiting]:
    """Return the pods that a plan does not serve, by class; with `placeholders` those of the slack instead."""
    classes = {each.index: each for each in plan.pod_classes}
    left = ((classes[each.pod_class], each) for each in plan.unplaced)
    return {
        cls.index: WhyWaiting(cls.example, each.count, each.reasons, gang=cls.gang)
        for cls, each in left
        if cls.placeholder is placeholders
    }


def with_ways(waiting: Mapping[int, WhyWaiting], explained: Iterable[WhyUnserved]) -> dict[int, WhyWaiting]:
    """Return the pods with what would serve them, as far as they are explained."""
    found = {index: ways_of(each)[:MOST_WAYS] for each in explained for index in each.pod_classes}
    return {index: replace(each, ways=found.get(index, each.ways)) for index, each in waiting.items()}


def ways_of(why: WhyUnserved) -> tuple[str, ...]:
    """Return what would serve a class or a gang; where there is nothing, why. Never empty."""
    if why.servable:
        return (MORE_TIME,)
    return tuple(map(_way, why.ways)) or (NOTHING if why.proven else OUT_OF_TIME,)


def _way(way: Way) -> str:
    words = ", and ".join(map(advice, way.changes))
    return words if way.proven else f"{words} (less may do)"


def core_of(why: WhyUnserved) -> tuple[str, ...]:
    """Return the constraints that together keep a class or a gang out. Never empty."""
    if why.servable:
        return ("nothing: planning ran out of time",)
    core = tuple(reason(each) if isinstance(each, ConstraintChange) else OTHERS for each in why.core)
    if not core:
        return ("no node and no node group could run it",) if why.proven else (OUT_OF_TIME,)
    return core if why.proven else (*core, "(not proven: planning ran out of time)")


def kind_words(cause: Constraint) -> str:
    """Return of which kind a constraint of a core is, without any name of the cluster: "node selector"."""
    return cause.kind.replace("_", " ") if isinstance(cause, ConstraintChange) else "other pods"
