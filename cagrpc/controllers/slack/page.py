"""The slack as JSON can say it, for `/slack`, `/metrics` and `cagrpc slack`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cagrpc.controllers.slack.model import SlackState, target_of
from solver.model.quantities import format_quantity


def as_json(state: SlackState, carrier: str, problem: str = "") -> Mapping[str, Any]:
    """`carrier` is the name of who carries now, empty before that is known; `problem` why it cannot."""
    return {
        "carrier": carrier,
        "problem": problem,
        "at_seconds": state.at_seconds,
        "targets": [{"target": name, **asdict(counts)} for name, counts in state.by_target().items()],
        "shapes": [
            {
                "name": shape.name,
                "target": target_of(shape.name),
                "why": shape.why,
                "requests": {name: format_quantity(name, amount) for name, amount in shape.spec.requests},
                "wanted": shape.count,
                "held": sum(state.placement.get(shape.name, {}).values()),
                "pushed_out": state.pushed_out.get(shape.name, 0),
                "left_over": state.left_over.get(shape.name, 0),
                "nodes": dict(state.placement.get(shape.name, {})),
            }
            for shape in state.shapes
        ],
        "warnings": [*state.warnings],
    }
