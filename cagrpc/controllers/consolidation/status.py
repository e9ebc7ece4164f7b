"""What consolidation shows: its member of `/status`, and the page `/consolidation` with the whole plan."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cagrpc.controllers.consolidation.holds import Hold
from cagrpc.controllers.consolidation.holds import as_json as hold_as_json
from cagrpc.controllers.consolidation.pauses import Pause
from cagrpc.fleet.model import Disruption
from solver.consolidation.model import ConsolidationPlan, ConsolidationStep

_MOST_STEPS = 5
_MOST_EXAMPLES = 3
_NAMES = re.compile(r'"[^"]*"|\S*[/\d]\S*')
"""Parts of a reason that are of one node: namespaces with names, quoted ones, numbers."""


@dataclass(frozen=True, slots=True)
class PublishedPlan:
    """A plan, and when it was made."""

    at_seconds: float
    """Since the epoch."""
    plan: ConsolidationPlan


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
    """Return a step as JSON."""
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
