"""The page `/slack`."""

from __future__ import annotations

from dataclasses import replace

from cagrpc.controllers.slack.model import SlackState
from cagrpc.controllers.slack.page import as_json
from solver.slack.model import SlackDemand
from tests.support.controllers.slack_carriers import shape


def test_targets_and_shapes_agree() -> None:
    web, other = shape("web", 1500, 3), replace(shape("other", 500, 2), name="u/fixed/other")
    state = SlackState(
        7.0,
        wanted=(SlackDemand((web,)), SlackDemand((other,))),
        placement={web.name: {"n1": 1}, other.name: {"n1": 1, "n2": 1}},
        pushed_out={web.name: 1},
        left_over={web.name: 2},
        cost_usd_per_hour={"t": 0.25},
        warnings=("too big",),
    )
    shown = as_json(state, "buffer", "no answer")
    assert (shown["carrier"], shown["problem"], shown["at_seconds"]) == ("buffer", "no answer", 7.0)
    counts = {"wanted": 3, "held": 1, "pushed_out": 1, "left_over": 2}
    assert shown["targets"] == [
        {"target": "t", **counts, "cost_usd_per_hour": 0.25},
        {"target": "u", "wanted": 2, "held": 2, "pushed_out": 0, "left_over": 0, "cost_usd_per_hour": 0.0},
    ]
    first, second = shown["shapes"]
    assert {name: first[name] for name in counts} == counts
    assert (first["requests"], first["nodes"]) == ({"cpu": "1500m"}, {"n1": 1})
    assert (second["target"], second["nodes"]) == ("u", {"n1": 1, "n2": 1})
    assert shown["warnings"] == ["too big"]
