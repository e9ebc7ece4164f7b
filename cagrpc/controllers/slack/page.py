"""The state of the slack as JSON, for `/slack` and `cagrpc slack`, and as metrics. The object in the cluster is
`record`'s."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cagrpc.controllers.assume_cache.slack import SlackState, target_of
from solver.model.quantities import format_quantity


def as_json(state: SlackState, carrier: str, problem: str = "") -> Mapping[str, Any]:
    """Return the state as JSON. `carrier` is the name of the current one, empty before it is known; `problem` is why it
    does not carry everything."""
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


class SlackMetrics(Collector):
    """Placeholders and their cost, by target."""

    def __init__(self, state: Callable[[], SlackState]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        placeholders = GaugeMetricFamily(
            "cagrpc_slack_placeholders",
            "Wanted placeholders by target and state: held, pushed_out by pods, waiting for room.",
            labels=("target", "state"),
        )
        cost = GaugeMetricFamily(
            "cagrpc_slack_cost_usd_per_hour", "What the nodes' share that placeholders take costs.", labels=("target",)
        )
        for name, counts in self._state().by_target().items():
            waiting = counts.left_over - counts.pushed_out
            for state, count in (("held", counts.held), ("pushed_out", counts.pushed_out), ("waiting", waiting)):
                placeholders.add_metric((name, state), count)
            cost.add_metric((name,), counts.cost_usd_per_hour)
        yield placeholders
        yield cost
